"""Any optax optimizer, with its hyperparameters as traced arguments of `update`.

Hyperparameters arrive with each update (`Event.hyper`), so that learning-rate schedules, momentum
and every other number are data: changing them recompiles nothing.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

SCHEDULES = ("constant", "cosine", "linear", "exponential")


def arguments(name: str) -> tuple[str, ...]:
    """Names of the arguments of the optimizer `optax.NAME`; () if optax has no such function."""
    make: Any = getattr(optax, name, None)
    try:
        return tuple(inspect.signature(make).parameters)
    except (TypeError, ValueError):  # not callable, or only an alias of a type
        return ()


def takes_momentum(name: str) -> bool:
    """Whether the optax optimizer called `name` has an argument `momentum`."""
    return "momentum" in arguments(name)


def optimizer(
    name: str, hyper_names: tuple[str, ...], options: Mapping[str, Any] = {}
) -> optax.GradientTransformationExtraArgs:
    """`optax.NAME` whose `update(grads, state, params, **hyper)` takes its numbers when called.

    `hyper_names` are the arguments given at each update, `options` those fixed at compile time.
    `optax.sgd` keeps the heavy-ball form v <- g + mu v, x <- x - alpha v; mu may be negative.
    """
    make = getattr(optax, name)

    def init(params: Any) -> optax.OptState:
        return make(**dict.fromkeys(hyper_names, 0.0), **options).init(params)

    def update(grads: Any, state: optax.OptState, params: Any = None, **hyper: Any) -> Any:
        return make(**hyper, **options).update(grads, state, params)

    return optax.GradientTransformationExtraArgs(init, update)


def learning_rates(
    name: str,
    learning_rate: float,
    steps: int,
    *,
    warmup_steps: int = 0,
    decay_steps: int = 0,
    decay_rate: float = 0.1,
) -> np.ndarray:
    """Learning rate of every update, (steps,) float32, by an optax schedule after a linear warm-up.

    `decay_steps` is the length of the decay (0: the rest of the run); 'exponential' multiplies by
    `decay_rate` every `decay_steps`.
    """
    length = decay_steps or max(steps - warmup_steps, 1)
    after = {
        "constant": lambda: optax.constant_schedule(learning_rate),
        "cosine": lambda: optax.cosine_decay_schedule(learning_rate, length),
        "linear": lambda: optax.linear_schedule(learning_rate, 0.0, length),
        "exponential": lambda: optax.exponential_decay(learning_rate, length, decay_rate),
    }[name]()
    warmup = optax.linear_schedule(0.0, learning_rate, max(warmup_steps, 1))
    schedule = optax.join_schedules([warmup, after], [warmup_steps]) if warmup_steps else after
    values = np.asarray(schedule(jnp.arange(steps)), np.float32)
    return np.broadcast_to(values, (steps,))
