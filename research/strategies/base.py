"""What every strategy is: two pure functions of (state, event, batch).

A strategy never sees seconds, clusters or staleness. The timeline decides which slot an update
reads and which it writes; the trainer scans `step` over those events.

Strategies of several devices are written for one of them, with collectives over named axes:
`data` (synchronous workers), `node` (slow network) and `local` (fast network). An axis is a `vmap`
where it is simulated and a mesh axis where it is real (`research/parallel`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

Array = jax.Array | np.ndarray
Params = Any
State = Any  # any pytree with an attribute `params`, the parameters x_t that are evaluated
Batch = dict[str, jax.Array]
Loss = Callable[[Params, Batch], jax.Array]


class Event(NamedTuple):
    """One update, as the update rule sees it. All leaves are scalars inside the scan."""

    read: Array  # int32, slot whose parameters the gradient is taken at
    write: Array  # int32, slot that receives the new parameters
    hyper: Mapping[str, Array]  # float32, hyperparameters of this update, `learning_rate`, ...
    control: Mapping[str, Array] | None = None  # what else the timeline decides, by name


class Strategy(NamedTuple):
    """`init(params) -> state`; `step(state, event, batch) -> (state, loss of the batch)`."""

    init: Callable[[Params], State]
    step: Callable[[State, Event, Batch], tuple[State, jax.Array]]


def descend(
    optimizer: optax.GradientTransformationExtraArgs,
    grads: Params,
    opt_state: optax.OptState,
    params: Params,
    event: Event,
) -> tuple[Params, optax.OptState]:
    """One optimizer step from `params` along `grads` with the event's hyperparameters."""
    updates, opt_state = optimizer.update(grads, opt_state, params, **event.hyper)
    return optax.apply_updates(params, updates), opt_state


def all_reduce(tree: Any, axis: str) -> Any:
    """Sum of a pytree over the devices of an axis, as one message and not one a leaf."""
    vector, tree_of = ravel_pytree(tree)
    return tree_of(jax.lax.psum(vector, axis))
