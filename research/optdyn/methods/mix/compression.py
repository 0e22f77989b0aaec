"""What nodes send in place of whole differences; what a message leaves out they keep (`outer.py`).

    bfloat16   v rounded to 8 bits of precision; messages are added up on their way, rounded too
    top_k      the share s of an array's numbers that is largest in absolute value
    sign       sign(v) mean|v|, a bit a number (EF-signSGD, Karimireddy et al., arXiv 1901.09847)
    powersgd   low rank (`powersgd.py`)

All numbers of an array, or those that `top_k` keeps, may be of a few bits (`quantized.py`).
Arrays are compressed each by itself. Sparse numbers and signs cannot be added up on their way:
every node's message goes to all others.
"""

from collections.abc import Callable
from functools import partial
from math import ceil

import jax
import jax.numpy as jnp

from optdyn.base.trees import Array, State, Tree
from optdyn.core.snapshots import read_first, row
from optdyn.methods.mix.messages import Collectives, Compression, mean_of
from optdyn.methods.mix.powersgd import powersgd
from optdyn.methods.mix.quantized import WHOLE, Numbers, numbers

NAMES = ("", "bfloat16", "top_k", "sign", "powersgd")
OF_BITS = ("", "top_k")  # those that send numbers, which may be of fewer bits


def make(
    name: str, share: float, rank: int, bits: int = WHOLE, block: int = 128
) -> Compression | None:
    """The compression of that name, one of `NAMES`, with the numbers of those that have some.

    Of `OF_BITS` numbers are sent in so many `bits`. None if messages are sent as they are.
    """
    sent = numbers(bits, block)
    if not name:
        return None if bits == WHOLE else quantized(sent)
    made = {"bfloat16": bfloat16, "top_k": lambda: top_k(share, sent), "sign": sign}
    made["powersgd"] = lambda: powersgd(rank)
    return made[name]()


def bfloat16() -> Compression:
    """Messages rounded to bfloat16, whose sums are rounded too."""

    def apply(nodes: Collectives, tree: Tree, state: State) -> tuple[Tree, Tree, Tree]:
        short = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree)
        mean, own = (
            jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), each, tree)
            for each in (nodes.sums(short), short)
        )
        return jax.tree.map(lambda leaf: leaf / jax.lax.axis_size("node"), mean), own, state

    return Compression(lambda tree: (), apply, lambda tree: (2 * sum(_sizes(tree)),))


def quantized(sent: Numbers) -> Compression:
    """All numbers of each array."""

    def decode(code: Tree, like: jax.Array) -> jax.Array:
        return sent.decode(code, like.size).astype(like.dtype).reshape(like.shape)

    return _coded(lambda leaf: sent.encode(leaf.reshape(-1)), decode, sent.bytes)


def part(share: float, size: int) -> int:
    """How many numbers of so many a share is, rounded up: of 100 numbers 0.07 are 7, as written."""
    return max(ceil(round(share * size, 9)), 1)  # in floats 0.07 * 100 is more than 7


def top_k(share: float, sent: Numbers) -> Compression:
    """s of each array's numbers, rounded up, each with its place, an int32."""

    def encode(leaf: jax.Array) -> tuple[Tree, jax.Array]:
        flat = leaf.reshape(-1)
        _, where = jax.lax.top_k(jnp.abs(flat), part(share, leaf.size))
        return sent.encode(flat[where]), where.astype(jnp.int32)

    def decode(code: tuple[Tree, jax.Array], like: jax.Array) -> jax.Array:
        values, where = code
        found = sent.decode(values, part(share, like.size)).astype(like.dtype)
        return jnp.zeros(like.size, like.dtype).at[where].set(found).reshape(like.shape)

    def count(size: int) -> int:
        return sent.bytes(part(share, size)) + 4 * part(share, size)

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
    _, own, _ = small.apply(alone, whole, ())
    left = jax.tree.map(lambda table, v, m: table.at[i].set(v - m), errors, whole, own)
    return own, left


def _coded(
    encode: Callable[..., Tree], decode: Callable[..., jax.Array], size: Callable[[int], int]
) -> Compression:
    """Codes, one an array, that go to all nodes."""

    def apply(nodes: Collectives, tree: Tree, state: State) -> tuple[Tree, Tree, Tree]:
        leaves, tree_of = jax.tree.flatten(tree)
        codes = [encode(leaf) for leaf in leaves]
        mean: list[jax.Array] = []
        own: list[jax.Array] = []
        for leaf, code, every in zip(leaves, codes, nodes.gather(codes), strict=True):
            mean.append(mean_of(jax.vmap(partial(decode, like=leaf))(every), nodes.weights))
            own.append(decode(code, leaf))
        return jax.tree.unflatten(tree_of, mean), jax.tree.unflatten(tree_of, own), state

    def messages(tree: Tree) -> tuple[int, ...]:
        return (sum(map(size, _sizes(tree))),)

    return Compression(lambda tree: (), apply, messages, gathered=True)


def _sizes(tree: Tree) -> list[int]:
    return [leaf.size for leaf in jax.tree.leaves(tree)]
