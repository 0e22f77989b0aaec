"""Service-time laws: how long a worker takes over one gradient. Unit mean, seeded draws."""

from collections.abc import Callable
from typing import Any

import numpy as np

from research.timeline.base import TimelineError

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


def with_exchange(compute: Any, exchange: Any, overlap: float) -> Any:
    """Seconds of computing and of the exchange that follows, numbers or arrays.

    The exchange of a layer starts when the backward pass is done with it: all of it may run behind
    the last fraction `overlap` of the computing, and none of it is faster for that.
    """
    return np.maximum(compute, compute * (1 - overlap) + exchange)


DRAWN = ("constant", "exponential", "lognormal")


def law(cluster: Any) -> Law:
    """The law called `cluster.service`; raises `TimelineError` if it is not one of `DRAWN`."""
    if cluster.service not in DRAWN:
        raise TimelineError(
            f"config.cluster.service = {cluster.service!r}: must be one of {', '.join(DRAWN)} here"
        )
    laws = {
        "constant": constant,
        "exponential": exponential,
        "lognormal": lambda: lognormal(cluster.variation),
    }
    return laws[cluster.service]()
