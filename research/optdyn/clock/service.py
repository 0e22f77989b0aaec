"""Service-time laws: how long a worker takes over one gradient. Unit mean, seeded draws."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from optdyn.base import lookup
from optdyn.base.errors import ConfigError
from optdyn.base.fields import plain
from optdyn.clock.base import TimelineError
from optdyn.setup import Cluster

Law = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _mean(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.ones(shape)


def constant() -> Law:
    """Every service takes its mean."""
    return _mean


def exponential() -> Law:
    """Memoryless: P(T > s) = exp(-s), the queueing model of arXiv 1605.09774, section 3."""
    return lambda rng, shape: rng.standard_exponential(shape)


def lognormal(variation: float) -> Law:
    """Log-normal with coefficient of variation (standard deviation over mean) `variation`."""
    sigma = np.sqrt(np.log1p(variation**2))
    return lambda rng, shape: rng.lognormal(-(sigma**2) / 2, sigma, shape)


def gamma(variation: float) -> Law:
    """Gamma with coefficient of variation `variation`; with 1 it is exponential."""
    numbers = np.finfo(np.float64)
    if variation < numbers.eps:
        return constant()
    shape, least = variation**-2.0, numbers.tiny
    # Of shapes far below 1 some draws are less than a float can be: no service takes no time.
    return lambda rng, size: np.maximum(rng.standard_gamma(shape, size) / shape, least)


def is_constant(law: Law) -> bool:
    """Whether it is `constant`, under which two groups may arrive at the same second."""
    return law is _mean


def with_exchange(compute: Any, exchange: Any, overlap: float) -> Any:
    """Seconds of computing and of the exchange that follows, numbers or arrays.

    The exchange of a layer starts when the backward pass is done with it: all of it may run behind
    the last fraction `overlap` of the computing, and none of it is faster for that.
    """
    return np.maximum(compute, compute * (1 - overlap) + exchange)


LAWS: Mapping[str, Callable[..., Law]] = {
    "constant": constant,
    "exponential": exponential,
    "lognormal": lognormal,
    "gamma": gamma,
}
VARIED = ("lognormal", "gamma")  # by `cluster.variation`
DRAWN = tuple(LAWS)
KEY = "config.cluster.service"
SAMPLE, ERRORS = 10_000, 5  # draws of one's own law that are looked at; standard errors of the mean


def is_drawn(name: str) -> bool:
    """Whether times are drawn independently, from a law of these or of the user's own."""
    return name in DRAWN or lookup.is_own(name)


def law(cluster: Cluster) -> Law:
    """The law called `cluster.service`; raises `TimelineError` if times are not drawn from one.

    One's own is `make(**cluster.service_options)` and returns `(rng, shape) -> numbers` of unit
    mean that depend on `rng` only. Raises `ConfigError` where it cannot be used.
    """
    if not is_drawn(cluster.service):
        raise TimelineError(f"{KEY} = {cluster.service!r}: must be one of {', '.join(DRAWN)} here")
    function = lookup.find(KEY, cluster.service, LAWS)
    if lookup.is_own(cluster.service):
        made = lookup.call(KEY, cluster.service, function, **plain(cluster.service_options))
        return partial(_drawn, cluster.service, made)
    return function(cluster.variation) if cluster.service in VARIED else function()


def check(cluster: Cluster) -> None:
    """Looks at a sample of the user's own law: `ConfigError`, or a warning if its mean is not 1."""
    if not lookup.is_own(cluster.service):
        if cluster.service_options:
            raise ConfigError(
                f"config.cluster.service_options: of laws of your own, not of {cluster.service!r}"
            )
        return
    drawn = law(cluster)(np.random.default_rng(0), (SAMPLE // 10, 10))
    mean, error = float(drawn.mean()), float(drawn.std()) / SAMPLE**0.5
    if abs(mean - 1) > ERRORS * error + 1e-6:  # where all draws are equal, their sum is rounded
        logging.warning(
            f"{lookup.setting(KEY, cluster.service)}: the mean of {SAMPLE:,} draws is {mean:.3g} "
            f"+- {error:.1g} and should be 1, so its seconds are off by that factor"
        )


def _drawn(name: str, made: Law, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draws of the user's own law, checked."""
    values = np.asarray(lookup.call(KEY, name, made, rng, shape))
    if values.shape != shape or values.dtype.kind not in "fiu":
        raise ConfigError(
            f"{lookup.setting(KEY, name)}: of shape {shape} its law draws {values.dtype} "
            f"{values.shape}, and must draw as many numbers"
        )
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ConfigError(
            f"{lookup.setting(KEY, name)}: its law draws {values.min():g} to {values.max():g}, "
            "and must draw finite numbers above 0"
        )
    return values.astype(np.float64)
