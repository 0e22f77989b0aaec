"""Parameters of blocks for tests: their shapes, their number, and some values."""

import jax
import numpy as np

from research.models import base


def shapes(blocks, x, heads=()):
    """Parameters as shapes, not computed."""
    return jax.eval_shape(lambda key: base.init(blocks, key, x, heads), jax.random.key(0))


def some(blocks, x, heads=()):
    """Parameters drawn here: compiling the initializers takes seconds."""
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(leaf.dtype), shapes(blocks, x, heads)
    )


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
