"""One `config.seed`, split by name into streams: init, data order, arrivals, ..."""

import zlib

import jax
import numpy as np


def _tag(name: str) -> int:
    return zlib.crc32(name.encode())


def generator(seed: int, name: str) -> np.random.Generator:
    """Returns the NumPy generator of the stream `name`."""
    return np.random.default_rng((seed, _tag(name)))


def number(seed: int, name: str, below: int = 2**63) -> int:
    """Returns the first whole number, from 0, of the stream `name`: a seed for other libraries."""
    return int(generator(seed, name).integers(below))


def key(seed: int, name: str) -> jax.Array:
    """Returns the JAX key of the stream `name`."""
    return _key(np.uint32(seed), np.uint32(_tag(name)))


@jax.jit  # one program in place of five
def _key(seed: jax.Array, tag: jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed), tag)
