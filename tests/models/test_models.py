"""Models as blocks: names, shapes, dtypes and what they compute, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.problem import models
from optdyn.problem.models import ModernTransformer, ResMLP, ResNet, Transformer, base
from optdyn.problem.models.convnets import NORMS
from optdyn.problem.models.quadratic import curvatures, optima
from tests.models.parameters import LENGTH, VOCABULARY, count, dense, shapes, some, tokens
from tests.values import as_model

CLASSES = 10


def blocks(name, dtype="float32", **values):
    keys = {"hidden": (120, 84), "channels": (6, 16), "lowering": "", "dimension": 5}
    return models.make(as_model({"name": name, "dtype": dtype, **keys, **values}), CLASSES)


@pytest.mark.parametrize(("side", "flat", "total"), [(28, 4 * 4 * 16, 44_426), (32, 400, 61_706)])
def test_lenet5_has_its_number_of_parameters(side, flat, total):
    """On the 32 x 32 images of the paper, to which MNIST was padded, LeNet-5 has 61,706."""
    made = blocks("cnn")
    assert [name for name, _ in made] == ["conv0", "conv1", "hidden0", "hidden1", "classifier"]
    params = shapes(made, jnp.zeros((1, side, side, 1)))
    assert {name: count(block) for name, block in params.items()} == {
        "conv0": 5 * 5 * 1 * 6 + 6,
        "conv1": 5 * 5 * 6 * 16 + 16,
        "hidden0": flat * 120 + 120,
        "hidden1": 120 * 84 + 84,
        "classifier": 84 * 10 + 10,
    }
    assert count(params) == total


def test_mlp_has_a_block_a_layer():
    params = shapes(blocks("mlp", hidden=(7, 3)), jnp.zeros((2, 4, 4, 1)))
    assert {name: count(block) for name, block in params.items()} == {
        "hidden0": 16 * 7 + 7,
        "hidden1": 7 * 3 + 3,
        "classifier": 3 * 10 + 10,
    }
    assert list(shapes(blocks("mlp", hidden=()), jnp.zeros((2, 4)))) == ["classifier"]


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_bfloat16_computes_on_float32_parameters(name):
    """The gradient, which is what is applied to them, is float32 as they are."""
    x = jnp.asarray(np.random.default_rng(0).random((4, 10, 10, 1)), jnp.float32)
    wide, narrow = (
        blocks(name, dtype, hidden=(8,), channels=(3,)) for dtype in ("float32", "bfloat16")
    )
    params = some(narrow, x)

    def total(params):
        outputs = base.apply(narrow, params, x)
        return outputs.astype(jnp.float32).sum(), outputs

    grads, outputs = jax.jit(jax.grad(total, has_aux=True))(params)
    for leaf in jax.tree.leaves((params, grads)):
        assert leaf.dtype == jnp.float32
    for stop in range(1, len(narrow) + 1):
        part = jax.eval_shape(lambda x, stop=stop: base.apply(narrow[:stop], params, x), x)
        assert part.dtype == jnp.bfloat16
    exact = jax.jit(lambda params: base.apply(wide, params, x))(params)
    assert exact.dtype == jnp.float32
    outputs, exact = np.asarray(outputs, np.float64), np.asarray(exact, np.float64)
    error = np.abs(exact - outputs).max() / np.abs(exact).max()
    # Eight bits of mantissa: rounding of 2^-9 at each of a few layers; and some of it, or the
    # computation was not in bfloat16 at all.
    assert 1e-5 < error < 0.03


def relu(x):
    return np.maximum(x, 0)


def test_mlp_against_numpy():
    made = blocks("mlp", hidden=(7, 3))
    x = np.random.default_rng(0).random((5, 2, 2, 1), np.float32)
    params = some(made, x)
    y = x.reshape(5, 4).astype(np.float64)
    for name in ("hidden0", "hidden1", "classifier"):
        y = dense(y, **params[name]["Dense_0"])
        y = y if name == "classifier" else relu(y)
    # Float32 sums of at most seven products.
    np.testing.assert_allclose(base.apply(made, params, x), y, rtol=1e-5, atol=1e-6)


def test_convolution_block_against_numpy():
    """Every window times the kernel, ReLU, then the largest of each 2 x 2: in that order."""
    made = blocks("cnn", channels=(3,), hidden=())[:1]
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 2)).astype(np.float32)
    params = some(made, x)
    (conv,) = params["conv0"].values()
    windows = np.lib.stride_tricks.sliding_window_view(x, (5, 5), axis=(1, 2))
    y = relu(np.einsum("nhwcij,ijco->nhwo", windows, conv["kernel"]) + conv["bias"])
    pooled = y.reshape(2, 2, 2, 2, 2, 3).max((2, 4))
    # Float32 sums of 50 products of numbers about one.
    np.testing.assert_allclose(base.apply(made, params, x), pooled, rtol=1e-4, atol=1e-5)


def test_blocks_start_from_keys_of_their_own():
    init = jax.jit(lambda key: base.init(blocks("mlp", hidden=(4, 4)), key, jnp.ones((1, 4))))
    params = init(jax.random.key(0))
    one, two = (np.asarray(params[name]["Dense_0"]["kernel"]) for name in ("hidden0", "hidden1"))
    assert one.shape == two.shape and not np.array_equal(one, two)
    jax.tree.map(np.testing.assert_array_equal, params, init(jax.random.key(0)))
    other = np.asarray(init(jax.random.key(1))["hidden0"]["Dense_0"]["kernel"])
    assert not np.array_equal(one, other)


def test_quadratic_is_one_block_that_starts_at_ones():
    made = blocks("quadratic")
    params = base.init(made, jax.random.key(0), jnp.zeros((3, 5)))
    assert list(params) == ["x"] and params["x"]["x"].dtype == jnp.float32
    np.testing.assert_array_equal(params["x"]["x"], np.ones(5))
    xi = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(base.apply(made, params, xi), 1 - xi)


@pytest.mark.parametrize(("dimension", "condition"), [(1, 1.0), (2, 50.0), (16, 10.0)])
def test_curvatures(dimension, condition):
    """Of the given condition, with the same ratio from each to the next, the largest 1."""
    h = curvatures(dimension, condition).astype(np.float64)
    assert h.shape == (dimension,)
    # Rounding to float32.
    assert h.max() == pytest.approx(1 if dimension > 1 else 1 / condition, rel=1e-6)
    assert h.max() / h.min() == pytest.approx(condition if dimension > 1 else 1, rel=1e-6)
    np.testing.assert_allclose(np.diff(np.log(h), n=2), 0, atol=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.5, 30.0])
def test_optima_have_mean_zero_and_the_noise(noise):
    xi = optima(np.random.default_rng(0), 2000, 8, noise)
    assert xi.shape == (2000, 8) and xi.dtype == np.float32
    # Each is rounded to float32 once, so that the mean is off by less than one rounding of 4 noise.
    assert np.abs(xi.astype(np.float64).mean(0)).max() <= 4 * noise * 2**-24
    # 16,000 normal draws give the deviation to 0.56 %: four of those.
    assert xi.std() == pytest.approx(noise, rel=0.0224)


TRANSFORMERS = (Transformer, ModernTransformer)
IMAGES = jnp.zeros((3, 8, 8, 1))
WITH_HEADS = {
    "resmlp": (ResMLP(3, 8), IMAGES),
    **{norm: (ResNet((4, 8), 2, norm), IMAGES) for norm in NORMS},
    **{kind.tag: (kind(3, 8, 2), tokens(dtype=np.uint8)) for kind in TRANSFORMERS},
}


@pytest.mark.parametrize(
    ("name", "dtype"), [("resmlp", "float32"), *((name, "bfloat16") for name in WITH_HEADS)]
)
def test_head_applies_after_every_block(name, dtype):
    """Outputs are of one shape; parameters and gradients stay float32."""
    model, x = WITH_HEADS[name]
    shape = (3, CLASSES) if x is IMAGES else (3, LENGTH, VOCABULARY)
    blocks = base.make(model.with_(dtype=dtype), shape[-1])
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
    if name in NORMS:  # whose blocks are of two widths
        assert params["block0_head"]["Dense_0"]["kernel"].shape == (4, CLASSES)
        assert params["output"]["Dense_0"]["kernel"].shape == (8, CLASSES)


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_position_depends_on_itself_and_those_before_alone(kind):
    blocks, x = base.make(kind(2, 8, 2), VOCABULARY), tokens(1)
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


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        (Transformer, {"attended": (48, 16), "contract": (4 * 48, 16)}),
        (ModernTransformer, {"attended": (48, 16), "down": (128, 16), "up": (48, 1)}),
    ],
)
def test_initial_scale_of_branches_falls_with_depth(kind, layers):
    """By layer, how many numbers each of its outputs is of and in how many branches of 8 blocks."""
    _, block = base.make(kind(8, 48, 2), VOCABULARY)[0]
    params = jax.jit(block.init)(jax.random.key(0), tokens())["params"]
    for name, (fan_in, joins) in layers.items():
        kernel = params[name]["kernel"]
        assert len(kernel) == fan_in
        expected = (fan_in * joins) ** -0.5
        # That of n numbers is known to 1 / sqrt(2 n) of it, 1.5% for 48 x 48; without depth in it
        # the expected one would be four times as large.
        assert abs(kernel.std() / expected - 1) < 5 / (2 * kernel.size) ** 0.5, name


@pytest.mark.parametrize(
    ("kind", "width", "message"),
    [
        (Transformer, 10, r"^transformer of width 10: .* multiple of its 4 att"),
        (ModernTransformer, 12, r"^modern_transformer of width 12: .* of twice its 4 att"),
    ],
)
def test_width_that_does_not_divide_is_one_line(kind, width, message):
    with pytest.raises(ValueError, match=message):
        base.make(kind(1, width, 4), VOCABULARY)
