"""Service-time laws: how long a worker takes over one gradient. Unit mean, seeded draws.

Independent geometric staleness: the theory's own law, with no queue behind it.

    P(tau = k) = (1 - p) p^k,   p = 1 - 1/g        (arXiv 1605.09774)

Update t reads version max(t - tau, 0) from a ring of past versions.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from optdyn.base import lookup
from optdyn.base.errors import Check, ConfigError
from optdyn.base.fields import Custom, Value, field, plain
from optdyn.clock.timeline import Arrival, Timeline, TimelineError

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
SAMPLE, ERRORS = 10_000, 5  # draws of one's own law that are looked at; standard errors of the mean
KEY = "config.cluster.service.name"


@dataclass(frozen=True)
class Law(Value, section="cluster.service", union=True):
    """The law of the times that workers take over a gradient (`optdyn list laws`)."""

    @property
    def draw(self) -> Draw:
        """`(rng, shape) -> numbers` of unit mean, which depend on `rng` alone.

        Raises `TimelineError` for a law whose times are not drawn independently, and `ConfigError`
        where one of the user's own cannot be used.
        """
        raise TimelineError(f"{KEY} = {self.name!r}: must be one of {', '.join(DRAWN)} here")

    @property
    def is_drawn(self) -> bool:
        """Whether times are drawn independently."""
        return type(self).draw is not Law.draw


def _mean(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.ones(shape)


@dataclass(frozen=True)
class Constant(Law, name="constant"):
    """Every service takes its mean."""

    @property
    def draw(self) -> Draw:
        return _mean


@dataclass(frozen=True)
class Exponential(Law, name="exponential"):
    """Memoryless: P(T > s) = exp(-s), the queueing model of arXiv 1605.09774, section 3."""

    @property
    def draw(self) -> Draw:
        return lambda rng, shape: rng.standard_exponential(shape)


@dataclass(frozen=True)
class LogNormal(Law, name="lognormal"):
    """Log-normal times."""

    variation: float = field(1.0, "Standard deviation of the times over their mean.", at_least=0)

    @property
    def draw(self) -> Draw:
        sigma = np.sqrt(np.log1p(self.variation**2))
        return lambda rng, shape: rng.lognormal(-(sigma**2) / 2, sigma, shape)


@dataclass(frozen=True)
class Gamma(Law, name="gamma"):
    """Gamma times; with a variation of 1 they are exponential."""

    variation: float = field(1.0, "Standard deviation of the times over their mean.", at_least=0)

    @property
    def draw(self) -> Draw:
        numbers = np.finfo(np.float64)
        if self.variation < numbers.eps:
            return _mean
        shape, least = self.variation**-2.0, numbers.tiny
        # Of shapes far below 1 some draws are less than a float can be: no service takes no time.
        return lambda rng, size: np.maximum(rng.standard_gamma(shape, size) / shape, least)


@dataclass(frozen=True)
class Geometric(Law, name="geometric"):
    """Staleness alone, geometric as of memoryless workers; no group arrives."""


@dataclass(frozen=True)
class Trace(Law, name="trace"):
    """Recorded arrivals: a CSV file with the columns `worker` and `seconds`, a row an update.

    A row says which group delivered, from 0 on, and when, in seconds from the start. `version`, how
    many updates the parameters of its gradient had, and `control.*`, as in the `trace.csv` of a
    run, may be there too.
    """

    path: str = field(
        "", "CSV file with columns worker, seconds; real runs write trace.csv."
    )  # fmt: skip


@dataclass(frozen=True)
class Measured(Law, name="measured"):
    """Real workers of dynamic batches, timed while they train."""


@dataclass(frozen=True)
class Race(Law, name="race"):
    """Real workers that race, of `optdyn race`."""


@dataclass(frozen=True)
class OwnLaw(Law, Custom, custom=True):
    """A law of the user's own.

    `make(**options)` returns `law(rng, shape)`, numbers of unit mean that depend on `rng` alone.
    """

    @property
    def draw(self) -> Draw:
        function = lookup.find(KEY, self.name, {})
        made = lookup.call_user_code(KEY, self.name, function, **plain(self.options))
        return partial(_drawn, self.name, made)


DRAWN = ("constant", "exponential", "lognormal", "gamma")


def is_constant(law: Draw) -> bool:
    """Whether it is `constant`, under which two groups may arrive at the same second."""
    return law is _mean


def overlapped(compute: Any, exchange: Any, overlap: float) -> Any:
    """Seconds of computing and of the exchange that follows, numbers or arrays.

    The exchange of a layer starts when the backward pass is done with it: all of it may run behind
    the last fraction `overlap` of the computing, and none of it is faster for that.
    """
    return np.maximum(compute, compute * (1 - overlap) + exchange)


def check_law(law: Law) -> None:
    """Looks at a sample of the user's own law: `ConfigError`, or a warning if its mean is not 1."""
    if not isinstance(law, OwnLaw):
        return
    drawn = law.draw(np.random.default_rng(0), (SAMPLE // 10, 10))
    mean, error = float(drawn.mean()), float(drawn.std()) / SAMPLE**0.5
    if abs(mean - 1) > ERRORS * error + 1e-6:  # where all draws are equal, their sum is rounded
        logging.warning(
            f"{lookup.key_value(KEY, law.name)}: the mean of {SAMPLE:,} draws is {mean:.3g} "
            f"+- {error:.1g} and should be 1, so its seconds are off by that factor"
        )


def _drawn(name: str, made: Draw, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draws of the user's own law, checked."""
    values = np.asarray(lookup.call_user_code(KEY, name, made, rng, shape))
    ConfigError.refuse(_wrong_draws(lookup.key_value(KEY, name), values, shape))
    return values.astype(np.float64)


def _wrong_draws(where: str, values: np.ndarray, shape: tuple[int, ...]) -> Iterator[Check]:
    said = f"of shape {shape} its law draws {values.dtype} {values.shape}, and must draw as many "
    wrong = values.shape != shape or values.dtype.kind not in "fiu"
    yield wrong, f"{where}: {said}numbers"
    if not (np.isfinite(values).all() and (values > 0).all()):
        said = f"its law draws {values.min():g} to {values.max():g}, and must draw finite numbers"
        yield True, f"{where}: {said} above 0"


TAIL = 1e-6  # probability of the staleness that the ring cuts off (and redraws)


def ring_size(groups: int) -> int:
    """Versions kept: a power of two beyond which the law has less than `TAIL` left."""
    if groups == 1:
        return 1
    longest = np.log(TAIL) / np.log1p(-1 / groups)
    return int(2 ** np.ceil(np.log2(longest)))


def geometric_timeline(
    rng: np.random.Generator, groups: int, mean_seconds: float, shape: tuple[int, ...]
) -> Timeline:
    """Timeline of `shape` (..., steps), seconds between updates exponential with the given mean."""
    slots = ring_size(groups)
    law, clock = rng.spawn(2)  # two streams, so that a longer run begins with the shorter one
    # Inverse of the distribution function, cut at the ring's length.
    u = law.random(shape) * (1 - (1 - 1 / groups) ** slots if groups > 1 else 1)
    tau = np.floor(np.log1p(-u) / np.log1p(-1 / groups)) if groups > 1 else np.zeros(shape)
    t = np.arange(shape[-1])
    staleness = np.minimum(tau, t).astype(np.int32)
    seconds = np.cumsum(clock.exponential(mean_seconds, shape), axis=-1)
    write = np.broadcast_to((t + 1) % slots, shape).astype(np.int32)
    read = ((t - staleness) % slots).astype(np.int32)
    worker = np.zeros(shape, np.int32)
    return Timeline(worker, staleness, seconds, slots, Arrival(worker, read, write))
