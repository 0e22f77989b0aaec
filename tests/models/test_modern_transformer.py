"""The modern transformer: its parameters, what it computes, against NumPy, rotations, causality."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.problem.models import base
from optdyn.problem.models.transformer import ModernTransformer, rotate
from tests.models.parameters import (
    LENGTH,
    VOCABULARY,
    count,
    shapes,
    some,
    tokens,
)

WIDTH, HEADS = 8, 2


def rms_norm(x, scale):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def turned(x, position):
    """RoFormer's equation 14, as multiplication of complex numbers: one head at one position."""
    pairs = x[::2] + 1j * x[1::2]
    angles = [position * 10_000 ** (-2 * i / len(x)) for i in range(len(pairs))]
    pairs = pairs * np.exp(1j * np.array(angles))
    return np.stack((pairs.real, pairs.imag), -1).ravel()


def attention(x, block):
    """Of one sequence (T, width), a query and a head at a time."""
    q, k, v = (x @ block[name]["kernel"] for name in ("query", "key", "value"))
    size = q.shape[-1] // HEADS
    y = np.zeros_like(q)
    for h in range(HEADS):
        own = slice(h * size, (h + 1) * size)
        qs, ks = (
            [turned(each, t) for t, each in enumerate(rms_norm(a[:, own], **block[name]))]
            for name, a in (("query_norm", q), ("key_norm", k))
        )
        for t in range(len(q)):
            weights = np.array([math.exp(qs[t] @ ks[s] / size**0.5) for s in range(t + 1)])
            y[t, own] = weights / weights.sum() @ v[: t + 1, own]
    return y @ block["attended"]["kernel"]


def mlp(x, block):
    gate = x @ block["gate"]["kernel"]
    return (gate / (1 + np.exp(-gate)) * (x @ block["up"]["kernel"])) @ block["down"]["kernel"]


def test_is_its_equation_at_any_length():
    blocks = ModernTransformer(2, WIDTH, HEADS).blocks_for(VOCABULARY)
    params = some(blocks, tokens())
    wide = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    x = tokens(length=LENGTH + 3)  # longer than at initialization
    for row, made in zip(x, base.apply(blocks, params, x), strict=True):
        y = wide["block0"]["tokens"]["embedding"][row]
        for k in range(2):
            block = wide[f"block{k}"]
            y = y + attention(rms_norm(y, **block["attention_norm"]), block)
            y = y + mlp(rms_norm(y, **block["mlp_norm"]), block)
        output = wide["output"]
        expected = rms_norm(y, **output["norm"]) @ output["logits"]["kernel"]
        # Numbers of size 1 through some 20 layers: 1e-5 is a hundred times what float32 rounds by.
        np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5)


@settings(max_examples=12)
@given(*[st.integers(1, n) for n in (4, 4, 3, 9)])
def test_number_of_parameters(blocks, heads, pairs, vocabulary):
    width = 2 * pairs * heads
    made = ModernTransformer(blocks, width, heads).blocks_for(vocabulary)
    params = shapes(made, jnp.zeros((2, 5), jnp.int32))
    assert list(params) == [*(f"block{k}" for k in range(blocks)), "output"]
    hidden = 8 * math.ceil(width / 3)
    layers = 4 * width**2 + 3 * width * hidden + 2 * width + 2 * 2 * pairs
    assert count(params["block0"]) == vocabulary * width + layers
    assert all(count(params[f"block{k}"]) == layers for k in range(1, blocks))
    assert count(params["output"]) == width * vocabulary + width


@settings(max_examples=30)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 2**31))
def test_a_query_meets_a_key_by_their_distance_alone(t, s, shift, seed):
    """Rotations keep lengths, and <R_t q, R_s k> = <R_{t+shift} q, R_{s+shift} k>."""
    q, k = np.random.default_rng(seed).normal(size=(2, 6)).astype(np.float32)
    qs, ks = (np.asarray(rotate(jnp.tile(x, (1, 64, 1, 1))))[0, :, 0] for x in (q, k))
    # Angles up to 60 are known to 60 x 2^-24 = 4e-6 in float32, and the products are of size 10.
    np.testing.assert_allclose(np.linalg.norm(qs, axis=-1), np.linalg.norm(q), rtol=1e-6)
    assert abs(qs[t] @ ks[s] - qs[t + shift] @ ks[s + shift]) < 2e-4


def test_queries_and_keys_have_no_size():
    """QK-norm: a hundred times the queries' and keys' weights changes nothing."""
    blocks, x = ModernTransformer(1, WIDTH, HEADS).blocks_for(VOCABULARY), tokens()
    params = some(blocks, x)
    before = base.apply(blocks, params, x)
    for name in ("query", "key"):
        params["block0"][name]["kernel"] *= 100
    # But for the 1e-6 in the norm, and for rounding in float32 of outputs of size 1 to 10.
    np.testing.assert_allclose(base.apply(blocks, params, x), before, rtol=0, atol=1e-4)
