"""optdyn: the optimization dynamics of parallel training, in JAX."""
