"""The residual perceptron and both transformers: their sizes, and their equations in NumPy."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeParamShapeError

from optdyn.problem.models import base
from optdyn.problem.models.mlp import ResMLP
from optdyn.problem.models.transformer import ModernTransformer, Transformer
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

WIDTH, HEADS = 8, 2


def rms_norm(x, scale):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def rotated(x, position):
    """RoFormer's equation 14, as multiplication of complex numbers: one head at one position."""
    pairs = x[::2] + 1j * x[1::2]
    angles = [position * 10_000 ** (-2 * i / len(x)) for i in range(len(pairs))]
    pairs = pairs * np.exp(1j * np.array(angles))
    return np.stack((pairs.real, pairs.imag), -1).ravel()


def attention(q, k, v, adapt_query=lambda head, _: head, adapt_key=lambda head, _: head):
    """Of one sequence, (T, width) each, a query and a head at a time."""
    y, size = np.zeros_like(q), q.shape[-1] // HEADS
    for h in range(HEADS):
        head = slice(h * size, (h + 1) * size)
        qs = [adapt_query(row[head], t) for t, row in enumerate(q)]
        ks = [adapt_key(row[head], t) for t, row in enumerate(k)]
        for t in range(len(q)):
            weights = np.array([math.exp(qs[t] @ ks[s] / size**0.5) for s in range(t + 1)])
            y[t, head] = weights / weights.sum() @ v[: t + 1, head]
    return y


def modern_attention(x, block):
    def adapted(name):
        return lambda head, t: rotated(rms_norm(head, **block[name]), t)

    parts = (x @ block[name]["kernel"] for name in ("query", "key", "value"))
    return (
        attention(*parts, adapted("query_norm"), adapted("key_norm")) @ block["attended"]["kernel"]
    )


def gelu(x):
    """Hendrycks & Gimpel, arXiv 1606.08415, with their approximation by a tanh."""
    return x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def gated_mlp(x, block):
    gate = x @ block["gate"]["kernel"]
    return (gate / (1 + np.exp(-gate)) * (x @ block["up"]["kernel"])) @ block["down"]["kernel"]


def resmlp(wide, x):
    y = dense(np.asarray(x, np.float64).reshape(len(x), -1), **wide["block0"]["stem"])
    for k in range(3):
        block = wide[f"block{k}"]
        hidden = np.maximum(dense(layer_norm(y, **block["LayerNorm_0"]), **block["Dense_0"]), 0)
        y = y + dense(hidden, **block["Dense_1"])
    return dense(layer_norm(y, **wide["output"]["LayerNorm_0"]), **wide["output"]["Dense_0"])


def transformer(wide, row):
    y = wide["block0"]["tokens"]["embedding"][row] + wide["block0"]["positions"]
    for k in range(2):
        block = wide[f"block{k}"]
        parts = np.split(dense(layer_norm(y, **block["LayerNorm_0"]), **block["qkv"]), 3, -1)
        y = y + dense(attention(*parts), **block["attended"])
        hidden = gelu(dense(layer_norm(y, **block["LayerNorm_1"]), **block["expand"]))
        y = y + dense(hidden, **block["contract"])
    return dense(layer_norm(y, **wide["output"]["LayerNorm_0"]), **wide["output"]["Dense_0"])


def modern_transformer(wide, row):
    y = wide["block0"]["tokens"]["embedding"][row]
    for k in range(2):
        block = wide[f"block{k}"]
        y = y + modern_attention(rms_norm(y, **block["attention_norm"]), block)
        y = y + gated_mlp(rms_norm(y, **block["mlp_norm"]), block)
    return rms_norm(y, **wide["output"]["norm"]) @ wide["output"]["logits"]["kernel"]


def rows_of(equation):
    return lambda wide, x: np.stack([equation(wide, row) for row in x])


IMAGES = jnp.asarray(np.random.default_rng(0).random((5, 3, 2, 1)), jnp.float32)
LONGER = tokens(length=LENGTH + 3)  # than at initialization


@pytest.mark.parametrize(
    ("model", "start", "x", "equation"),
    [
        (ResMLP(3, WIDTH), IMAGES, IMAGES, resmlp),
        (Transformer(2, WIDTH, HEADS), tokens(), tokens(), rows_of(transformer)),
        (ModernTransformer(2, WIDTH, HEADS), tokens(), LONGER, rows_of(modern_transformer)),
    ],
)
def test_a_model_is_its_equation(model, start, x, equation):
    blocks = base.make(model, VOCABULARY)
    params = some(blocks, start)
    wide = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    found = jax.jit(partial(base.apply, blocks))(params, x)
    # Numbers of size 1 through some 20 layers: 1e-5 is a hundred times what float32 rounds each by.
    np.testing.assert_allclose(found, equation(wide, x), rtol=0, atol=1e-5)


def sizes_of_resmlp(blocks, width, inputs, classes):
    layers = 2 * width * (width + 2)  # kernels, biases, and a scale and a bias of the norm
    first, last = (inputs + 1) * width, (width + 1) * classes + 2 * width
    return base.make(ResMLP(blocks, width), classes), jnp.zeros((2, inputs)), first, layers, last


def sizes_of_transformer(blocks, heads, size, vocabulary, length):
    width = heads * size
    first, last = (vocabulary + length) * width, (width + 1) * vocabulary + 2 * width
    made = base.make(Transformer(blocks, width, heads), vocabulary)
    return made, jnp.zeros((2, length), jnp.int32), first, 12 * width**2 + 13 * width, last


def sizes_of_modern(blocks, heads, pairs, vocabulary):
    width = 2 * pairs * heads
    layers = 4 * width**2 + 3 * width * 8 * math.ceil(width / 3) + 2 * width + 2 * 2 * pairs
    made = base.make(ModernTransformer(blocks, width, heads), vocabulary)
    return made, jnp.zeros((2, 5), jnp.int32), vocabulary * width, layers, (vocabulary + 1) * width


@pytest.mark.parametrize(
    ("blocks", "x", "first", "layers", "last"),
    [
        *(sizes_of_resmlp(*size) for size in ((1, 1, 1, 1), (4, 9, 7, 5), (2, 3, 5, 4))),
        *(sizes_of_transformer(*s) for s in ((1, 1, 1, 1, 1), (4, 3, 2, 9, 5), (2, 4, 3, 5, 3))),
        *(sizes_of_modern(*size) for size in ((1, 1, 1, 1), (4, 3, 2, 9), (2, 4, 3, 5))),
    ],
)
def test_number_of_parameters(blocks, x, first, layers, last):
    params = shapes(blocks, x)
    trunk = [f"block{k}" for k in range(len(blocks) - 1)]
    assert list(params) == [*trunk, "output"]
    assert [count(params[name]) for name in trunk] == [first + layers] + [layers] * (len(trunk) - 1)
    assert count(params["output"]) == last


def test_blocks_after_the_first_are_alike():
    """So that they can be stacked: one program for blocks on different devices."""
    params = shapes(base.make(ResMLP(4, 8), 3), IMAGES)
    stem = params["block0"].pop("stem")
    assert stem["kernel"].shape == (6, 8)
    assert params["block0"] == params["block1"] == params["block2"] == params["block3"]


def test_any_integers_are_tokens():
    """A vocabulary of 256 is one more than a byte can say."""
    blocks = base.make(Transformer(1, 4, 1), 256)
    x = np.array([[0, 1, 127, 128, 254, 255]])
    params = some(blocks, jnp.asarray(x))
    apply = jax.jit(partial(base.apply, blocks))
    wide, narrow = (apply(params, jnp.asarray(x, t)) for t in (np.int32, np.uint8))
    np.testing.assert_array_equal(wide, narrow)
    assert np.isfinite(wide).all()  # an index out of range is filled with NaN


def test_positions_are_those_of_the_length_at_initialization():
    blocks = base.make(Transformer(1, 4, 1), VOCABULARY)
    params = some(blocks, tokens())
    with pytest.raises(ScopeParamShapeError):
        base.apply(blocks, params, tokens(length=LENGTH + 1))
