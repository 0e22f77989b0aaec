"""Fits, tables and figures of runs, read from work directories only."""
