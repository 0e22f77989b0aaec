"""DeMo: against float64 with SciPy's transform, and what is kept."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.fft import dctn, idctn

from optdyn.clock.timeline import Together
from optdyn.methods.sparse import chunks, demo
from tests.methods import nodes
from tests.methods.nodes import EACH, NODES, RATE, START, STEPS, P, flattened

BETA, GAMMA = 0.9, np.float64(np.float32(RATE))


def ran(coefficients, signed):
    choice = Together(numbers={"momentum_decay": np.full(STEPS, BETA, np.float32)})
    made = demo(nodes.inner(), 2, coefficients, signed)
    return nodes.ran(made, nodes.events(choice, RATE, 0.0))


def fast(flat, count):
    """The `count` largest coefficients of every block of 2: of (3, 4) in columns, and of (1, 2)."""
    blocks = [(slice(2 * n, 2 * n + 2), (1, 2)) for n in range(7)]  # 3 rows: no divisor but 1 and 3
    out = np.zeros_like(flat)
    for place, shape in blocks:
        found = dctn(flat[place].reshape(shape), norm="ortho").ravel()
        kept = np.zeros_like(found)
        largest = np.argsort(-np.abs(found))[:count]
        kept[largest] = found[largest]
        out[place] = idctn(kept.reshape(shape), norm="ortho").ravel()
    return out


def reference(count, signed):
    theta, m, history = np.float64(START), [np.zeros(P)] * NODES, []
    for t in range(STEPS):
        sent = []
        for i in range(NODES):
            grad = nodes.gradient(theta, t, slice(i * EACH, (i + 1) * EACH))
            m[i] = BETA * m[i] + GAMMA * grad
            sent.append(fast(m[i], count))
            m[i] = m[i] - sent[-1]
        mean = sum(sent) / NODES
        theta = theta - (GAMMA * np.sign(mean) if signed else mean)
        history.append(theta)
    return np.array(history), np.array(m)


@pytest.mark.parametrize("signed", [False, True])
def test_every_update_equals_the_reference(signed):
    states, sent = ran(1, signed)
    theta, m = reference(1, signed)
    # Parameters of about one in float32: 1e-7 an operation, over 32 updates.
    for node in range(NODES):
        np.testing.assert_allclose(flattened(states.params)[:, node], theta, rtol=0, atol=1e-5)
    np.testing.assert_allclose(flattened(states.momentum)[-1], m, rtol=0, atol=1e-5)
    assert np.abs(m).max() > 1e-2
    np.testing.assert_array_equal(sent, 7 * (4 + 2))


@pytest.mark.parametrize("shape", [(6, 10), (7,), (3, 4, 6), ()])
def test_a_transform_keeps_lengths_and_comes_back(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    of = chunks(shape, 4)
    assert of.height <= 4 and of.width <= 4
    assert of.rows * of.height * of.columns * of.width == x.size
    found = of.encode(jnp.asarray(x))
    np.testing.assert_allclose(np.sum(found**2), np.sum(x**2), rtol=1e-5)
    np.testing.assert_allclose(of.decode(found, x), x, rtol=0, atol=1e-6)
