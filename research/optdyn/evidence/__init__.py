"""Comparisons of two ways of training: tuned, interior, judged on other seeds."""
