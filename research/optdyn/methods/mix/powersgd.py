"""PowerSGD (Vogels et al., arXiv 1905.13727, Algorithm 1): messages of low rank, with warm start.

    P <- mean_i M_i Q, orthogonalized      M_i: (rows, columns) of node i, Q of the last message
    Q <- mean_i M_i' P
    M ~  P Q'                              of rank r, the same in all nodes

Linear in the M_i once P is known, so that P Q' is that of mean_i M_i: it does not depend on how a
batch is divided over nodes. A node's own part of it is P P' M_i. Arrays are matrices of their last
axis by all others, transposed if they have more rows than columns, so that at full rank P is square
and nothing is left out, whatever M is. Vectors, and what would not be shorter, are sent whole.
"""

from math import prod

import jax
import jax.numpy as jnp

from optdyn.methods.mix.messages import Collectives, Compression, Tree


def powersgd(rank: int) -> Compression:
    """Two messages one after the other, of r (rows + columns) numbers a matrix in all.

    The state is Q of every matrix, at first normal numbers that are the same in all nodes.
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
        means, own, rest, state = low_rank(nodes, matrices, state, rest)
        mean_of, own_of, whole = iter(means), iter(own), iter(rest)
        mean = [_like(leaf, next(mean_of)) if low(leaf) else next(whole) for leaf in leaves]
        mine = [_like(leaf, next(own_of)) if low(leaf) else leaf for leaf in leaves]
        return jax.tree.unflatten(tree_of, mean), jax.tree.unflatten(tree_of, mine), state

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
    own = [m.T @ p for m, p in zip(matrices, left, strict=True)]
    right = nodes.mean(own) if own else []
    means = [p @ q.T for p, q in zip(left, right, strict=True)]
    return means, [p @ q.T for p, q in zip(left, own, strict=True)], whole, right


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
