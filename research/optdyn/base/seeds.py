"""One `config.seed`, split by name: init, data order, arrivals, ..."""

import zlib

import jax
import numpy as np


def _tag(name: str) -> int:
    return zlib.crc32(name.encode())


def generator(seed: int, name: str) -> np.random.Generator:
    """NumPy generator of the stream called `name`."""
    return np.random.default_rng((seed, _tag(name)))


def number(seed: int, name: str, below: int = 2**63) -> int:
    """The first whole number from 0 of the stream called `name`: the seed of what has its own."""
    return int(generator(seed, name).integers(below))


def key(seed: int, name: str) -> jax.Array:
    """JAX key of the stream called `name`."""
    return _key(np.uint32(seed), np.uint32(_tag(name)))


@jax.jit  # one program in place of five
def _key(seed: jax.Array, tag: jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed), tag)
