"""How nodes reach one another (`Collectives`), and what their messages are made of (`Messages`).

With a compression C a node sends M = C(x - theta + e), so that x(sent) is theta + M, and keeps what
that left out, e <- x - theta + e - M, for its next message. With a `decay` b, b e stands for e.

    bfloat16   v rounded to 8 bits of precision; messages are added up on their way, rounded too
    top_k      the share s of an array's numbers that is largest in absolute value
    sign       sign(v) mean|v|, a bit a number (EF-signSGD, Karimireddy et al., arXiv 1901.09847)
    powersgd   low rank (Vogels et al., arXiv 1905.13727)

Each array is compressed by itself. Sparse numbers and signs cannot be added up on their way: each
node's message goes to all others.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from math import ceil, prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from optdyn.base.trees import Array, Tree, bytes_of
from optdyn.core import Event, Info, Params
from optdyn.core.snapshots import read_first, row


class Collectives(NamedTuple):
    """Sums and gathers of pytrees over the axis `node`."""

    sums: Callable[[Tree], Tree]
    gather: Callable[[Tree], Tree]  # leaves (nodes, ...)
    weights: jax.Array | None = None  # (nodes,) of a mean; None: all weigh alike

    def mean(self, tree: Tree) -> Tree:
        nodes = lax.axis_size("node")
        return jax.tree.map(lambda leaf: leaf / nodes, self.sums(tree))

    def over_graph(self, to: jax.Array) -> "Collectives":
        """Returns collectives whose mean is sum_j W_ij x_j, and whose sum is P times that.

        W_ij is the share of node j's messages that go to node i. `to`, (nodes, k), has the receiver
        of each message, a node itself among them.
        """
        nodes = lax.axis_size("node")
        row = nodes * (to == lax.axis_index("node")).mean(axis=1)

        def weighted(leaf: jax.Array) -> jax.Array:  # in float32, which accelerators would cut
            mine = row.astype(leaf.dtype)
            return jnp.tensordot(mine, leaf, axes=1, precision=lax.Precision.HIGHEST)

        def sums(tree: Tree) -> Tree:
            return jax.tree.map(weighted, self.gather(tree))

        return self._replace(sums=sums, weights=row / nodes)


def _sum(tree: Tree) -> Tree:
    return lax.psum(tree, "node")


def _gather(tree: Tree) -> Tree:
    return jax.tree.map(partial(lax.all_gather, axis_name="node"), tree)


def as_one_message(collective: Callable[[jax.Array], jax.Array], tree: Tree) -> Tree:
    """Returns the collective of each array, (..., its shape), made by one for all of a type."""
    leaves, treedef = jax.tree.flatten(tree)
    results = list(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        alike = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        vector = collective(jnp.concatenate([leaves[i].reshape(-1) for i in alike]))
        ends = list(accumulate(leaves[i].size for i in alike))[:-1]
        for i, part in zip(alike, jnp.split(vector, ends, axis=-1), strict=True):
            results[i] = part.reshape(*vector.shape[:-1], *leaves[i].shape)
    return jax.tree.unflatten(treedef, results)


def _gather_as_one_message(tree: Tree) -> Tree:
    if len({leaf.dtype for leaf in jax.tree.leaves(tree)}) == 1:
        return as_one_message(_gather, tree)
    byte = partial(lax.bitcast_convert_type, new_dtype=jnp.uint8)
    rows = as_one_message(_gather, jax.tree.map(byte, tree))
    return jax.tree.map(lambda row, leaf: lax.bitcast_convert_type(row, leaf.dtype), rows, tree)


SIMULATED = Collectives(_sum, _gather)
# For nodes of one real device: all arrays are one message, as messages have latencies.
AS_ONE_MESSAGE = Collectives(partial(as_one_message, _sum), _gather_as_one_message)


def sharded(axis: str) -> Collectives:
    """Returns collectives in which each of a node's devices along `axis` sends a part."""
    gather = partial(gather_in_parts, axis=axis)
    return Collectives(partial(sum_in_parts, axis=axis), partial(jax.tree.map, gather))


def sum_in_parts(tree: Tree, axis: str) -> Tree:
    vector, unravel = ravel_pytree(tree)
    return unravel(_in_parts(_sum, vector, axis))


def gather_in_parts(leaf: jax.Array, axis: str) -> jax.Array:
    """Returns the nodes' arrays, (nodes, ...), of which each device of a node sends a part."""
    return _in_parts(_gather, leaf.reshape(-1), axis).reshape(-1, *leaf.shape)


def _in_parts(collective: Callable[..., jax.Array], vector: jax.Array, axis: str) -> jax.Array:
    devices = lax.axis_size(axis)
    padded = jnp.pad(vector, (0, -len(vector) % devices)).reshape(devices, -1)
    part = collective(padded[lax.axis_index(axis)])
    return lax.all_gather(part, axis, axis=part.ndim - 1, tiled=True)[..., : len(vector)]


def weighted_mean(rows: jax.Array, weights: jax.Array | None) -> jax.Array:
    """Returns the mean of rows, (nodes, ...); with `weights`, (nodes,), their weighted sum."""
    if weights is None:
        return rows.mean(axis=0)
    return jnp.tensordot(weights.astype(rows.dtype), rows, axes=1, precision=lax.Precision.HIGHEST)


class Compression(NamedTuple):
    """`apply(nodes, tree, state) -> (mean of the nodes' messages, this node's message, state)`."""

    init: Callable[[Tree], Tree]
    apply: Callable[[Collectives, Tree, Tree], tuple[Tree, Tree, Tree]]
    messages: Callable[[Tree], tuple[int, ...]]  # bytes of the messages that a node sends in turn
    gathered: bool = False  # each message goes to all other nodes; else they are added up

    def ratio(self, tree: Tree) -> float:
        """Returns the bytes of the messages over those of the arrays, or their shapes."""
        return sum(self.messages(tree)) / bytes_of(tree)


class Messages(NamedTuple):
    """How parameters travel: in which types, or compressed, and over which collectives."""

    dtype: str = ""  # type of messages and their sums; '': that of the parameters
    blocking: str = ""  # type of messages that all nodes wait for; '': `dtype`
    compression: Compression | None = None  # whose messages have types by themselves
    collectives: Collectives = SIMULATED

    def cast(self, x: Params, blocking: bool = False) -> Params:
        dtype = (self.blocking if blocking else "") or self.dtype
        return jax.tree.map(lambda leaf: leaf.astype(dtype or leaf.dtype), x)

    def init_errors(self, x: Params) -> Tree:
        """Returns e = 0 and the compression's state, before the first message; () without one."""
        if not self.compression:
            return ()
        return jax.tree.map(jnp.zeros_like, x), self.compression.init(x)

    def size(self, x: Params, blocking: jax.Array) -> jax.Array:
        """Returns the bytes of a message of x, float32."""
        if self.compression:
            return jnp.float32(sum(self.compression.messages(x)))
        short, full = (
            size(jax.eval_shape(partial(self.cast, blocking=now), x)) for now in (True, False)
        )
        return jnp.where(blocking, short, full)

    def total(
        self,
        x: Params,
        theta: Params,
        errors: Tree,
        blocking: jax.Array,
        to: jax.Array | None = None,
        decay: jax.Array | None = None,
    ) -> tuple[Params, Tree]:
        """Returns the sum of the nodes' messages, x or theta + M each, and the errors after it.

        `to`, (nodes, k): whom each node sends to; the sum is then over those that send to this one.
        """
        nodes = self.collectives if to is None else self.collectives.over_graph(to)
        if self.compression:
            (center, _), (error, state) = theta, errors
            if decay is not None:
                error = jax.tree.map(lambda leaf: (decay * leaf).astype(leaf.dtype), error)
            gap = jax.tree.map(lambda x, center, error: x - center + error, x, center, error)
            mean, message, state = self.compression.apply(nodes, gap, state)
            error, count = jax.tree.map(jnp.subtract, gap, message), lax.axis_size("node")
            return jax.tree.map(lambda c, m: count * (c + m), center, mean), (error, state)

        def full(x: Params) -> Params:
            return nodes.sums(self.cast(x))

        def short(x: Params) -> Params:
            now = nodes.sums(self.cast(x, blocking=True))
            return jax.tree.map(lambda now, leaf: now.astype(leaf.dtype), now, self.cast(x))

        return (lax.cond(blocking, short, full, x) if self.blocking else full(x)), errors


def size(tree: Tree) -> jax.Array:
    """Returns the bytes of the arrays, float32."""
    return jnp.float32(bytes_of(tree))


def add_sent_bytes(info: Info, sent: jax.Array) -> Info:
    """Returns the info with the bytes that this node sends added; the only node sends none."""
    between = sent if lax.axis_size("node") > 1 else jnp.zeros_like(sent)
    return info | {"sent_bytes": between + info.get("sent_bytes", 0.0)}


def messages_to_others(to: Array) -> jax.Array:
    """Returns how many of this node's messages go to others, float32; `to`: (nodes, k)."""
    node = lax.axis_index("node")
    return (jnp.asarray(to)[node] != node).sum().astype(jnp.float32)


def event_of_node(event: Event) -> Event:
    """Returns the event as the inner rule of this node sees it."""
    node, staleness = lax.axis_index("node"), event.staleness
    if staleness is not None and jnp.ndim(staleness):  # one for each node
        staleness = staleness[node]
    plan = jax.tree.map(lambda leaf: leaf[node], event.plan.inner)
    return event._replace(plan=plan, staleness=staleness)


FULL_BITS = 32  # bits of uncompressed numbers


class Quantizer(NamedTuple):
    encode: Callable[[jax.Array], Tree]
    decode: Callable[[Tree, int], jax.Array]  # (code, count of numbers) -> (count,)
    bytes: Callable[[int], int]  # count of numbers -> bytes of their code


def quantizer(bits: int, block: int) -> Quantizer:
    """Returns the quantizer to b = 2 to 8 `bits`, with a scale for each `block` of numbers.

        s = max |v|                          of a block of B numbers, sent as a float32
        Q_b v = s sign(v) nearest(|v| / s)   of 2^(b-1) levels; the sign is the other bit

    0 is a level, so that |v - Q_b v| <= |v|, as error feedback needs it. With 32 bits numbers stay
    float32. Streaming DiLoCo (arXiv 2501.18512) has 4 bits.
    """
    if bits == FULL_BITS:
        return Quantizer(lambda v: v, lambda v, size: v, lambda size: 4 * size)
    known = jnp.asarray(levels(bits), jnp.float32)
    between = (known[1:] + known[:-1]) / 2

    def encode(v: jax.Array) -> tuple[jax.Array, jax.Array]:
        blocks = jnp.pad(v, (0, -v.size % block)).reshape(-1, block)
        scale = jnp.abs(blocks).max(axis=1)
        shares = jnp.abs(blocks) / jnp.where(scale > 0, scale, 1.0)[:, None]
        level = jnp.searchsorted(between, shares.reshape(-1)[: v.size])
        code = (level + (v < 0) * len(known)).astype(jnp.uint8)
        return jnp.packbits(jnp.unpackbits(code[:, None], axis=1)[:, -bits:]), scale

    def decode(code: tuple[jax.Array, jax.Array], size: int) -> jax.Array:
        packed, scale = code
        rows = jnp.unpackbits(packed, count=size * bits).reshape(size, bits)
        number = jnp.packbits(jnp.pad(rows, ((0, 0), (8 - bits, 0))), axis=1)[:, 0]
        level, is_negative = number % len(known), number >= len(known)
        share = jnp.where(is_negative, -known[level], known[level])
        return (share * jnp.repeat(scale, block)[:size]).astype(scale.dtype)

    return Quantizer(encode, decode, lambda size: -(-size * bits // 8) + 4 * -(-size // block))


def levels(bits: int) -> np.ndarray:
    """Returns the absolute values, over the scale, of numbers of b bits, (2^(b - 1),).

    4 bits are E3M0, three of exponent and none of mantissa: 0, 2^-6, 2^-5, ..., 1/2, 1. Others are
    0, 1/L, 2/L, ..., 1 with L = 2^(b-1) - 1.
    """
    if bits == 4:
        return np.array([0.0, *(2.0**-j for j in range(6, -1, -1))])
    return np.linspace(0.0, 1.0, 2 ** (bits - 1))


def powersgd(rank: int) -> Compression:
    """Returns the compression to low rank, with warm start (arXiv 1905.13727, Algorithm 1).

        P <- mean_i M_i Q, orthogonalized      M_i: (rows, columns) of node i, Q of the last message
        Q <- mean_i M_i' P
        M ~  P Q'                              of rank r, the same in all nodes

    P Q' is that of mean_i M_i, so it does not depend on how a batch is divided over nodes. A node's
    message is P P' M_i. An array is the matrix of its last axis by all others, transposed if it has
    more rows than columns, so that at full rank P is square and nothing is left out. Vectors, and
    matrices that would not shrink, are sent whole. The state is Q, at first normal numbers that are
    the same in all nodes.
    """

    def low(leaf: jax.Array) -> bool:
        rows, columns = _shape(leaf)
        return rank * (rows + columns) < rows * columns

    def init(tree: Tree) -> list[jax.Array]:
        shapes = [_shape(leaf) for leaf in jax.tree.leaves(tree) if low(leaf)]
        keys = jax.random.split(jax.random.key(0), len(shapes))
        return [jax.random.normal(k, (n, rank)) for k, (_, n) in zip(keys, shapes, strict=True)]

    def apply(
        nodes: Collectives, tree: Tree, state: list[jax.Array]
    ) -> tuple[Tree, Tree, list[jax.Array]]:
        leaves, treedef = jax.tree.flatten(tree)
        matrices = [_matrix(leaf) for leaf in leaves if low(leaf)]
        rest = [leaf for leaf in leaves if not low(leaf)]
        *both, rest, state = low_rank(nodes, matrices, state, rest)
        means, messages, whole = *map(iter, both), iter(rest)
        mean = [_unmatrix(leaf, next(means)) if low(leaf) else next(whole) for leaf in leaves]
        message = [_unmatrix(leaf, next(messages)) if low(leaf) else leaf for leaf in leaves]
        return jax.tree.unflatten(treedef, mean), jax.tree.unflatten(treedef, message), state

    def messages(tree: Tree) -> tuple[int, ...]:
        leaves = jax.tree.leaves(tree)
        shapes = [_shape(leaf) for leaf in leaves if low(leaf)]
        whole = sum(leaf.size for leaf in leaves if not low(leaf))
        first = 4 * (whole + rank * sum(m for m, _ in shapes))
        return (first, 4 * rank * sum(n for _, n in shapes)) if shapes else (first,)

    return Compression(init, apply, messages)


def low_rank(
    nodes: Collectives, matrices: list[jax.Array], state: list[jax.Array], whole: list[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array], list[jax.Array]]:
    """Returns the messages' means, this node's messages, means of the `whole` arrays, the state."""
    left = [m @ q for m, q in zip(matrices, state, strict=True)]
    left, whole = nodes.mean((left, whole))
    left = [jnp.linalg.qr(p)[0] for p in left]
    factors = [m.T @ p for m, p in zip(matrices, left, strict=True)]
    right = nodes.mean(factors) if factors else []
    means = [p @ q.T for p, q in zip(left, right, strict=True)]
    return means, [p @ q.T for p, q in zip(left, factors, strict=True)], whole, right


def _shape(leaf: jax.Array) -> tuple[int, int]:
    """Returns rows and columns of the matrix, rows <= columns; a vector has one row."""
    columns = leaf.shape[-1] if leaf.ndim else 1
    rows = prod(leaf.shape[:-1])
    return min(rows, columns), max(rows, columns)


def _matrix(leaf: jax.Array) -> jax.Array:
    matrix = leaf.reshape(-1, leaf.shape[-1])
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T


def _unmatrix(leaf: jax.Array, matrix: jax.Array) -> jax.Array:
    wide = leaf.size <= leaf.shape[-1] ** 2
    return (matrix if wide else matrix.T).reshape(leaf.shape)


COMPRESSIONS = ("", "bfloat16", "top_k", "sign", "powersgd")
QUANTIZABLE = ("", "top_k")  # those whose numbers may have fewer bits


def bfloat16() -> Compression:
    """Returns the rounding to bfloat16, of messages and of their sums."""

    def apply(nodes: Collectives, tree: Tree, state: Tree) -> tuple[Tree, Tree, Tree]:
        short = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree)
        total, message = (
            jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), rounded, tree)
            for rounded in (nodes.sums(short), short)
        )
        return jax.tree.map(lambda leaf: leaf / lax.axis_size("node"), total), message, state

    return Compression(lambda tree: (), apply, lambda tree: (2 * sum(_sizes(tree)),))


def quantized(sent: Quantizer) -> Compression:
    def decode(code: Tree, like: jax.Array) -> jax.Array:
        return sent.decode(code, like.size).astype(like.dtype).reshape(like.shape)

    return _coded(lambda leaf: sent.encode(leaf.reshape(-1)), decode, sent.bytes)


def count_sent(share: float, size: int) -> int:
    """Returns share * size rounded up, at least 1: 0.07 of 100 numbers are 7."""
    return max(ceil(round(share * size, 9)), 1)  # in floats 0.07 * 100 is more than 7


def top_k(share: float, sent: Quantizer) -> Compression:
    """Returns the compression to the largest numbers of an array, each with its place, an int32."""

    def encode(leaf: jax.Array) -> tuple[Tree, jax.Array]:
        flat = leaf.reshape(-1)
        _, where = jax.lax.top_k(jnp.abs(flat), count_sent(share, leaf.size))
        return sent.encode(flat[where]), where.astype(jnp.int32)

    def decode(code: tuple[Tree, jax.Array], like: jax.Array) -> jax.Array:
        values, where = code
        numbers = sent.decode(values, count_sent(share, like.size)).astype(like.dtype)
        return jnp.zeros(like.size, like.dtype).at[where].set(numbers).reshape(like.shape)

    def count(size: int) -> int:
        return sent.bytes(count_sent(share, size)) + 4 * count_sent(share, size)

    return _coded(encode, decode, count)


def sign() -> Compression:
    """Returns the compression to one bit a number and one float32 an array."""

    def encode(leaf: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.packbits(leaf.reshape(-1) >= 0), jnp.mean(jnp.abs(leaf))

    def decode(code: tuple[jax.Array, jax.Array], like: jax.Array) -> jax.Array:
        bits, scale = code
        signs = 2 * jnp.unpackbits(bits, count=like.size).astype(like.dtype) - 1
        return (scale * signs).reshape(like.shape)

    return _coded(encode, decode, lambda size: ceil(size / 8) + 4)


def compress_with_feedback(
    compression: Compression, tree: Tree, errors: Tree, i: Array
) -> tuple[Tree, Tree]:
    """Returns the message of sender i, and the table of errors after it, (senders, ...)."""
    error = read_first(row, errors, jnp.asarray(i))
    whole = jax.tree.map(jnp.add, tree, error)
    itself = Collectives(lambda tree: tree, lambda tree: jax.tree.map(lambda x: x[None], tree))
    _, message, _ = compression.apply(itself, whole, ())
    left = jax.tree.map(lambda table, v, m: table.at[i].set(v - m), errors, whole, message)
    return message, left


def _coded(
    encode: Callable[..., Tree], decode: Callable[..., jax.Array], size: Callable[[int], int]
) -> Compression:
    def apply(nodes: Collectives, tree: Tree, state: Tree) -> tuple[Tree, Tree, Tree]:
        leaves, treedef = jax.tree.flatten(tree)
        codes = [encode(leaf) for leaf in leaves]
        mean, message = list[jax.Array](), list[jax.Array]()
        for leaf, code, rows in zip(leaves, codes, nodes.gather(codes), strict=True):
            mean.append(weighted_mean(jax.vmap(partial(decode, like=leaf))(rows), nodes.weights))
            message.append(decode(code, leaf))
        return jax.tree.unflatten(treedef, mean), jax.tree.unflatten(treedef, message), state

    def messages(tree: Tree) -> tuple[int, ...]:
        return (sum(map(size, _sizes(tree))),)

    return Compression(lambda tree: (), apply, messages, gathered=True)


def _sizes(tree: Tree) -> list[int]:
    return [leaf.size for leaf in jax.tree.leaves(tree)]
