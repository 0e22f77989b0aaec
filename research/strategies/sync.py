"""Synchronous SGD: every gradient is taken at the parameters it is applied to.

    x_{t+1} = x_t - alpha grad f(x_t)

The reference of all others: each has a limit in which it is this one.
"""

from typing import NamedTuple

import jax
import optax

from research.strategies.base import Batch, Event, Loss, Params, Strategy, descend


class State(NamedTuple):
    params: Params  # x_t
    opt_state: optax.OptState


def sync(loss: Loss, optimizer: optax.GradientTransformationExtraArgs) -> Strategy:
    """Strategy whose events' slots are ignored: there is one copy of the parameters."""

    def init(params: Params) -> State:
        return State(params, optimizer.init(params))

    def step(state: State, event: Event, batch: Batch) -> tuple[State, jax.Array]:
        value, grads = jax.value_and_grad(loss)(state.params, batch)
        return State(*descend(optimizer, grads, state.opt_state, state.params, event)), value

    return Strategy(init, step)
