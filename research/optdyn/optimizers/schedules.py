"""Learning rates of all updates of a run, by an optax schedule, after a linear warm-up.

A user's schedule is `make(learning_rate, steps, **config.optimizer.schedule_options)`,
`steps` being the updates after the warm-up (or `decay_steps`), and returns an optax schedule: a
function of the update's number, traced, to its rate.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optdyn.base import lookup
from optdyn.base.errors import Check, ConfigError, passes
from optdyn.base.fields import plain
from optdyn.optimizers.kinds import Optimizer

KEY = "config.optimizer.schedule"


def constant(learning_rate: float) -> optax.Schedule:
    """Constant learning rate."""
    return optax.constant_schedule(learning_rate)


def cosine(learning_rate: float, steps: int) -> optax.Schedule:
    """Half a cosine down to 0."""
    return optax.cosine_decay_schedule(learning_rate, steps)


def linear(learning_rate: float, steps: int) -> optax.Schedule:
    """A straight line down to 0."""
    return optax.linear_schedule(learning_rate, 0.0, steps)


def exponential(learning_rate: float, steps: int, decay_rate: float) -> optax.Schedule:
    """Exponential decay, by the factor decay_rate in decay_steps."""
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


def learning_rates(optimizer: Optimizer, steps: int) -> np.ndarray:
    """Returns the learning rates of a run's updates, (steps,) float32. Raises `ConfigError`."""
    name, rate, warmup_steps = optimizer.schedule, optimizer.learning_rate, optimizer.warmup_steps
    whole = schedule(optimizer, decay_length(optimizer, steps))
    if warmup_steps:
        warmup = optax.linear_schedule(0.0, rate, warmup_steps)
        whole = optax.join_schedules([warmup, whole], [warmup_steps])
    values = np.asarray(whole(jnp.arange(steps)), np.float32)
    if lookup.is_user_name(name) and not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ConfigError(f"{lookup.key_value(KEY, name)}: the rate of update {at} is {values[at]}")
    return np.broadcast_to(values, (steps,))


def decay_length(optimizer: Optimizer, steps: int) -> int:
    """Returns `decay_steps`, or if that is 0 the updates after the warm-up."""
    return optimizer.decay_steps or max(steps - optimizer.warmup_steps, 1)


def schedule(optimizer: Optimizer, length: int) -> optax.Schedule:
    """Returns the schedule over so many steps. Raises `ConfigError`, as for unknown options."""
    name, options = optimizer.schedule, plain(optimizer.schedule_options)
    make = lookup.find(KEY, name, SCHEDULES)
    if lookup.is_user_name(name):
        user_schedule = lookup.call_user_code(
            KEY, name, make, optimizer.learning_rate, length, **options
        )
        return _vectorized(name, user_schedule)
    numbers = {
        "learning_rate": optimizer.learning_rate,
        "steps": length,
        "decay_rate": optimizer.decay_rate,
    }
    parameters = inspect.signature(make).parameters
    ConfigError.refuse(_wrong_options(name, options, parameters.keys() - numbers.keys()))
    return make(**{key: value for key, value in numbers.items() if key in parameters}, **options)


def _wrong_options(name: str, options: Mapping[str, Any], expected: Set[str]) -> Iterator[Check]:
    key = "config.optimizer.schedule_options"
    takes, has = (" and ".join(sorted(names)) or "nothing" for names in (expected, options))
    yield options.keys() != expected, f"{key}: {name!r} takes {takes}, and is given {has}"
    if name == "piecewise":
        boundaries, scales = options["boundaries"], options["scales"]
        line = f"{key}: boundaries = {boundaries!r} must be updates from 1 up, in order, and "
        line += f"scales = {scales!r} a finite number from 0 up for each"
        yield not passes(_are_steps, (boundaries, scales)), line


def _are_steps(pair: tuple[Sequence[int], Sequence[float]]) -> bool:
    boundaries, scales = pair
    good = len(boundaries) == len(scales) > 0 and all(isinstance(b, int) for b in boundaries)
    good &= sorted({*boundaries}) == list(boundaries) and min(boundaries, default=0) >= 1
    return good and all(scale >= 0 for scale in scales)


def _vectorized(name: str, schedule: optax.Schedule) -> optax.Schedule:
    def one(step: jax.Array) -> jax.Array:
        rate = jnp.asarray(schedule(step), jnp.float32)
        if rate.shape:
            raise ValueError(f"returned {rate.shape} for one update: must be one number")
        return rate

    def several(count: jax.Array) -> jax.Array:
        try:
            return jax.vmap(one)(count)
        except Exception as error:
            raise ConfigError(
                f"{lookup.key_value(KEY, name)}: {lookup.describe_error(error, schedule)}"
            ) from error

    return several
