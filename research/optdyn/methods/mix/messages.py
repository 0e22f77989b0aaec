"""What a node's device can ask of all nodes, and what nodes send that meet now and then.

With a compression C (`compression.py`) a node sends M = C(x - theta + e), so that x(sent) is
theta + M, and keeps what it left out, e <- x - theta + e - M, for its next message. A `decay` b of
what was kept has b e in the place of e (`sparseloco.py`).
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from optdyn.base.trees import Tree, bytes_of
from optdyn.core import Event, Info, Params


class Collectives(NamedTuple):
    """Collectives over the axis `node`, of pytrees of arrays."""

    sums: Callable[[Tree], Tree]
    gather: Callable[[Tree], Tree]  # leaves (nodes, ...)
    weights: jax.Array | None = None  # (nodes,) of a mean; None: they weigh alike

    def mean(self, tree: Tree) -> Tree:
        """The mean over the nodes."""
        nodes = lax.axis_size("node")
        return jax.tree.map(lambda leaf: leaf / nodes, self.sums(tree))


def mean_of(rows: jax.Array, weights: jax.Array | None) -> jax.Array:
    """The mean of gathered rows, (nodes, ...); with `weights`, (nodes,), their sum by these."""
    if weights is None:
        return rows.mean(axis=0)
    return jnp.tensordot(weights.astype(rows.dtype), rows, axes=1, precision=lax.Precision.HIGHEST)


class Compression(NamedTuple):
    """`apply(nodes, tree, state) -> (mean of the nodes' messages, own message, state)`."""

    init: Callable[[Tree], Tree]
    apply: Callable[[Collectives, Tree, Tree], tuple[Tree, Tree, Tree]]
    messages: Callable[[Tree], tuple[int, ...]]  # bytes a node sends, one after the other
    gathered: bool = False  # every node's message goes to all others; else they are added up

    def part(self, tree: Tree) -> float:
        """Bytes of its messages over those of the arrays, or their shapes."""
        return sum(self.messages(tree)) / bytes_of(tree)


class Messages(NamedTuple):
    """How parameters travel: in which types, or compressed, and from which of a node's devices.

    A node sends its message once: each of its real devices, those of the axis `senders`, sends its
    own part of it and gets the rest from the others. Of a node that is one real device, '', all
    arrays are sent at once, as every message has seconds of its own.
    """

    dtype: str = ""  # of messages and their sums; '': that of the parameters
    blocking: str = ""  # of those that nobody computes behind; '': as all others
    compression: Compression | None = None  # whose messages are in types of their own
    senders: str | None = None

    def travelling(self, x: Params, blocking: bool = False) -> Params:
        """x as it is sent."""
        dtype = (self.blocking if blocking else "") or self.dtype
        return jax.tree.map(lambda leaf: leaf.astype(dtype or leaf.dtype), x)

    def kept(self, x: Params) -> Tree:
        """What messages leave out, before the first: e = 0 and a compression's state, or ()."""
        if not self.compression:
            return ()
        return jax.tree.map(jnp.zeros_like, x), self.compression.init(x)

    def size(self, x: Params, blocking: jax.Array) -> jax.Array:
        """Bytes of a message of x, float32."""
        if self.compression:
            return jnp.float32(sum(self.compression.messages(x)))
        short, usual = (
            size(jax.eval_shape(partial(self.travelling, blocking=now), x)) for now in (True, False)
        )
        return jnp.where(blocking, short, usual)

    def over(self, to: jax.Array | None) -> Collectives:
        """The nodes that a node hears: all, or those that send `to` it, (nodes, k)."""
        every = over_nodes(self.senders)
        return every if to is None else neighbours(every, to)

    def total(
        self,
        x: Params,
        theta: Params,
        kept: Tree,
        blocking: jax.Array,
        to: jax.Array | None = None,
        decay: jax.Array | None = None,
    ) -> tuple[Params, Tree]:
        """The sum over the nodes of what each has sent, x or theta + M, and what is `kept` then."""
        over = self.over(to)

        def usual(x: Params) -> Params:
            return over.sums(self.travelling(x))

        def short(x: Params) -> Params:
            now = over.sums(self.travelling(x, blocking=True))
            return jax.tree.map(lambda now, leaf: now.astype(leaf.dtype), now, self.travelling(x))

        if self.compression:
            return self._compressed(over, self.compression, x, theta, kept, decay)
        return (lax.cond(blocking, short, usual, x) if self.blocking else usual(x)), kept

    def _compressed(
        self,
        over: Collectives,
        compression: Compression,
        x: Params,
        theta: Params,
        kept: Tree,
        decay: jax.Array | None,
    ) -> tuple[Params, Tree]:
        (center, _), (error, state) = theta, kept
        if decay is not None:
            error = jax.tree.map(lambda leaf: (decay * leaf).astype(leaf.dtype), error)
        whole = jax.tree.map(lambda x, center, error: x - center + error, x, center, error)
        mean, own, state = compression.apply(over, whole, state)
        error = jax.tree.map(jnp.subtract, whole, own)
        nodes = lax.axis_size("node")
        return jax.tree.map(lambda c, m: nodes * (c + m), center, mean), (error, state)


def size(tree: Tree) -> jax.Array:
    """Bytes of the arrays, float32."""
    return jnp.float32(bytes_of(tree))


def with_sent(info: Info, sent: jax.Array) -> Info:
    """The info with the bytes that this node sends beside those inside it; alone it sends none."""
    own = sent if lax.axis_size("node") > 1 else jnp.zeros_like(sent)
    return info | {"sent_bytes": own + info.get("sent_bytes", 0.0)}


def own_event(event: Event) -> Event:
    """The event as this node's inner rule sees it."""
    node, staleness = lax.axis_index("node"), event.staleness
    if staleness is not None and jnp.ndim(staleness):  # that of every node
        staleness = staleness[node]
    own = jax.tree.map(lambda leaf: leaf[node], event.choice.inner)
    return event._replace(choice=own, staleness=staleness)


def over_nodes(senders: str | None = None) -> Collectives:
    """The collectives; where there are `senders`, of a node's devices each sends its own part."""
    sums, gather = partial(lax.psum, axis_name="node"), partial(lax.all_gather, axis_name="node")
    if senders:
        return Collectives(
            partial(in_parts, senders=senders),
            partial(jax.tree.map, partial(gathered, senders=senders)),
        )
    if senders == "":
        return Collectives(partial(at_once, sums), partial(_gathered_at_once, gather))
    return Collectives(sums, partial(jax.tree.map, gather))


def neighbours(every: Collectives, to: jax.Array) -> Collectives:
    """Collectives whose sum is P sum_j W_ij x_j, and whose mean is sum_j W_ij x_j, for P nodes.

    W_ij is the share of node j's messages, (nodes, k), that go to node i, its own among them. Its
    rows sum to 1 where all are sent as many messages as they send.
    """
    nodes = lax.axis_size("node")
    row = nodes * (to == lax.axis_index("node")).mean(axis=1)

    def weighted(leaf: jax.Array) -> jax.Array:  # in float32, which accelerators would cut
        own = row.astype(leaf.dtype)
        return jnp.tensordot(own, leaf, axes=1, precision=lax.Precision.HIGHEST)

    def sums(tree: Tree) -> Tree:
        return jax.tree.map(weighted, every.gather(tree))

    return every._replace(sums=sums, weights=row / nodes)


def at_once(collective: Callable[[jax.Array], jax.Array], tree: Tree) -> Tree:
    """The collective of every array, (..., its shape), as one of all arrays of a type."""
    leaves, tree_of = jax.tree.flatten(tree)
    found = list(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        own = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        vector = collective(jnp.concatenate([leaves[i].reshape(-1) for i in own]))
        ends = list(accumulate(leaves[i].size for i in own))[:-1]
        for i, part in zip(own, jnp.split(vector, ends, axis=-1), strict=True):
            found[i] = part.reshape(*vector.shape[:-1], *leaves[i].shape)
    return jax.tree.unflatten(tree_of, found)


def _gathered_at_once(gather: Callable[[jax.Array], jax.Array], tree: Tree) -> Tree:
    """`at_once` where nothing is added up: arrays of several types travel together, as bytes."""
    if len({leaf.dtype for leaf in jax.tree.leaves(tree)}) == 1:
        return at_once(gather, tree)
    byte = partial(lax.bitcast_convert_type, new_dtype=jnp.uint8)
    every = at_once(gather, jax.tree.map(byte, tree))
    return jax.tree.map(lambda leaf, own: lax.bitcast_convert_type(leaf, own.dtype), every, tree)


def in_parts(tree: Tree, senders: str) -> Tree:
    """The sum over the nodes, of which each device of a node adds up the part that is its own."""
    vector, tree_of = ravel_pytree(tree)
    return tree_of(_shared(partial(lax.psum, axis_name="node"), vector, senders))


def gathered(leaf: jax.Array, senders: str) -> jax.Array:
    """(nodes, ...), of which each device of a node sends the part that is its own."""
    every = _shared(partial(lax.all_gather, axis_name="node"), leaf.reshape(-1), senders)
    return every.reshape(-1, *leaf.shape)


def _shared(collective: Callable[..., jax.Array], vector: jax.Array, senders: str) -> jax.Array:
    """(..., numbers): the collective of every part, put together again."""
    devices = lax.axis_size(senders)
    padded = jnp.pad(vector, (0, -len(vector) % devices)).reshape(devices, -1)
    own = collective(padded[lax.axis_index(senders)])
    return lax.all_gather(own, senders, axis=own.ndim - 1, tiled=True)[..., : len(vector)]
