"""Named axes on one device: the update rule of one device, mapped over all of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from research.strategies.base import Batch, Event, Params, Strategy


class Nodes(NamedTuple):
    """States of all nodes."""

    state: Any  # leaves (nodes, ...)

    @property
    def params(self) -> Params:
        """Those of the first node."""
        return jax.tree.map(lambda leaf: leaf[0], self.state.params)


def over_nodes(strategy: Strategy, nodes: int, local: int) -> Strategy:
    """The strategy on `nodes` x `local` devices; each takes its even part of the batch, in order.

    The devices of a node hold the same state, so one a node is kept. `strategy.step` sees the axes
    `node` and `local` and must leave every state equal along `local`.
    """

    def init(params: Params) -> Nodes:
        state = strategy.init(params)
        return Nodes(jax.tree.map(lambda leaf: jnp.repeat(leaf[None], nodes, axis=0), state))

    def step(state: Nodes, event: Event, batch: Batch) -> tuple[Nodes, jax.Array]:
        def split(leaf: jax.Array) -> jax.Array:
            return leaf.reshape(nodes, local, -1, *leaf.shape[1:])

        devices = jax.vmap(strategy.step, (None, None, 0), (None, 0), axis_name="local")
        every = jax.vmap(devices, (0, None, 0), axis_name="node")
        after, losses = every(state.state, event, jax.tree.map(split, batch))
        return Nodes(after), losses.mean()

    return Strategy(init, step)


def over_workers(strategy: Strategy, workers: int) -> Strategy:
    """The strategy on `workers` devices of the axis `data` that all see the whole batch."""

    def step(state: Any, event: Event, batch: Batch) -> tuple[Any, jax.Array]:
        every = jax.vmap(
            lambda _: strategy.step(state, event, batch),
            out_axes=(None, None),
            axis_name="data",
        )
        return every(jnp.arange(workers))

    return Strategy(strategy.init, step)


def one_node(strategy: Strategy) -> Strategy:
    """The strategy of one real device, its state kept as that of one node among `Nodes`."""

    def init(params: Params) -> Nodes:
        return Nodes(jax.tree.map(lambda leaf: leaf[None], strategy.init(params)))

    def step(state: Nodes, event: Event, batch: Batch) -> tuple[Nodes, jax.Array]:
        own = jax.tree.map(lambda leaf: leaf[0], state.state)
        after, loss = strategy.step(own, event, batch)
        return Nodes(jax.tree.map(lambda leaf: leaf[None], after)), loss

    return Strategy(init, step)
