"""Asynchronous SGD with compute groups (arXiv 1605.09774, 1606.04487).

    x_{t+1} = x_t - alpha grad f(x_{r(t)})        r(t): the version the arriving group had read

Synchronous inside a group (one gradient a group), asynchronous across. Staleness is nowhere in
this file: it is the order of arrivals, which the timeline decides.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from research.strategies.base import Array, Batch, Event, Loss, Params, Strategy, descend


class State(NamedTuple):
    slots: Params  # leaves (slots, ...): the versions that are still to be read
    newest: Array  # int32, slot of x_t
    opt_state: optax.OptState

    @property
    def params(self) -> Params:
        """x_t."""
        return _read(self.slots, self.newest)


def asynchronous(
    loss: Loss, optimizer: optax.GradientTransformationExtraArgs, slots: int
) -> Strategy:
    """Strategy over a table of `slots` parameter snapshots, all x_0 at the start.

    The slot written holds what depends on the slots read, so XLA updates the table in place: a step
    costs a synchronous one plus a copy of the parameters.
    """

    def init(params: Params) -> State:
        table = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], slots, axis=0), params)
        return State(table, jnp.int32(0), optimizer.init(params))

    def step(state: State, event: Event, batch: Batch) -> tuple[State, jax.Array]:
        value, grads = jax.value_and_grad(loss)(_read(state.slots, event.read), batch)
        params, opt_state = descend(optimizer, grads, state.opt_state, state.params, event)
        table = jax.tree.map(lambda t, leaf: t.at[event.write].set(leaf), state.slots, params)
        return State(table, jnp.asarray(event.write, jnp.int32), opt_state), value

    return Strategy(init, step)


def _read(table: Params, slot: Array) -> Params:
    return jax.tree.map(lambda leaf: leaf[slot], table)
