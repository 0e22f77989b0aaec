"""Any optax optimizer, or one of `OWN`, with its hyperparameters as traced arguments of `update`.

Hyperparameters arrive with each update (`Event.hyper`), so that learning-rate schedules, momentum
and every other number are data: changing them recompiles nothing.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from research.optimizers import closed_loop
from research.strategies import groups_of

OWN: Mapping[str, Callable[..., Any]] = {"closed_loop": closed_loop.closed_loop}
SCHEDULES = ("constant", "cosine", "linear", "exponential")


def maker(name: str) -> Any:
    """The function that makes the optimizer, as optax's do; None if there is none."""
    return OWN.get(name, getattr(optax, name, None))


def arguments(name: str) -> tuple[str, ...]:
    """Names of the arguments of the optimizer called `name`; () if there is no such function."""
    try:
        return tuple(inspect.signature(maker(name)).parameters)
    except (TypeError, ValueError):  # not callable, or only an alias of a type
        return ()


def takes_momentum(name: str) -> bool:
    """Whether the optimizer called `name` has an argument `momentum`."""
    return "momentum" in arguments(name)


def options(config: Any) -> dict[str, Any]:
    """`config.optimizer.options`, and what the config says besides of an optimizer of `OWN`.

    The closed loop's staleness is the mean of g groups, g - 1.
    """
    given = config.optimizer.options.to_dict()
    if config.optimizer.name != "closed_loop":
        return given
    return {"staleness": groups_of(config) - 1} | given


def logged(state: Any) -> dict[str, float]:
    """What the log shows of a strategy's state: mu and mu_T of a closed loop's last update."""
    loop = getattr(state, "opt_state", None)
    if not isinstance(loop, closed_loop.State):
        return {}
    return {"explicit_momentum": float(loop.explicit), "total_momentum": float(loop.total)}


def optimizer(
    name: str, hyper_names: tuple[str, ...], options: Mapping[str, Any] = {}
) -> optax.GradientTransformationExtraArgs:
    """The optimizer called `name`; `update(grads, state, params, **hyper)` takes its numbers.

    `hyper_names` are the arguments given at each update, `options` those fixed at compile time.
    `optax.sgd` keeps the heavy-ball form v <- g + mu v, x <- x - alpha v; mu may be negative.
    """
    make = maker(name)

    def init(params: Any) -> optax.OptState:
        return make(**dict.fromkeys(hyper_names, 0.0), **options).init(params)

    def update(
        grads: Any,
        state: optax.OptState,
        params: Any = None,
        *,
        staleness: Any = None,
        read_params: Any = None,
        **hyper: Any,
    ) -> Any:
        made = optax.with_extra_args_support(make(**hyper, **options))
        more = {"staleness": staleness, "read_params": read_params}
        return made.update(grads, state, params, **more)

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
