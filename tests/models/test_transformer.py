"""The transformer: its number of parameters, what it computes, against NumPy, and causality."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeParamShapeError

from optdyn.problem.models import base
from optdyn.problem.models.transformer import Transformer
from tests.models.parameters import (
    LENGTH,
    VOCABULARY,
    count,
    dense,
    layer_norm,
    shapes,
    some,
    tokens,
)


def attention(qkv, heads):
    """Of one sequence (T, 3 width), a query and a head at a time."""
    q, k, v = np.split(qkv, 3, -1)
    size = q.shape[-1] // heads
    y = np.zeros_like(q)
    for t in range(len(q)):
        for h in range(heads):
            own = slice(h * size, (h + 1) * size)
            weights = np.array([math.exp(q[t, own] @ k[s, own] / size**0.5) for s in range(t + 1)])
            y[t, own] = weights / weights.sum() @ v[: t + 1, own]
    return y


def gelu(x):
    """Hendrycks & Gimpel, arXiv 1606.08415, with their approximation by a tanh."""
    return x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("blocks", "heads", "size", "vocabulary", "length"),
    [(1, 1, 1, 1, 1), (4, 3, 2, 9, 5), (2, 4, 3, 5, 3)],
)
def test_number_of_parameters(blocks, heads, size, vocabulary, length):
    width = heads * size
    made = Transformer(blocks, width, heads).blocks_for(vocabulary)
    params = shapes(made, jnp.zeros((2, length), jnp.int32))
    assert list(params) == [*(f"block{k}" for k in range(blocks)), "output"]
    layers = 12 * width**2 + 13 * width
    assert count(params["block0"]) == (vocabulary + length) * width + layers
    assert all(count(params[f"block{k}"]) == layers for k in range(1, blocks))
    assert count(params["output"]) == (width + 1) * vocabulary + 2 * width


def test_is_its_equation():
    blocks, x = Transformer(2, 8, 2).blocks_for(VOCABULARY), tokens()
    params = some(blocks, x)
    wide = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    for row, made in zip(x, jax.jit(partial(base.apply, blocks))(params, x), strict=True):
        y = wide["block0"]["tokens"]["embedding"][row] + wide["block0"]["positions"]
        for k in range(2):
            block = wide[f"block{k}"]
            seen = attention(dense(layer_norm(y, **block["LayerNorm_0"]), **block["qkv"]), 2)
            y = y + dense(seen, **block["attended"])
            hidden = gelu(dense(layer_norm(y, **block["LayerNorm_1"]), **block["expand"]))
            y = y + dense(hidden, **block["contract"])
        output = wide["output"]
        expected = dense(layer_norm(y, **output["LayerNorm_0"]), **output["Dense_0"])
        # Numbers of size 1 through 16 layers: 1e-5 is a hundred times what float32 rounds each by.
        np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5)


def test_branches_without_their_last_layers_are_the_identity():
    blocks, x = Transformer(3, 8, 2).blocks_for(VOCABULARY), tokens()
    params = some(blocks, x)
    for k in range(3):
        for name in ("attended", "contract"):
            params[f"block{k}"][name] = jax.tree.map(np.zeros_like, params[f"block{k}"][name])
    hs = base.activations(blocks, params, x)
    embedded = params["block0"]["tokens"]["embedding"][x] + params["block0"]["positions"]
    for h in hs[1:-1]:
        np.testing.assert_array_equal(h, embedded)


def test_any_integers_are_tokens():
    """A vocabulary of 256 is one more than a byte can say."""
    blocks = Transformer(1, 4, 1).blocks_for(256)
    x = np.array([[0, 1, 127, 128, 254, 255]])
    params = some(blocks, jnp.asarray(x))
    apply = jax.jit(partial(base.apply, blocks))
    wide, narrow = (apply(params, jnp.asarray(x, t)) for t in (np.int32, np.uint8))
    np.testing.assert_array_equal(wide, narrow)
    assert np.isfinite(wide).all()  # an index out of range is filled with NaN


def test_positions_are_those_of_the_length_at_initialization():
    blocks = Transformer(1, 4, 1).blocks_for(VOCABULARY)
    params = some(blocks, tokens())
    with pytest.raises(ScopeParamShapeError):
        base.apply(blocks, params, tokens(length=LENGTH + 1))
