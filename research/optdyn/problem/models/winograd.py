"""3 x 3 convolution by minimal filtering (Lavin and Gray, arXiv 1509.09308, section 4.1).

F(m x m, 3 x 3) computes m x m numbers Y of the result from a tile d of (m + 2) x (m + 2) numbers
of the image; tiles overlap by 2:

    Y = A^T [ sum over c of U . V ] A,   U = G g G^T,   V = B^T d B,   g the 3 x 3 kernel,

with one product for each of the (m + 2)^2 positions in a tile where the definition has 9 m^2: at
m = 4 a quarter. The sum over channels is one matrix product for each position, of V (tiles of the
whole batch, C) and U (C, O). Fractions and cancellation cost about one digit of accuracy.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

M = 4
B_T = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
G = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
A_T = (
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)


def winograd(x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: str) -> jax.Array:
    """x (B, H, W, C) by kernel (3, 3, C, O), strides (1, 1), to (B, H', W', O).

    Computes in float32 at least: 16 bits have no digit to spare.
    """
    pads = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    height, width = (n + sum(pad) - 2 for n, pad in zip(x.shape[1:3], pads, strict=True))
    rows, columns = -(-height // M), -(-width // M)  # of tiles, the last ones filled with zeros
    (top, bottom), (left, right) = pads
    bottom, right = bottom + rows * M - height, right + columns * M - width
    wide = jnp.promote_types(x.dtype, jnp.float32)
    padded = jnp.pad(x.astype(wide), ((0, 0), (top, bottom), (left, right), (0, 0)))
    # Position (i, j) in every tile: (6, 6, B, rows, columns, C).
    d = _positions(_positions(padded, 2, columns), 2, rows)
    v, u = _both_sides(B_T, d), _both_sides(G, kernel.astype(wide))
    y = _both_sides(A_T, jnp.einsum("ijbrsc,ijco->ijbrso", v, u))
    y = y.transpose(2, 3, 0, 4, 1, 5).reshape(len(x), rows * M, columns * M, -1)
    return y[:, :height, :width].astype(x.dtype)


def _positions(x: jax.Array, axis: int, tiles: int) -> jax.Array:
    """Every M-th number of an axis from its first, its second, ... on, stacked: (M + 2, ...)."""
    last = M * (tiles - 1) + 1
    return jnp.stack([lax.slice_in_dim(x, i, i + last, M, axis) for i in range(M + 2)])


def _both_sides(matrix: Sequence[Sequence[float]], x: jax.Array) -> jax.Array:
    """matrix x matrix^T over the first two axes of x, as one matrix product."""
    both = np.einsum("ki,lj->klij", matrix, matrix).astype(x.dtype)
    return jnp.tensordot(both, x, 2)
