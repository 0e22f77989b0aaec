"""Seconds of methods on a cluster, without training."""
