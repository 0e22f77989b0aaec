"""Synchronous SGD: every gradient is taken at the parameters it is applied to.

    x_{t+1} = x_t - alpha grad f(x_t)

The reference of all others: each has a limit in which it is this one.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from research.strategies.base import Batch, Event, Loss, Params, Strategy, all_reduce, descend


class State(NamedTuple):
    params: Params  # x_t
    opt_state: optax.OptState


def sync(
    loss: Loss,
    optimizer: optax.GradientTransformationExtraArgs,
    axis: str | None = None,
    accumulation: int = 1,
) -> Strategy:
    """Strategy whose events' slots are ignored: there is one copy of the parameters.

    With `axis` it is the rule of one of that axis's devices, each with a part of the batch. The
    gradient is the mean of those of `accumulation` equal parts of the batch, one after the other.
    """

    def init(params: Params) -> State:
        return State(params, optimizer.init(params))

    def step(state: State, event: Event, batch: Batch) -> tuple[State, jax.Array]:
        value, grads = accumulated(loss, accumulation)(state.params, batch)
        if axis:
            devices = jax.lax.axis_size(axis)
            grads = jax.tree.map(lambda leaf: leaf / devices, all_reduce(grads, axis))
        return State(*descend(optimizer, grads, state.opt_state, state.params, event)), value

    return Strategy(init, step)


def accumulated(loss: Loss, parts: int) -> Callable[[Params, Batch], tuple[jax.Array, Params]]:
    """`jax.value_and_grad(loss)`, a part of the batch at a time: less memory, the same mean."""
    whole = jax.value_and_grad(loss)
    if parts == 1:
        return whole

    def gradient(params: Params, batch: Batch) -> tuple[jax.Array, Params]:
        def add(total: Params, part: Batch) -> tuple[Params, None]:
            return jax.tree.map(jnp.add, total, whole(params, part)), None

        split = {name: x.reshape(parts, -1, *x.shape[1:]) for name, x in batch.items()}
        nothing = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        total, _ = jax.lax.scan(add, nothing, split)
        return jax.tree.map(lambda leaf: leaf / parts, total)

    return gradient
