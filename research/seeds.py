"""One `config.seed`, split by name: init, data order, arrivals, ..."""

import zlib

import jax
import numpy as np


def _tag(name: str) -> int:
    return zlib.crc32(name.encode())


def generator(seed: int, name: str) -> np.random.Generator:
    """NumPy generator of the stream called `name`."""
    return np.random.default_rng((seed, _tag(name)))


def key(seed: int, name: str) -> jax.Array:
    """JAX key of the stream called `name`."""
    return jax.random.fold_in(jax.random.key(seed), _tag(name))
