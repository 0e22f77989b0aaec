"""DeMo at its limit, its transform, and the numbers that SPARTA draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.clock.timeline import AllReduceStep
from optdyn.methods.sparse import chunks, demo, places
from tests.methods import nodes
from tests.methods.nodes import EACH, NODES, RATE, START, STEPS, flattened


@pytest.mark.parametrize("signed", [False, True])
def test_with_all_coefficients_demo_is_sgd_of_the_mean_gradient_or_of_its_sign(signed):
    """Nothing is left of the momenta, whatever their decay; a coefficient has a place beside it."""
    choice = AllReduceStep(numbers={"momentum_decay": np.full(STEPS, 0.9, np.float32)})
    states, sent = nodes.ran(demo(nodes.inner(), 2, 2, signed), nodes.events(choice, RATE, 0.0))
    theta, rows = np.float64(START), [slice(i * EACH, (i + 1) * EACH) for i in range(NODES)]
    for t, found in enumerate(flattened(states.params)):
        way = sum(nodes.gradient(theta, t, row) for row in rows) / NODES
        theta = theta - np.float64(np.float32(RATE)) * (np.sign(way) if signed else way)
        # Parameters of about one in float32: 1e-7 an operation, over 32 updates.
        np.testing.assert_allclose(found, np.tile(theta, (NODES, 1)), rtol=0, atol=1e-5)
    np.testing.assert_allclose(flattened(states.momentum)[-1], 0, atol=1e-6)
    np.testing.assert_array_equal(sent, 14 * (4 + 2))


@pytest.mark.parametrize("shape", [(6, 10), (7,), (3, 4, 6), ()])
def test_a_transform_keeps_lengths_and_comes_back(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    of = chunks(shape, 4)
    assert of.height <= 4 and of.width <= 4
    assert of.rows * of.height * of.columns * of.width == x.size
    found = of.encode(jnp.asarray(x))
    np.testing.assert_allclose(np.sum(found**2), np.sum(x**2), rtol=1e-5)
    np.testing.assert_allclose(of.decode(found, x), x, rtol=0, atol=1e-6)


def test_numbers_are_drawn_anew_and_all_as_often():
    """800 draws of 3 of 12: each number 200 times, to 5 standard deviations of 12."""
    draw = jax.jit(jax.vmap(lambda seed: places(seed, 0, 12, 0.25)))
    chosen = np.asarray(draw(np.arange(800)))
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    counts = np.bincount(chosen.ravel(), minlength=12)
    assert np.abs(counts - 200).max() < 60
    other = np.asarray(jax.jit(jax.vmap(lambda seed: places(seed, 1, 12, 0.25)))(np.arange(800)))
    assert (chosen != other).any(axis=1).mean() > 0.9  # another array has others
