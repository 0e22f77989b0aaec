"""Named axes simulated on one device: the rule of one device, mapped over all of them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from optdyn.base.trees import Tree
from optdyn.core import Batch, Event, Info, Params, Rule, relative_spread


class NodeStates(NamedTuple):
    state: Tree  # leaves (nodes, ...)

    @property
    def params(self) -> Params:
        """The parameters of the first node."""
        return jax.tree.map(lambda leaf: leaf[0], self.node_params)

    @property
    def node_params(self) -> Params:
        """The parameters of all nodes, leaves (nodes, ...)."""
        return jax.vmap(lambda state: state.params)(self.state)

    @property
    def first(self) -> Tree:
        """The state of the first node."""
        return first_state(self)

    def logged(self) -> dict[str, float]:
        return {"node_distance": relative_spread(self.node_params)}


def over_nodes(rule: Rule, nodes: int, devices: int) -> Rule[NodeStates]:
    """Returns the rule on so many nodes of so many devices, each with its part of the batch.

    The devices of a node hold the same state, so one a node is kept. `rule.step` sees the axes
    `node` and `data`, and must leave states equal along `data`.
    """
    node_step = over_workers(rule, devices).step

    def init(params: Params) -> NodeStates:
        state = rule.init(params)
        return NodeStates(jax.tree.map(lambda leaf: jnp.repeat(leaf[None], nodes, axis=0), state))

    def step(state: NodeStates, event: Event, batch: Batch) -> tuple[NodeStates, Info]:
        steps = jax.vmap(node_step, (0, None, 0), axis_name="node")
        after, info = steps(state.state, event, _split(batch, nodes))
        return NodeStates(after), _mean_info(info)

    return Rule(init, step)


def over_workers(rule: Rule, workers: int) -> Rule:
    """Returns the rule on devices of the axis `data`, each with its part of the batch."""

    def step(state: Tree, event: Event, batch: Batch) -> tuple[Tree, Info]:
        steps = jax.vmap(rule.step, (None, None, 0), (None, 0), axis_name="data")
        after, info = steps(state, event, _split(batch, workers))
        return after, _mean_info(info)

    return Rule(rule.init, step)


def _mean_info(info: Info) -> Info:
    return jax.tree.map(lambda leaf: leaf.mean(axis=0), info)


def _split(batch: Batch, parts: int) -> Batch:
    return jax.tree.map(lambda leaf: leaf.reshape(parts, -1, *leaf.shape[1:]), batch)


def one_node(rule: Rule) -> Rule[NodeStates]:
    """Returns the rule of one real device, whose state is that of one node, `NodeStates`."""

    def step(nodes: NodeStates, event: Event, batch: Batch) -> tuple[NodeStates, Info]:
        after, info = rule.step(first_state(nodes), event, batch)
        return single_node(after), info

    return Rule(lambda params: single_node(rule.init(params)), step)


def first_state(nodes: NodeStates) -> Tree:
    return jax.tree.map(lambda leaf: leaf[0], nodes.state)


def single_node(state: Tree) -> NodeStates:
    return NodeStates(jax.tree.map(lambda leaf: leaf[None], state))
