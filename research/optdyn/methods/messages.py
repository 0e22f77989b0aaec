"""What a node's device asks of all nodes, and what nodes send that meet now and then.

With a compression C a node sends M = C(x - theta + e), so that x(sent) is theta + M, and keeps what
it left out, e <- x - theta + e - M, for its next message; a `decay` b has b e in the place of e.

    bfloat16   v rounded to 8 bits of precision; messages are added up on their way, rounded too
    top_k      the share s of an array's numbers that is largest in absolute value
    sign       sign(v) mean|v|, a bit a number (EF-signSGD, Karimireddy et al., arXiv 1901.09847)
    powersgd   low rank (Vogels et al., arXiv 1905.13727)

All numbers of an array, or those that `top_k` keeps, may be of a few bits (`numbers`). Arrays are
compressed each by itself. Sparse numbers and signs cannot be added up on their way: every node's
message goes to all others.
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
    """Collectives over the axis `node`, of pytrees of arrays: `SIMULATED`, `AT_ONCE`, `sharded`."""

    sums: Callable[[Tree], Tree]
    gather: Callable[[Tree], Tree]  # leaves (nodes, ...)
    weights: jax.Array | None = None  # (nodes,) of a mean; None: they weigh alike

    def mean(self, tree: Tree) -> Tree:
        """The mean over the nodes."""
        nodes = lax.axis_size("node")
        return jax.tree.map(lambda leaf: leaf / nodes, self.sums(tree))

    def among(self, to: jax.Array) -> "Collectives":
        """Those whose sum is P sum_j W_ij x_j, and whose mean is sum_j W_ij x_j, for P nodes.

        W_ij is the share of node j's messages, (nodes, k), that go to node i, its own among them.
        Its rows sum to 1 where all are sent as many messages as they send.
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


def at_once(collective: Callable[[jax.Array], jax.Array], tree: Tree) -> Tree:
    """The collective of every array, (..., its shape), as one of all arrays of a type."""
    leaves, tree_of = jax.tree.flatten(tree)
    found = list(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        alike = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        vector = collective(jnp.concatenate([leaves[i].reshape(-1) for i in alike]))
        ends = list(accumulate(leaves[i].size for i in alike))[:-1]
        for i, part in zip(alike, jnp.split(vector, ends, axis=-1), strict=True):
            found[i] = part.reshape(*vector.shape[:-1], *leaves[i].shape)
    return jax.tree.unflatten(tree_of, found)


def _gathered_at_once(tree: Tree) -> Tree:
    """`at_once` where nothing is added up: arrays of several types travel together, as bytes."""
    if len({leaf.dtype for leaf in jax.tree.leaves(tree)}) == 1:
        return at_once(_gather, tree)
    byte = partial(lax.bitcast_convert_type, new_dtype=jnp.uint8)
    rows = at_once(_gather, jax.tree.map(byte, tree))
    return jax.tree.map(lambda row, leaf: lax.bitcast_convert_type(row, leaf.dtype), rows, tree)


SIMULATED = Collectives(_sum, _gather)
# Of nodes that are one real device each: all arrays are one message, as messages have latencies.
AT_ONCE = Collectives(partial(at_once, _sum), _gathered_at_once)


def sharded(axis: str) -> Collectives:
    """Those of nodes with several real devices, of an axis: a node sends its message once.

    Each of its devices sends a part of it and gets the rest from the others.
    """
    gather = partial(gathered, axis=axis)
    return Collectives(partial(in_parts, axis=axis), partial(jax.tree.map, gather))


def in_parts(tree: Tree, axis: str) -> Tree:
    """The sum over the nodes, of which each device of a node adds up the part that is its own."""
    vector, tree_of = ravel_pytree(tree)
    return tree_of(_shared(_sum, vector, axis))


def gathered(leaf: jax.Array, axis: str) -> jax.Array:
    """(nodes, ...), of which each device of a node sends the part that is its own."""
    return _shared(_gather, leaf.reshape(-1), axis).reshape(-1, *leaf.shape)


def _shared(collective: Callable[..., jax.Array], vector: jax.Array, axis: str) -> jax.Array:
    """(..., numbers): the collective of every part, put together again."""
    devices = lax.axis_size(axis)
    padded = jnp.pad(vector, (0, -len(vector) % devices)).reshape(devices, -1)
    part = collective(padded[lax.axis_index(axis)])
    return lax.all_gather(part, axis, axis=part.ndim - 1, tiled=True)[..., : len(vector)]


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
    """How parameters travel: in which types, or compressed, and over which collectives."""

    dtype: str = ""  # of messages and their sums; '': that of the parameters
    blocking: str = ""  # of those that nobody computes behind; '': as all others
    compression: Compression | None = None  # whose messages are in types of their own
    collectives: Collectives = SIMULATED

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
        short, full = (
            size(jax.eval_shape(partial(self.travelling, blocking=now), x)) for now in (True, False)
        )
        return jnp.where(blocking, short, full)

    def total(
        self,
        x: Params,
        theta: Params,
        kept: Tree,
        blocking: jax.Array,
        to: jax.Array | None = None,
        decay: jax.Array | None = None,
    ) -> tuple[Params, Tree]:
        """The sum over the nodes of what each has sent, x or theta + M, and what is `kept` then.

        With `to`, (nodes, k), it is over those that send to this node.
        """
        nodes = self.collectives if to is None else self.collectives.among(to)
        if self.compression:
            (center, _), (error, state) = theta, kept
            if decay is not None:
                error = jax.tree.map(lambda leaf: (decay * leaf).astype(leaf.dtype), error)
            gap = jax.tree.map(lambda x, center, error: x - center + error, x, center, error)
            mean, message, state = self.compression.apply(nodes, gap, state)
            error, count = jax.tree.map(jnp.subtract, gap, message), lax.axis_size("node")
            return jax.tree.map(lambda c, m: count * (c + m), center, mean), (error, state)

        def full(x: Params) -> Params:
            return nodes.sums(self.travelling(x))

        def short(x: Params) -> Params:
            now = nodes.sums(self.travelling(x, blocking=True))
            return jax.tree.map(lambda now, leaf: now.astype(leaf.dtype), now, self.travelling(x))

        return (lax.cond(blocking, short, full, x) if self.blocking else full(x)), kept


def size(tree: Tree) -> jax.Array:
    """Bytes of the arrays, float32."""
    return jnp.float32(bytes_of(tree))


def add_sent_bytes(info: Info, sent: jax.Array) -> Info:
    """The info with the bytes that this node sends beside those inside it; alone it sends none."""
    between = sent if lax.axis_size("node") > 1 else jnp.zeros_like(sent)
    return info | {"sent_bytes": between + info.get("sent_bytes", 0.0)}


def sent_to_others(to: Array) -> jax.Array:
    """How many of this node's messages, of (nodes, k), go to others, float32."""
    node = lax.axis_index("node")
    return (jnp.asarray(to)[node] != node).sum().astype(jnp.float32)


def event_of_node(event: Event) -> Event:
    """The event as this node's inner rule sees it."""
    node, staleness = lax.axis_index("node"), event.staleness
    if staleness is not None and jnp.ndim(staleness):  # that of every node
        staleness = staleness[node]
    plan = jax.tree.map(lambda leaf: leaf[node], event.plan.inner)
    return event._replace(plan=plan, staleness=staleness)


WHOLE = 32  # bits of numbers that are sent as they are


class Numbers(NamedTuple):
    """How a vector of floats is sent: in which arrays, and of how many bytes they are."""

    encode: Callable[[jax.Array], Tree]
    decode: Callable[[Tree, int], jax.Array]  # (code, how many numbers)
    bytes: Callable[[int], int]  # of so many numbers


def numbers(bits: int, block: int) -> Numbers:
    """Numbers of b = 2 to 8 `bits`, of blocks that each have a scale; with 32 they stay floats.

        s = max |v|                          of a block of B numbers, sent as a float32
        Q_b v = s sign(v) nearest(|v| / s)   of 2^(b-1) levels; the sign is the other bit

    0 is a level, so that |v - Q_b v| <= |v|, as error feedback needs it. Streaming DiLoCo (arXiv
    2501.18512) sends outer gradients in 4 bits and adds them up in float32.
    """
    if bits == WHOLE:
        return Numbers(lambda v: v, lambda v, size: v, lambda size: 4 * size)
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

    return Numbers(encode, decode, lambda size: -(-size * bits // 8) + 4 * -(-size // block))


def levels(bits: int) -> np.ndarray:
    """(2^(b - 1),) sizes from 0 to 1, over the scale, that a number of b bits can have.

    4 bits are E3M0, three of exponent and none of mantissa: 0, 2^-6, 2^-5, ..., 1/2, 1. Others are
    0, 1/L, 2/L, ..., 1 with L = 2^(b-1) - 1.
    """
    if bits == 4:
        return np.array([0.0, *(2.0**-j for j in range(6, -1, -1))])
    return np.linspace(0.0, 1.0, 2 ** (bits - 1))


def powersgd(rank: int) -> Compression:
    """Messages of low rank, with warm start (arXiv 1905.13727, Algorithm 1).

        P <- mean_i M_i Q, orthogonalized      M_i: (rows, columns) of node i, Q of the last message
        Q <- mean_i M_i' P
        M ~  P Q'                              of rank r, the same in all nodes

    Linear in the M_i once P is known, so that P Q' is that of mean_i M_i: it does not depend on how
    a batch is divided over nodes. A node's own part of it is P P' M_i. Arrays are matrices of their
    last axis by all others, transposed if they have more rows than columns, so that at full rank P
    is square and nothing is left out, whatever M is. Vectors, and what would not be shorter, are
    sent whole. So there are two messages one after the other, of r (rows + columns) numbers a
    matrix in all. The state is Q, at first normal numbers that are the same in all nodes.
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
        leaves, tree_of = jax.tree.flatten(tree)
        matrices = [_matrix(leaf) for leaf in leaves if low(leaf)]
        rest = [leaf for leaf in leaves if not low(leaf)]
        *found, rest, state = low_rank(nodes, matrices, state, rest)
        means, messages, whole = *map(iter, found), iter(rest)
        mean = [_like(leaf, next(means)) if low(leaf) else next(whole) for leaf in leaves]
        message = [_like(leaf, next(messages)) if low(leaf) else leaf for leaf in leaves]
        return jax.tree.unflatten(tree_of, mean), jax.tree.unflatten(tree_of, message), state

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
    """Means of the messages, own messages, means of what is sent `whole`, and the next state."""
    left = [m @ q for m, q in zip(matrices, state, strict=True)]
    left, whole = nodes.mean((left, whole))
    left = [jnp.linalg.qr(p)[0] for p in left]
    factors = [m.T @ p for m, p in zip(matrices, left, strict=True)]
    right = nodes.mean(factors) if factors else []
    means = [p @ q.T for p, q in zip(left, right, strict=True)]
    return means, [p @ q.T for p, q in zip(left, factors, strict=True)], whole, right


def _shape(leaf: jax.Array) -> tuple[int, int]:
    """Rows and columns, no more of these than of those; a vector has one row."""
    columns = leaf.shape[-1] if leaf.ndim else 1
    rows = prod(leaf.shape[:-1])
    return min(rows, columns), max(rows, columns)


def _matrix(leaf: jax.Array) -> jax.Array:
    matrix = leaf.reshape(-1, leaf.shape[-1])
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T


def _like(leaf: jax.Array, matrix: jax.Array) -> jax.Array:
    """A matrix as `_matrix` makes it of an array like `leaf`, in that array's shape again."""
    wide = leaf.size <= leaf.shape[-1] ** 2
    return (matrix if wide else matrix.T).reshape(leaf.shape)


COMPRESSIONS = ("", "bfloat16", "top_k", "sign", "powersgd")
OF_BITS = ("", "top_k")  # those that send numbers, which may be of fewer bits


def compressor(
    name: str, share: float, rank: int, bits: int = WHOLE, block: int = 128
) -> Compression | None:
    """The compression of that name, one of `COMPRESSIONS`, with the numbers that it has.

    Of `OF_BITS` numbers are sent in so many `bits`. None if messages are sent as they are.
    """
    match name:
        case "bfloat16":
            return bfloat16()
        case "top_k":
            return top_k(share, numbers(bits, block))
        case "sign":
            return sign()
        case "powersgd":
            return powersgd(rank)
    return None if bits == WHOLE else quantized(numbers(bits, block))


def bfloat16() -> Compression:
    """Messages rounded to bfloat16, whose sums are rounded too."""

    def apply(nodes: Collectives, tree: Tree, state: Tree) -> tuple[Tree, Tree, Tree]:
        short = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree)
        total, message = (
            jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), rounded, tree)
            for rounded in (nodes.sums(short), short)
        )
        return jax.tree.map(lambda leaf: leaf / lax.axis_size("node"), total), message, state

    return Compression(lambda tree: (), apply, lambda tree: (2 * sum(_sizes(tree)),))


def quantized(sent: Numbers) -> Compression:
    """All numbers of each array."""

    def decode(code: Tree, like: jax.Array) -> jax.Array:
        return sent.decode(code, like.size).astype(like.dtype).reshape(like.shape)

    return _coded(lambda leaf: sent.encode(leaf.reshape(-1)), decode, sent.bytes)


def part_sent(share: float, size: int) -> int:
    """How many numbers of so many a share is, rounded up: of 100 numbers 0.07 are 7, as written."""
    return max(ceil(round(share * size, 9)), 1)  # in floats 0.07 * 100 is more than 7


def top_k(share: float, sent: Numbers) -> Compression:
    """s of each array's numbers, rounded up, each with its place, an int32."""

    def encode(leaf: jax.Array) -> tuple[Tree, jax.Array]:
        flat = leaf.reshape(-1)
        _, where = jax.lax.top_k(jnp.abs(flat), part_sent(share, leaf.size))
        return sent.encode(flat[where]), where.astype(jnp.int32)

    def decode(code: tuple[Tree, jax.Array], like: jax.Array) -> jax.Array:
        values, where = code
        found = sent.decode(values, part_sent(share, like.size)).astype(like.dtype)
        return jnp.zeros(like.size, like.dtype).at[where].set(found).reshape(like.shape)

    def count(size: int) -> int:
        return sent.bytes(part_sent(share, size)) + 4 * part_sent(share, size)

    return _coded(encode, decode, count)


def sign() -> Compression:
    """A bit a number, and a float32 an array."""

    def encode(leaf: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.packbits(leaf.reshape(-1) >= 0), jnp.mean(jnp.abs(leaf))

    def decode(code: tuple[jax.Array, jax.Array], like: jax.Array) -> jax.Array:
        bits, scale = code
        signs = 2 * jnp.unpackbits(bits, count=like.size).astype(like.dtype) - 1
        return (scale * signs).reshape(like.shape)

    return _coded(encode, decode, lambda size: ceil(size / 8) + 4)


def fed_back(small: Compression, tree: Tree, errors: Tree, i: Array) -> tuple[Tree, Tree]:
    """The message of row i of a table of errors, (n, ...), and the table after it."""
    error = read_first(row, errors, jnp.asarray(i))
    whole = jax.tree.map(jnp.add, tree, error)
    alone = Collectives(lambda tree: tree, lambda tree: jax.tree.map(lambda leaf: leaf[None], tree))
    _, message, _ = small.apply(alone, whole, ())
    left = jax.tree.map(lambda table, v, m: table.at[i].set(v - m), errors, whole, message)
    return message, left


def _coded(
    encode: Callable[..., Tree], decode: Callable[..., jax.Array], size: Callable[[int], int]
) -> Compression:
    """Codes, one an array, that go to all nodes."""

    def apply(nodes: Collectives, tree: Tree, state: Tree) -> tuple[Tree, Tree, Tree]:
        leaves, tree_of = jax.tree.flatten(tree)
        codes = [encode(leaf) for leaf in leaves]
        mean, message = list[jax.Array](), list[jax.Array]()
        for leaf, code, rows in zip(leaves, codes, nodes.gather(codes), strict=True):
            mean.append(mean_of(jax.vmap(partial(decode, like=leaf))(rows), nodes.weights))
            message.append(decode(code, leaf))
        return jax.tree.unflatten(tree_of, mean), jax.tree.unflatten(tree_of, message), state

    def messages(tree: Tree) -> tuple[int, ...]:
        return (sum(map(size, _sizes(tree))),)

    return Compression(lambda tree: (), apply, messages, gathered=True)


def _sizes(tree: Tree) -> list[int]:
    return [leaf.size for leaf in jax.tree.leaves(tree)]
