"""Parameters of blocks for tests: their shapes, their number, some values, and their heads."""

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.problem.models import base


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


def assert_heads_apply(blocks, x, shape, dtype):
    """A head on any block gives outputs of `shape`; parameters and gradients stay float32."""
    names = [name for name, _ in blocks[:-2]]
    params = shapes(blocks, x, names)
    head = blocks[-1][1]

    def outputs(params):
        hs = base.activations(blocks, params, x)
        ends = zip(names, hs[1:-2], strict=True)
        return [*(head.apply({"params": params[f"{n}_head"]}, h) for n, h in ends), hs[-1]]

    def loss(params):
        return sum(y.astype("float32").sum() for y in outputs(params))

    made = jax.eval_shape(outputs, params)
    assert [(y.shape, y.dtype) for y in made] == (len(names) + 1) * [(shape, jnp.dtype(dtype))]
    for leaf in jax.tree.leaves((params, jax.eval_shape(jax.grad(loss), params))):
        assert leaf.dtype == jnp.float32
