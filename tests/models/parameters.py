"""Parameters of blocks for tests: their shapes, their number, some values, and their heads."""

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


def assert_causal(blocks):
    """An output depends on the token at its place and on those before, and on no other."""
    x = tokens(1)
    params = some(blocks, x)
    apply = jax.jit(lambda x: base.apply(blocks, params, x))
    change = np.array(
        [
            np.abs(apply(x.at[0, s].set((x[0, s] + 1) % VOCABULARY)) - apply(x))[0].max(-1)
            for s in range(LENGTH)
        ]
    )
    # One program, in which a position to come has weight 0: no tolerance.
    np.testing.assert_array_equal(change > 0, np.triu(np.ones((LENGTH, LENGTH), bool)))


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
