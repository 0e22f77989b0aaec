"""SOAP (Vyas et al., arXiv 2409.11321): Adam in the eigenbases of Shampoo's matrices.

    M <- b1 M + (1 - b1) G                    of a matrix of parameters X, with gradient G
    g, m = Q_L' G Q_R, Q_L' M Q_R             both in the bases
    v <- b2 v + (1 - b2) g * g
    X <- X - alpha Q_L [m^ / (sqrt(v^) + eps)] Q_R'       m^, v^: without Adam's bias toward 0
    L <- b2 L + (1 - b2) G G',   R <- b2 R + (1 - b2) G' G
    Q_L <- qr(L Q_L),   Q_R <- qr(R Q_R)      every f updates: a step of the power iteration

Arrays of more axes are matrices of their last axis by all others; of vectors, and before the first
bases, it is Adam. It is the "basis rotation" (arXiv 2602.03515) found robust to stale gradients.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from optdyn.base.trees import Params


class Bases(NamedTuple):
    """The eigenbases of a matrix of parameters (m, n), and the matrices that they are of."""

    left: jax.Array  # Q_L, (m, m)
    right: jax.Array  # Q_R, (n, n)
    rows: jax.Array  # L, (m, m)
    columns: jax.Array  # R, (n, n)


class SOAPState(NamedTuple):
    updates: jax.Array  # int32, so far
    mu: Params  # M
    nu: Params  # v, in the bases
    bases: tuple[Bases | None, ...]  # of each array; None of a vector


def soap(
    learning_rate: float | jax.Array,
    b1: float | jax.Array = 0.95,
    b2: float | jax.Array = 0.95,
    eps: float = 1e-8,
    period: int = 10,
) -> optax.GradientTransformation:
    """Returns SOAP of learning rate alpha, with new bases every `period` (f) updates.

    Rate and decays may be traced. The state holds two copies of the parameters, and of a matrix
    (m, n) two more of (m, m) and of (n, n). Raises ValueError if `period` is not at least 1.
    """
    if period < 1:
        raise ValueError(f"period {period}: must be at least 1")

    def init(params: Params) -> SOAPState:
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return SOAPState(jnp.int32(0), mu, nu, tuple(map(_first, jax.tree.leaves(params))))

    def update(
        grads: Params, state: SOAPState, params: Params | None = None
    ) -> tuple[Params, SOAPState]:
        count = state.updates + 1
        leaves, tree_of = jax.tree.flatten(grads)
        first, second = map(jax.tree.leaves, (state.mu, state.nu))
        steps, mu, nu, bases = [], [], [], []
        for g, m, v, basis in zip(leaves, first, second, state.bases, strict=True):
            m = b1 * m + (1 - b1) * g
            turned_g, turned_m = _into(basis, g), _into(basis, m)
            v = b2 * v + (1 - b2) * turned_g * turned_g
            mean, square = turned_m / (1 - b1**count), v / (1 - b2**count)
            direction = _out_of(basis, mean / (jnp.sqrt(square) + eps))
            steps.append((-learning_rate * direction).astype(g.dtype))
            mu.append(m.astype(g.dtype))
            nu.append(v.astype(g.dtype))
            bases.append(basis and _renewed(_mixed(basis, g, b2), count % period == 0))
        means, squares = jax.tree.unflatten(tree_of, mu), jax.tree.unflatten(tree_of, nu)
        return jax.tree.unflatten(tree_of, steps), SOAPState(count, means, squares, tuple(bases))

    return optax.GradientTransformation(init, update)


def _first(leaf: jax.Array) -> Bases | None:
    if leaf.ndim < 2:
        return None
    m, n = _matrix(leaf).shape
    sides = jnp.eye(m, dtype=leaf.dtype), jnp.eye(n, dtype=leaf.dtype)
    return Bases(*sides, *map(jnp.zeros_like, sides))


def _matrix(leaf: jax.Array) -> jax.Array:
    return leaf.reshape(-1, leaf.shape[-1])


def _into(basis: Bases | None, leaf: jax.Array) -> jax.Array:
    if basis is None:
        return leaf
    return (basis.left.T @ _matrix(leaf) @ basis.right).reshape(leaf.shape)


def _out_of(basis: Bases | None, leaf: jax.Array) -> jax.Array:
    if basis is None:
        return leaf
    return (basis.left @ _matrix(leaf) @ basis.right.T).reshape(leaf.shape)


def _mixed(basis: Bases, grad: jax.Array, b2: float | jax.Array) -> Bases:
    g = _matrix(grad)
    rows = b2 * basis.rows + (1 - b2) * (g @ g.T)
    columns = b2 * basis.columns + (1 - b2) * (g.T @ g)
    return basis._replace(rows=rows.astype(g.dtype), columns=columns.astype(g.dtype))


def _renewed(basis: Bases, now: jax.Array) -> Bases:
    def turned(basis: Bases) -> Bases:
        left = jnp.linalg.qr(basis.rows @ basis.left)[0]
        return basis._replace(left=left, right=jnp.linalg.qr(basis.columns @ basis.right)[0])

    return lax.cond(now, turned, lambda same: same, basis)
