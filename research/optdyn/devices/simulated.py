"""Named axes on one device: the update rule of one device, mapped over all of them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from optdyn.base.trees import Tree
from optdyn.core import Batch, Event, Info, Params, Rule, relative_spread


class NodeStates(NamedTuple):
    """States of all nodes."""

    state: Tree  # leaves (nodes, ...)

    @property
    def params(self) -> Params:
        """The parameters of the first node."""
        return jax.tree.map(lambda leaf: leaf[0], self.every)

    @property
    def every(self) -> Params:
        """The parameters of all nodes, leaves (nodes, ...)."""
        return jax.vmap(lambda state: state.params)(self.state)

    def logged(self) -> dict[str, float]:
        """How far nodes are from their mean."""
        return {"node_distance": relative_spread(self.every)}


def over_nodes(rule: Rule, nodes: int, devices: int) -> Rule[NodeStates]:
    """The rule on `nodes` nodes of so many devices; each is given its part of the batch.

    Parts have one size and follow one another. The devices of a node hold the same state, so one a
    node is kept. `rule.step` sees the axes `node` and `data` and must leave every state equal
    along `data`.
    """
    inside = over_workers(rule, devices).step

    def init(params: Params) -> NodeStates:
        state = rule.init(params)
        return NodeStates(jax.tree.map(lambda leaf: jnp.repeat(leaf[None], nodes, axis=0), state))

    def step(state: NodeStates, event: Event, batch: Batch) -> tuple[NodeStates, Info]:
        every = jax.vmap(inside, (0, None, 0), axis_name="node")
        after, info = every(state.state, event, _split(batch, nodes))
        return NodeStates(after), _mean_info(info)

    return Rule(init, step)


def over_workers(rule: Rule, workers: int) -> Rule:
    """The rule on `workers` devices of the axis `data`, each given its part of the batch."""

    def step(state: Tree, event: Event, batch: Batch) -> tuple[Tree, Info]:
        every = jax.vmap(rule.step, (None, None, 0), (None, 0), axis_name="data")
        after, info = every(state, event, _split(batch, workers))
        return after, _mean_info(info)

    return Rule(rule.init, step)


def _mean_info(info: Info) -> Info:
    """The means of what each device says, or each node."""
    return jax.tree.map(lambda leaf: leaf.mean(axis=0), info)


def _split(batch: Batch, parts: int) -> Batch:
    return jax.tree.map(lambda leaf: leaf.reshape(parts, -1, *leaf.shape[1:]), batch)


def one_node(rule: Rule) -> Rule[NodeStates]:
    """The rule of one real device, its state kept as that of one node among `NodeStates`."""

    def step(nodes: NodeStates, event: Event, batch: Batch) -> tuple[NodeStates, Info]:
        after, info = rule.step(first_state(nodes), event, batch)
        return single_node(after), info

    return Rule(lambda params: single_node(rule.init(params)), step)


def first_state(nodes: NodeStates) -> Tree:
    """The state of the first node."""
    return jax.tree.map(lambda leaf: leaf[0], nodes.state)


def single_node(state: Tree) -> NodeStates:
    """The state of one node as that of all of them."""
    return NodeStates(jax.tree.map(lambda leaf: leaf[None], state))
