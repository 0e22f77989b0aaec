"""Parameters of blocks for tests: their shapes, their number and some values."""

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.problem.models import base

VOCABULARY, LENGTH = 11, 6  # of `tokens`


def shapes(blocks, x, heads=()):
    """Parameters as shapes, not computed."""
    return jax.eval_shape(lambda key: base.init(blocks, key, x, heads), jax.random.key(0))


def some(blocks, x, heads=()):
    """Parameters drawn here: compiling the initializers takes seconds."""
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(leaf.dtype), shapes(blocks, x, heads)
    )


def tokens(batch=3, length=LENGTH, dtype=np.int32):
    return jnp.asarray(np.random.default_rng(0).integers(0, VOCABULARY, (batch, length)), dtype)


def layer_norm(x, scale, bias):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * scale + bias


def dense(x, kernel, bias):
    return x @ kernel + bias


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
