"""The discrete cosine transform of an array's chunks, and the largest coefficients of each.

    C     = A X B^T                           of a chunk X; A and B have the cosines as their rows
    top-k: the k largest |C| of the chunk     each with its place in it
    X     = A^T C B                           as A and B are orthonormal

An array is a matrix of its last axis by all others; a vector is one row. A chunk is a block of this
matrix: each of its sides is the largest number, at most c, that divides the matrix's side evenly.
DeMo (arXiv 2411.19870) sends momenta this way.
"""

from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base.trees import Array

PLACE = 2  # bytes of a coefficient's place in its chunk, and so at most 256 rows and columns
Largest = tuple[jax.Array, jax.Array]  # (chunks, k) coefficients, and their places, uint16


class Chunks(NamedTuple):
    """An array as a matrix of blocks."""

    rows: int  # of blocks
    height: int  # of a block
    columns: int
    width: int

    def encode(self, leaf: jax.Array) -> jax.Array:
        """(chunks, height width) coefficients of the array."""
        blocks = leaf.reshape(self.rows, self.height, self.columns, self.width)
        up, across = cosines(self.height), cosines(self.width)
        found = jnp.einsum("iajb,ua,vb->ijuv", blocks, up, across, precision="highest")
        return found.reshape(self.rows * self.columns, -1)

    def decode(self, coefficients: jax.Array, like: jax.Array) -> jax.Array:
        """The array with these coefficients, of the shape and type of `like`."""
        blocks = coefficients.reshape(self.rows, self.columns, self.height, self.width)
        up, across = cosines(self.height), cosines(self.width)
        found = jnp.einsum("ijuv,ua,vb->iajb", blocks, up, across, precision="highest")
        return found.astype(like.dtype).reshape(like.shape)

    def largest(self, leaf: jax.Array, count: int) -> Largest:
        """The `count` largest coefficients of every chunk of the array."""
        found = self.encode(leaf)
        _, place = jax.lax.top_k(jnp.abs(found), self._kept(count))
        return jnp.take_along_axis(found, place, axis=1), place.astype(jnp.uint16)

    def spread(self, sent: Largest) -> jax.Array:
        """(chunks, height width) with what was sent in its places, and 0 elsewhere."""
        values, place = sent
        nothing = jnp.zeros((self.rows * self.columns, self.height * self.width), values.dtype)
        return nothing.at[jnp.arange(len(values))[:, None], place.astype(jnp.int32)].set(values)

    def sent_bytes(self, count: int, leaf: Array) -> int:
        """Bytes of the `largest` coefficients of an array, or its shape, and of their places."""
        return self.rows * self.columns * self._kept(count) * (leaf.dtype.itemsize + PLACE)

    def _kept(self, count: int) -> int:
        return min(count, self.height * self.width)


def chunks(shape: tuple[int, ...], most: int) -> Chunks:
    """How an array of that shape is cut into blocks of at most `most` numbers a side."""
    rows, columns = prod(shape[:-1]), (shape or (1,))[-1]
    height, width = (
        max(d for d in range(1, min(n, most) + 1) if n % d == 0) for n in (rows, columns)
    )
    return Chunks(rows // height, height, columns // width, width)


def cosines(n: int) -> np.ndarray:
    """(n, n) the orthonormal discrete cosine transform: its inverse is its transpose."""
    u, x = np.arange(n)[:, None], np.arange(n)
    rows = np.sqrt(2 / n) * np.cos(np.pi * (2 * x + 1) * u / (2 * n))
    rows[0] /= np.sqrt(2)
    return rows.astype(np.float32)
