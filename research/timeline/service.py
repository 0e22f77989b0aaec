"""Service-time laws: how long a worker takes over one gradient. Unit mean, seeded draws."""

from collections.abc import Callable

import numpy as np

Law = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def constant() -> Law:
    """Every service takes its mean."""
    return lambda rng, shape: np.ones(shape)


def exponential() -> Law:
    """Memoryless: P(T > s) = exp(-s), the queueing model of arXiv 1605.09774, section 3."""
    return lambda rng, shape: rng.standard_exponential(shape)


def lognormal(variation: float) -> Law:
    """Log-normal with coefficient of variation (standard deviation over mean) `variation`."""
    sigma = np.sqrt(np.log1p(variation**2))
    return lambda rng, shape: rng.lognormal(-(sigma**2) / 2, sigma, shape)
