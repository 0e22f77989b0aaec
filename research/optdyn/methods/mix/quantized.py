"""Numbers of b bits, of blocks that each have a scale of their own.

    s = max |v|                          of a block of B numbers, sent as a float32
    Q_b v = s sign(v) nearest(|v| / s)   of 2^(b-1) levels from 0 to 1; the sign is the other bit

    b = 4, E3M0   0, 2^-6, 2^-5, ..., 1/2, 1          three bits of exponent and none of mantissa
    others        0, 1/L, 2/L, ..., 1                 L = 2^(b-1) - 1

0 is a level, so that |v - Q_b v| <= |v|, as error feedback needs it. Streaming DiLoCo (arXiv
2501.18512) sends outer gradients in E3M0 and adds them up in float32.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base.trees import Tree

WHOLE = 32  # bits of numbers that are sent as they are


class Numbers(NamedTuple):
    """How a vector of floats is sent: in which arrays, and of how many bytes they are."""

    encode: Callable[[jax.Array], Tree]
    decode: Callable[[Tree, int], jax.Array]  # (code, how many numbers)
    bytes: Callable[[int], int]  # of so many numbers


def numbers(bits: int, block: int) -> Numbers:
    """Numbers of 2 to 8 `bits`, a scale for each `block` of them; with 32 bits they stay floats."""
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
        each = jnp.unpackbits(packed, count=size * bits).reshape(size, bits)
        number = jnp.packbits(jnp.pad(each, ((0, 0), (8 - bits, 0))), axis=1)[:, 0]
        level, is_negative = number % len(known), number >= len(known)
        share = jnp.where(is_negative, -known[level], known[level])
        return (share * jnp.repeat(scale, block)[:size]).astype(scale.dtype)

    return Numbers(encode, decode, lambda size: -(-size * bits // 8) + 4 * -(-size // block))


def levels(bits: int) -> np.ndarray:
    """(2^(bits - 1),) sizes from 0 to 1, over the scale, that a number of so many bits can have."""
    if bits == 4:
        return np.array([0.0, *(2.0**-j for j in range(6, -1, -1))])
    return np.linspace(0.0, 1.0, 2 ** (bits - 1))
