"""The residual perceptron: its number of parameters, and what it computes, against NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.problem.models import base
from optdyn.problem.models.mlp import ResMLP
from tests.models.parameters import count, dense, layer_norm, shapes, some

CLASSES = 3


def images(seed=0, batch=5):
    return jnp.asarray(np.random.default_rng(seed).random((batch, 3, 2, 1)), jnp.float32)


@pytest.mark.parametrize(
    ("blocks", "width", "inputs", "classes"), [(1, 1, 1, 1), (4, 9, 7, 5), (2, 3, 5, 4)]
)
def test_number_of_parameters(blocks, width, inputs, classes):
    params = shapes(ResMLP(blocks, width).blocks_for(classes), jnp.zeros((2, inputs)))
    assert list(params) == [*(f"block{k}" for k in range(blocks)), "output"]
    layers = 2 * width * (width + 2)  # kernels, biases, and a scale and a bias of the norm
    assert count(params["block0"]) == (inputs + 1) * width + layers
    assert all(count(params[f"block{k}"]) == layers for k in range(1, blocks))
    assert count(params["output"]) == (width + 1) * classes + 2 * width


def test_is_its_equation():
    blocks, x = ResMLP(3, 8).blocks_for(CLASSES), images()
    params = some(blocks, x)
    wide = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    y = dense(np.asarray(x, np.float64).reshape(5, 6), **wide["block0"]["stem"])
    for k in range(3):
        block = wide[f"block{k}"]
        hidden = np.maximum(dense(layer_norm(y, **block["LayerNorm_0"]), **block["Dense_0"]), 0)
        y = y + dense(hidden, **block["Dense_1"])
    output = wide["output"]
    expected = dense(layer_norm(y, **output["LayerNorm_0"]), **output["Dense_0"])
    # Numbers of size 1 through 11 layers: 1e-5 is a hundred times what float32 rounds each by.
    made = jax.jit(partial(base.apply, blocks))(params, x)
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5)


def test_block_without_its_second_layer_is_the_identity():
    blocks, x = ResMLP(3, 8).blocks_for(CLASSES), images()
    params = some(blocks, x)
    for k in range(3):
        params[f"block{k}"]["Dense_1"] = jax.tree.map(np.zeros_like, params[f"block{k}"]["Dense_1"])
    hs = base.activations(blocks, params, x)
    for h in hs[2:-1]:
        np.testing.assert_array_equal(h, hs[1])
    assert np.abs(hs[1]).max() > 0


def test_blocks_after_the_first_are_alike():
    """So that they can be stacked: one program for blocks on different devices."""
    params = shapes(ResMLP(4, 8).blocks_for(CLASSES), images())
    stem = params["block0"].pop("stem")
    assert stem["kernel"].shape == (6, 8)
    assert params["block0"] == params["block1"] == params["block2"] == params["block3"]
