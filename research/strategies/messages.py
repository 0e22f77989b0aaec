"""What a node's device can ask of all nodes, and what a compression of their messages is."""

from collections.abc import Callable, Container
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from research.strategies.base import Event

Tree = Any


class Nodes(NamedTuple):
    """Collectives over the axis `node`, of pytrees of arrays."""

    sums: Callable[[Tree], Tree]
    gather: Callable[[Tree], Tree]  # leaves (nodes, ...)

    def mean(self, tree: Tree) -> Tree:
        nodes = lax.axis_size("node")
        return jax.tree.map(lambda leaf: leaf / nodes, self.sums(tree))


class Compression(NamedTuple):
    """`apply(nodes, tree, state) -> (mean of the nodes' messages, own message, state)`."""

    init: Callable[[Tree], Any]
    apply: Callable[[Nodes, Tree, Any], tuple[Tree, Tree, Any]]
    messages: Callable[[Tree], tuple[int, ...]]  # bytes a node sends, one after the other
    gathered: bool = False  # every node's message goes to all others; else they are added up


def own_event(event: Event, shared: Container[str]) -> Event:
    """The event as this node's inner strategy sees it: its own of all that is not `shared`."""
    node, staleness = lax.axis_index("node"), event.staleness
    if staleness is not None and jnp.ndim(staleness):  # that of every node
        staleness = staleness[node]
    control = {name: v[node] for name, v in (event.control or {}).items() if name not in shared}
    return event._replace(control=control, staleness=staleness)


def over_nodes(senders: str | None = None) -> Nodes:
    """The collectives; where there are `senders`, of a node's devices each sends its own part."""
    sums, gather = partial(lax.psum, axis_name="node"), partial(lax.all_gather, axis_name="node")
    if senders:
        sums, gather = partial(in_parts, senders=senders), partial(gathered, senders=senders)
    return Nodes(sums, partial(jax.tree.map, gather))


def in_parts(tree: Tree, senders: str) -> Tree:
    """The sum over the nodes, of which each device of a node adds up the part that is its own."""
    vector, tree_of = ravel_pytree(tree)
    return tree_of(_shared(partial(lax.psum, axis_name="node"), vector, senders))


def gathered(leaf: jax.Array, senders: str) -> jax.Array:
    """(nodes, ...), of which each device of a node sends the part that is its own."""
    every = _shared(partial(lax.all_gather, axis_name="node"), leaf.reshape(-1), senders)
    return every.reshape(-1, *leaf.shape)


def _shared(collective: Callable[..., Any], vector: jax.Array, senders: str) -> jax.Array:
    """(..., numbers): the collective of every part, put together again."""
    devices = lax.axis_size(senders)
    padded = jnp.pad(vector, (0, -len(vector) % devices)).reshape(devices, -1)
    own = collective(padded[lax.axis_index(senders)])
    return lax.all_gather(own, senders, axis=own.ndim - 1, tiled=True)[..., : len(vector)]
