"""Laws of service times, of unit mean: how long a worker takes over one gradient.

Independent geometric staleness is the theory's law, with no queue behind it.

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
SAMPLE, ERRORS = 10_000, 5  # draws of a user's law that are checked; standard errors of the mean
KEY = "config.cluster.service.name"


@dataclass(frozen=True)
class Law(Value, section="cluster.service", union=True):
    """The law of the times that workers take over a gradient (`optdyn list laws`)."""

    @property
    def draw(self) -> Draw:
        """Returns `(rng, shape) -> numbers` of unit mean, which depend on `rng` alone.

        Raises `TimelineError` for a law whose times are not drawn independently, and `ConfigError`
        for a user's law that cannot be used.
        """
        raise TimelineError(f"{KEY} = {self.name!r}: must be one of {', '.join(DRAWN)} here")

    @property
    def is_drawn(self) -> bool:
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
        float64 = np.finfo(np.float64)
        if self.variation < float64.eps:
            return _mean
        shape, least = self.variation**-2.0, float64.tiny
        # For shapes far below 1 some draws are rounded to 0, and no service takes no time.
        return lambda rng, size: np.maximum(rng.standard_gamma(shape, size) / shape, least)


@dataclass(frozen=True)
class Geometric(Law, name="geometric"):
    """Geometric staleness, as of memoryless workers; no group arrives."""


@dataclass(frozen=True)
class Trace(Law, name="trace"):
    """Recorded arrivals: a CSV file with the columns `worker` and `seconds`, a row an update.

    A row says which group delivered, from 0 on, and when, in seconds from the start. Optional are
    `version`, the number of updates of the gradient's parameters, and `control.*`, as in the
    `trace.csv` of a run.
    """

    path: str = field("", "CSV file with columns worker, seconds; real runs write trace.csv.")


@dataclass(frozen=True)
class Measured(Law, name="measured"):
    """Real workers of dynamic batches, timed while they train."""


@dataclass(frozen=True)
class Race(Law, name="race"):
    """Real workers of `optdyn race`."""


@dataclass(frozen=True)
class OwnLaw(Law, Custom, custom=True):
    """A user's law.

    `make(**options)` returns `law(rng, shape)`, numbers of unit mean that depend on `rng` alone.
    """

    @property
    def draw(self) -> Draw:
        function = lookup.find(KEY, self.name, {})
        law = lookup.call_user_code(KEY, self.name, function, **plain(self.options))
        return partial(_checked_draw, self.name, law)


DRAWN = ("constant", "exponential", "lognormal", "gamma")


def rounding(law: Draw) -> float:
    """Returns the relative error of a sum of 10^5 constant services; 0 where times are drawn."""
    return 1e-10 if law is _mean else 0.0


def overlapped(compute: Any, exchange: Any, overlap: float) -> Any:
    """Returns the seconds of computing and of the exchange behind it, numbers or arrays.

    The exchange of a layer starts when the backward pass is done with it.
    """
    return np.maximum(compute, compute * (1 - overlap) + exchange)


def check_law(law: Law) -> None:
    """Draws a sample of a user's law, and warns if its mean is not 1. Raises `ConfigError`."""
    if not isinstance(law, OwnLaw):
        return
    sample = law.draw(np.random.default_rng(0), (SAMPLE // 10, 10))
    mean, error = float(sample.mean()), float(sample.std()) / SAMPLE**0.5
    if abs(mean - 1) > ERRORS * error + 1e-6:  # where all draws are equal, their sum is rounded
        logging.warning(
            f"{lookup.key_value(KEY, law.name)}: the mean of {SAMPLE:,} draws is {mean:.3g} "
            f"+- {error:.1g} and should be 1, so its seconds are off by that factor"
        )


def _checked_draw(
    name: str, law: Draw, rng: np.random.Generator, shape: tuple[int, ...]
) -> np.ndarray:
    values = np.asarray(lookup.call_user_code(KEY, name, law, rng, shape))
    ConfigError.refuse(_wrong_draws(lookup.key_value(KEY, name), values, shape))
    return values.astype(np.float64)


def _wrong_draws(where: str, values: np.ndarray, shape: tuple[int, ...]) -> Iterator[Check]:
    is_wrong = values.shape != shape or values.dtype.kind not in "fiu"
    found = f"draws {values.dtype} {values.shape}"
    yield is_wrong, f"{where}: {found} where it is asked for {shape}: must be as many numbers"
    if not (np.isfinite(values).all() and (values > 0).all()):
        found = f"{values.min():g} to {values.max():g}"
        yield True, f"{where}: draws {found}: must be finite numbers above 0"


TAIL = 1e-6  # probability of staleness that the ring cuts off


def ring_size(groups: int) -> int:
    """Returns how many versions are kept: a power of two, beyond which less than `TAIL` is left."""
    if groups == 1:
        return 1
    longest = np.log(TAIL) / np.log1p(-1 / groups)
    return int(2 ** np.ceil(np.log2(longest)))


def geometric_timeline(
    rng: np.random.Generator, groups: int, mean_seconds: float, shape: tuple[int, ...]
) -> Timeline:
    """Returns the timeline of geometric staleness, (..., steps), with exponential seconds."""
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
