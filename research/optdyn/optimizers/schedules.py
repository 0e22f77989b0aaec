"""Learning rates of all updates of a run, by an optax schedule, after a linear warm-up.

A schedule of the user's own is `make(learning_rate, steps, **config.optimizer.schedule_options)`,
`steps` being the updates after the warm-up (or `decay_steps`), and returns an optax schedule: a
function of the update's number, traced, to its rate.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optdyn.base import lookup
from optdyn.base.errors import ConfigError, Wrong, is_as_wanted
from optdyn.base.fields import plain
from optdyn.optimizers.kinds import Optimizer

KEY = "config.optimizer.schedule"


def constant(learning_rate: float) -> optax.Schedule:
    """The learning rate."""
    return optax.constant_schedule(learning_rate)


def cosine(learning_rate: float, steps: int) -> optax.Schedule:
    """Half a cosine down to 0."""
    return optax.cosine_decay_schedule(learning_rate, steps)


def linear(learning_rate: float, steps: int) -> optax.Schedule:
    """A straight line down to 0."""
    return optax.linear_schedule(learning_rate, 0.0, steps)


def exponential(learning_rate: float, steps: int, decay_rate: float) -> optax.Schedule:
    """Multiplied by decay_rate every decay_steps, smoothly."""
    return optax.exponential_decay(learning_rate, steps, decay_rate)


def piecewise(
    learning_rate: float, boundaries: Sequence[int], scales: Sequence[float]
) -> optax.Schedule:
    """Multiplied by scales[i] from update boundaries[i] after the warm-up on."""
    return optax.piecewise_constant_schedule(
        learning_rate, dict(zip(boundaries, scales, strict=True))
    )


SCHEDULES: Mapping[str, Callable[..., optax.Schedule]] = {
    make.__name__: make for make in (constant, cosine, linear, exponential, piecewise)
}


def schedule(
    name: str, learning_rate: float, steps: int, decay_rate: float, options: Mapping[str, object]
) -> optax.Schedule:
    """The schedule `name` over so many steps. Raises `ConfigError`, as for options it lacks."""
    make = lookup.find(KEY, name, SCHEDULES)
    given = plain(options)
    if lookup.is_own(name):
        return lookup.call(KEY, name, make, learning_rate, steps, **given)
    usual = {"learning_rate": learning_rate, "steps": steps, "decay_rate": decay_rate}
    taken = inspect.signature(make).parameters
    ConfigError.refuse(_wrong_options(name, given, taken.keys() - usual.keys()))
    return make(**{key: value for key, value in usual.items() if key in taken}, **given)


def _wrong_options(name: str, given: Mapping[str, Any], wanted: Set[str]) -> Iterator[Wrong]:
    key = "config.optimizer.schedule_options"
    takes, has = (" and ".join(sorted(names)) or "nothing" for names in (wanted, given))
    yield given.keys() != wanted, f"{key}: {name!r} takes {takes}, and is given {has}"
    if name == "piecewise":
        boundaries, scales = given["boundaries"], given["scales"]
        said = f"{key}: boundaries = {boundaries!r} must be updates from 1 up, in order, and "
        said += f"scales = {scales!r} a finite number from 0 up for each"
        yield not is_as_wanted(_are_steps, (boundaries, scales)), said


def _are_steps(given: tuple[Sequence[int], Sequence[float]]) -> bool:
    boundaries, scales = given
    good = len(boundaries) == len(scales) > 0 and all(isinstance(b, int) for b in boundaries)
    good &= sorted({*boundaries}) == list(boundaries) and min(boundaries, default=0) >= 1
    return good and all(0 <= scale < math.inf for scale in scales)


def learning_rates(
    name: str,
    learning_rate: float,
    steps: int,
    *,
    warmup_steps: int = 0,
    decay_steps: int = 0,
    decay_rate: float = 0.1,
    options: Mapping[str, object] = {},
) -> np.ndarray:
    """Learning rate of every update, (steps,) float32, by a schedule after a linear warm-up.

    `decay_steps` is the length of the decay (0: the rest of the run); 'exponential' multiplies by
    `decay_rate` every `decay_steps`. Raises `ConfigError`.
    """
    length = decay_steps or rest(steps, warmup_steps)
    after = schedule(name, learning_rate, length, decay_rate, options)
    if lookup.is_own(name):
        after = _vectorized(name, after)
    warmup = optax.linear_schedule(0.0, learning_rate, max(warmup_steps, 1))
    whole = optax.join_schedules([warmup, after], [warmup_steps]) if warmup_steps else after
    values = np.asarray(whole(jnp.arange(steps)), np.float32)
    if lookup.is_own(name) and not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ConfigError(f"{lookup.setting(KEY, name)}: the rate of update {at} is {values[at]}")
    return np.broadcast_to(values, (steps,))


def rest(steps: int, warmup_steps: int) -> int:
    """Updates of a run after its warm-up, over which a schedule decays if nothing else is said."""
    return max(steps - warmup_steps, 1)


def of_run(chosen: Optimizer, steps: int) -> np.ndarray:
    """The learning rates of a run of so many updates."""
    return learning_rates(
        chosen.schedule,
        chosen.learning_rate,
        steps,
        warmup_steps=chosen.warmup_steps,
        decay_steps=chosen.decay_steps,
        decay_rate=chosen.decay_rate,
        options=chosen.schedule_options,
    )


def _vectorized(name: str, own: optax.Schedule) -> optax.Schedule:
    """The user's schedule for an array of numbers of updates."""

    def one(step: jax.Array) -> jax.Array:
        rate = jnp.asarray(own(step), jnp.float32)
        if rate.shape:
            raise ValueError(f"returned {rate.shape} for one update: must be one number")
        return rate

    def every(count: jax.Array) -> jax.Array:
        try:
            return jax.vmap(one)(count)
        except Exception as error:
            raise ConfigError(f"{lookup.setting(KEY, name)}: {lookup.told(error, own)}") from error

    return every
