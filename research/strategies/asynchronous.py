"""Asynchronous SGD with compute groups (arXiv 1605.09774, 1606.04487).

    x_{t+1} = x_t - alpha grad f(stale_{r(t)}, fresh_t)     x_t = (stale_t, fresh_t)

r(t): the version the arriving group had read. Synchronous inside a group (one gradient a group),
asynchronous across. Staleness is nowhere in this file: it is the order of arrivals, which the
timeline decides. Fresh are the blocks that one server computes as well as keeps, so that nobody
holds an old copy: the merged fully-connected servers of 1606.04487. By default there are none.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from research.strategies.base import Array, Batch, Event, Loss, Params, Strategy, descend


class State(NamedTuple):
    slots: Params  # stale blocks, leaves (slots, ...): the versions that are still to be read
    newest: Array  # int32, slot of stale_t
    opt_state: optax.OptState
    fresh: Params  # fresh_t

    def at(self, slot: Array) -> Params:
        """The parameters as a group sees them that had read `slot`."""
        return jax.tree.map(lambda leaf: leaf[slot], self.slots) | self.fresh

    @property
    def params(self) -> Params:
        """x_t."""
        return self.at(self.newest)


def asynchronous(
    loss: Loss,
    optimizer: optax.GradientTransformationExtraArgs,
    slots: int,
    fresh: tuple[str, ...] = (),
) -> Strategy:
    """Strategy over a table of `slots` snapshots of the stale blocks, all x_0 at the start.

    The slot written holds what depends on the slots read, so XLA updates the table in place: a step
    costs a synchronous one plus a copy of the stale blocks. `init` raises ValueError if a name in
    `fresh` is not a key of the parameters.
    """

    def init(params: Params) -> State:
        if unknown := sorted(set(fresh) - set(params)):
            raise ValueError(f"fresh block {unknown[0]!r}: one of {', '.join(params)}")
        stale, newest = split(params)
        table = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], slots, axis=0), stale)
        return State(table, jnp.int32(0), optimizer.init(params), newest)

    def step(state: State, event: Event, batch: Batch) -> tuple[State, jax.Array]:
        value, grads = jax.value_and_grad(loss)(state.at(event.read), batch)
        params, opt_state = descend(optimizer, grads, state.opt_state, state.params, event)
        stale, newest = split(params)
        table = jax.tree.map(lambda t, leaf: t.at[event.write].set(leaf), state.slots, stale)
        return State(table, jnp.asarray(event.write, jnp.int32), opt_state, newest), value

    def split(params: Params) -> tuple[Params, Params]:
        stale = {name: block for name, block in params.items() if name not in fresh}
        return stale, {name: block for name, block in params.items() if name in fresh}

    return Strategy(init, step)
