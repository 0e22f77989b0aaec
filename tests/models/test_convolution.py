"""Convolution and max pooling against XLA's own, flax's and the definition.

Most arrays hold small integers: every product and sum is then an integer below 2^24, which float32
holds exactly in whatever order it is added, so results are compared without a tolerance. That is
not so of `fft` and `winograd`, whose transforms round: `close` says how far they may be off.
"""

import os
import subprocess
import sys
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from optdyn.experiment import Config
from optdyn.problem import models
from optdyn.problem.models import base
from optdyn.problem.models.convolution import (
    LOWERINGS,
    Conv,
    convolve,
    lowerings_of,
    max_pool,
    serves,
)
from tests.models import parameters

# A window and strides that a lowering serves.
LAYERS = [
    *((name, (3, 2), (2, 1)) for name in LOWERINGS if name != "winograd"),
    ("winograd", (3, 3), (1, 1)),
]
every_layer = pytest.mark.parametrize("lowering, window, strides", LAYERS)


def close(ours, reference):
    """Equal to rounding, 2^-24 in float32 and 2^-53 in float64, of numbers up to the largest.

    Transforms add some 100 numbers in each of two directions, and those of Winograd multiply by up
    to 10^2 what cancels again: 1000 roundings cover both. A number at the wrong place, or counted
    twice, is off by some tenth of the largest.
    """
    scale = max(np.abs(reference).max(), 1)
    atol = 1000 * scale * np.finfo(reference.dtype).eps
    np.testing.assert_allclose(ours, reference, rtol=0, atol=atol)


def integers(seed, *shape, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).integers(-4, 5, shape), dtype)


def distinct(seed, *shape):
    """A random order of 0, 1, ...: no ties."""
    order = np.random.default_rng(seed).permutation(np.prod(shape))
    return jnp.asarray(order.reshape(shape), np.float32)


def xla_convolution(x, kernel, strides, padding):
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def xla_pool(x, window):
    shape = (1, window, window, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, shape, shape, "VALID")


def definition(x, kernel, strides):
    """y[b, h, w, o] = sum over i, j, c of x[b, h s + i, w t + j, c] kernel[i, j, c, o]."""
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], (1, 2))
    return np.einsum("bhwcij,ijco->bhwo", windows[:, :: strides[0], :: strides[1]], kernel)


def value_and_gradients(f, *args):
    """f(*args), and the gradients of its product with fixed, unequal output weights."""
    y, pullback = jax.vjp(f, *args)
    return y, *pullback(integers(9, *y.shape, dtype=y.dtype))


def of_pair(*functions):
    """Values and gradients of two functions, compiled together."""
    return jax.jit(lambda *args: [value_and_gradients(f, *args) for f in functions])


def of_both(lowering, strides, padding):
    """Those of a lowering, and of XLA's own."""
    ours = partial(convolve, strides=strides, padding=padding, lowering=lowering)
    return of_pair(ours, partial(xla_convolution, strides=strides, padding=padding))


@settings(max_examples=6, deadline=None)  # each example compiles
@given(
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    channels=st.integers(1, 3),
    features=st.integers(1, 3),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from(("VALID", "SAME")),
)
def test_gemm_is_xla_in_value_and_both_gradients(
    batch, size, window, channels, features, strides, padding
):
    x, kernel = integers(0, batch, *size, channels), integers(1, *window, channels, features)
    for ours, reference in zip(*of_both("gemm", strides, padding)(x, kernel), strict=True):
        np.testing.assert_array_equal(ours, reference)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("lowering", ["fft", "winograd"])
@settings(max_examples=5, deadline=None)
@given(
    batch=st.integers(1, 3),
    size=st.tuples(st.integers(5, 14), st.integers(5, 14)),
    window=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from(("VALID", "SAME")),
)
def test_transforms_are_xla_in_value_and_both_gradients(
    lowering, batch, size, window, channels, strides, padding
):
    """In float64. Winograd has one window, which images from 3 x 3 pixels hold."""
    if lowering == "winograd":
        size, window, strides = (size[0] - 2, size[1] - 2), (3, 3), (1, 1)
    x, kernel = normal(0, batch, *size, channels[0]), normal(1, *window, *channels)
    with jax.enable_x64(True):
        pair = of_both(lowering, strides, padding)(x, kernel)
    for ours, reference in zip(*pair, strict=True):
        assert ours.dtype == np.float64
        close(ours, reference)


REPLICAS = """
import jax, jax.numpy as jnp
from optdyn.problem.models.convolution import convolve

def loss(kernels, x):
    return sum((convolve(x, kernel, lowering="fft") ** 2).mean() for kernel in kernels)

draw = jax.random.normal
x = draw(jax.random.key(0), (4, 16, 28, 28, 3))
kernels = [draw(jax.random.key(n), (4, 5, 5, 3, 8 + n)) for n in range(4)]
step = jax.jit(jax.vmap(jax.value_and_grad(loss)))
for _ in range(50):
    found = jax.block_until_ready(step(kernels, x))
assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_transforms_of_replicas_end(threads):
    """Some jaxlib let a transform wait for the threads that it ran on, inside `vmap` (0.10: none).

    Eight independent transforms are there for one or two threads. What is awaited is an end; two
    minutes are no judgement of the machine.
    """
    environment = {**os.environ, "NPROC": str(threads), "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", REPLICAS], env=environment, check=True, timeout=120)


def test_xlas_own_is_the_definition():
    """The others are compared with it above."""
    x, kernel = integers(0, 3, 9, 8, 2), integers(1, 3, 2, 2, 4)
    compiled = jax.jit(partial(convolve, lowering="xla", strides=(2, 1)))
    close(compiled(x, kernel), definition(np.asarray(x), np.asarray(kernel), (2, 1)))
    # SAME with an odd window and no stride: half a window of zeros on every side.
    x, kernel = integers(2, 2, 5, 7, 3), integers(3, 3, 3, 3, 2)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    compiled = jax.jit(partial(convolve, lowering="xla", padding="SAME"))
    close(compiled(x, kernel), definition(padded, np.asarray(kernel), (1, 1)))


@every_layer
@pytest.mark.parametrize("shared", [True, False])
def test_vmap_over_kernels_is_a_loop(lowering, window, strides, shared):
    kernels = integers(1, 3, *window, 2, 4)
    x = integers(0, 2, 6, 7, 2) if shared else integers(0, 3, 2, 6, 7, 2)

    def layer(x, kernel):
        return convolve(x, kernel, strides=strides, padding="SAME", lowering=lowering)

    one = jax.jit(lambda x, kernel: value_and_gradients(layer, x, kernel))
    together = jax.jit(jax.vmap(one, (None if shared else 0, 0)))(x, kernels)
    for index, kernel in enumerate(kernels):
        alone = one(x if shared else x[index], kernel)
        for ours, reference in zip(together, alone, strict=True):
            close(ours[index], reference)


@pytest.mark.parametrize("lowering_batch", [1, 3, 6])
def test_groups_of_a_batch_are_the_whole_batch(lowering_batch):
    x, kernel = integers(0, 6, 7, 8, 2), integers(1, 3, 3, 2, 4)
    gemm = partial(convolve, lowering="gemm")
    grouped = partial(gemm, lowering_batch=lowering_batch)
    for ours, reference in zip(*of_pair(grouped, gemm)(x, kernel), strict=True):
        np.testing.assert_array_equal(ours, reference)


def test_workspace_is_that_of_a_group():
    x, kernel = (jax.ShapeDtypeStruct(s, np.float32) for s in ((16, 32, 32, 8), (5, 5, 8, 8)))

    def workspace(size):
        def loss(x, kernel):
            return (convolve(x, kernel, lowering="gemm", lowering_batch=size) ** 2).sum()

        program = jax.jit(jax.grad(loss, (0, 1))).lower(x, kernel)
        return program.compile().memory_analysis().temp_size_in_bytes

    # 28 x 28 windows of 5 x 5 x 8 numbers an image. x, y and their gradients, of the whole batch,
    # are less than one such each, and so are the columns of one image and their gradient. If those
    # of all groups were kept for the gradient, there would be no saving.
    columns = 28 * 28 * 200 * 4
    assert workspace(None) > 16 * columns
    assert workspace(1) < 8 * columns


WINOGRAD = r"^lowering 'winograd' .* 3 x 3 with strides 1 x 1 only$"


@pytest.mark.parametrize(
    ("window", "keys", "line"),
    [
        *(((2, 2), {"lowering_batch": n}, rf"= {n}: must divide .* of 4$") for n in (0, -2, 3, 8)),
        ((2, 2), {"lowering": "im2row"}, r"^lowering 'im2row' .* xla, gemm, fft, winograd$"),
        ((3, 2), {"lowering": "winograd"}, WINOGRAD),
        ((3, 3), {"lowering": "winograd", "strides": (1, 2)}, WINOGRAD),
        ((5, 5), {"lowering": "winograd"}, WINOGRAD),
    ],
)
def test_layers_that_no_lowering_computes_are_one_line(window, keys, line):
    with pytest.raises(ValueError, match=line):
        convolve(integers(0, 4, 6, 6, 1), integers(1, *window, 1, 1), **keys)
    if "winograd" in line:
        served = [serves(name, window, keys.get("strides", (1, 1))) for name in LOWERINGS]
        assert served == [True, True, True, False]


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_bfloat16_is_kept(lowering):
    # Sums of 3 x 3 products of at most 16 are at most 144: bfloat16 holds integers to 256 exactly.
    # Results are integers up to the rounding of transforms, far less than a half.
    x, kernel = integers(0, 2, 6, 6, 1), integers(1, 3, 3, 1, 3)
    layer = jax.jit(lambda x, kernel: max_pool(convolve(x, kernel, lowering=lowering)))
    exact, half = layer(x, kernel), layer(x.astype("bfloat16"), kernel.astype("bfloat16"))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.rint(half.astype("float32")), np.rint(exact))
    module = Conv(3, (3, 3), dtype=jnp.bfloat16, lowering=lowering)
    y, variables = jax.jit(module.init_with_output)(jax.random.key(0), x)
    assert y.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


@every_layer
def test_module_is_that_of_flax_with_the_same_parameters(lowering, window, strides):
    params = {"kernel": integers(1, *window, 2, 4), "bias": integers(2, 4)}
    x = integers(0, 3, 7, 8, 2)
    ours = Conv(4, window, strides=strides, padding="SAME", lowering=lowering)
    reference = nn.Conv(4, window, strides=strides, padding="SAME")
    close(*jax.jit(lambda v, x: (ours.apply(v, x), reference.apply(v, x)))({"params": params}, x))
    shapes = jax.eval_shape(ours.init, jax.random.key(0), x)["params"]
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)


@pytest.mark.parametrize("backend, convolution", [("cpu", False), ("gpu", True), ("tpu", True)])
def test_default_lowering_is_that_of_the_backend(monkeypatch, backend, convolution):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    x, kernel = integers(0, 1, 5, 5, 1), integers(1, 2, 2, 1, 1)
    # A function of its own: a trace of `convolve` itself would be remembered across backends.
    program = str(jax.make_jaxpr(lambda *args: convolve(*args))(x, kernel))
    assert ("conv_general_dilated" in program) is convolution


@settings(max_examples=5, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 3), st.integers(3, 9), st.integers(3, 9), st.integers(1, 3)]),
    window=st.integers(1, 3),
)
def test_max_pool_is_reduce_window_where_nothing_ties(shape, window):
    pools = [lambda x, f=f: f(x, window) for f in (max_pool, xla_pool)]
    for ours, reference in zip(*of_pair(*pools)(distinct(0, *shape)), strict=True):
        np.testing.assert_array_equal(ours, reference)  # both only copy numbers


def test_gradient_of_a_tie_is_shared_equally():
    # Four squares in a row, whose largest number occurs 1, 2, 3 and 4 times.
    x = jnp.asarray([[5, 1, 5, 5, 5, 5, 5, 5], [2, 3, 0, 1, 5, 0, 5, 5]], jnp.float32)
    weights = jnp.asarray([6.0, 12.0, 18.0, 24.0])
    gradient = jax.grad(lambda x: weights @ max_pool(x[None, :, :, None])[0, 0, :, 0])(x)
    expected = [[6, 0, 6, 6, 6, 6, 6, 6], [0, 0, 0, 0, 6, 0, 6, 6]]
    np.testing.assert_array_equal(gradient, expected)  # 6 n / n has no rounding


# A lowering for every convolution: who gets which, and what cannot be.


LENET = {"model.name": "cnn", "model.channels": (2, 3), "model.hidden": ()}
RESNET = {"model.name": "resnet", "model.channels": (2, 4), "model.blocks": 2}


def blocks(values, lowering):
    config = Config().with_({**values, "model.lowering": lowering})
    return models.make(config.model, classes=3)


def computed(values, lowering):
    """Lowerings of the convolutions in the order in which they are computed."""
    found = []

    def record(call, arguments, keywords, context):
        if isinstance(context.module, Conv) and context.method_name == "__call__":
            found.append(context.module.lowering)
        return call(*arguments, **keywords)

    made = blocks(values, lowering)
    x = np.zeros((2, 28, 28, 1), np.float32)
    params = parameters.shapes(made, x)
    with nn.intercept_methods(record):
        jax.eval_shape(lambda params, x: base.apply(made, params, x), params, x)
    return found


# The residual network's: stem, conv0, conv1; shortcut, conv0 (both of stride 2), conv1.
@pytest.mark.parametrize(
    ("values", "lowering"),
    [
        (LENET, "gemm,fft"),
        (LENET, "fft,gemm"),
        (RESNET, "xla,winograd,gemm,fft,gemm,winograd"),
    ],
)
def test_a_list_is_in_the_order_of_computation(values, lowering):
    assert computed(values, lowering) == lowering.split(",")


@pytest.mark.parametrize("values", [LENET, RESNET])
def test_one_name_is_for_all(values):
    assert set(computed(values, "fft")) == {"fft"}
    assert set(computed(values, "")) == {None}


def test_a_list_changes_no_output():
    x = np.random.default_rng(0).random((2, 12, 12, 1), np.float32)
    mixed, uniform = (blocks(RESNET, text) for text in ("gemm,winograd,fft,gemm,fft,xla", "xla"))
    params = parameters.some(uniform, x)
    # Numbers of size 1 through six convolutions of at most 36 terms, each rounded by 6e-8, and by
    # ten times that in the transform of Winograd.
    ours, theirs = jax.jit(lambda x: [base.apply(b, params, x) for b in (mixed, uniform)])(x)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert np.abs(theirs).max() > 0.1


SHAPES = [((3, 3), (1, 1)), ((3, 3), (2, 2)), ((5, 5), (1, 1))]


@pytest.mark.parametrize(
    ("lowering", "message"),
    [
        ("gemm,fft", "names 2: must be one for all, or one for each of 3 convolutions"),
        ("gemm,fft,xla,xla", "names 4: must be one"),
        ("gemm,nosuch,fft", "lowering 'nosuch' of a convolution: one of xla, gemm"),
        ("gemm,,fft", "lowering '' of a convolution"),
        ("winograd", "'winograd' of a convolution 3 x 3 with strides 2 x 2"),
        ("winograd,xla,winograd", "'winograd' of a convolution 5 x 5"),
    ],
)
def test_what_cannot_be(lowering, message):
    with pytest.raises(ValueError, match=message) as error:
        lowerings_of(lowering, SHAPES)
    assert "\n" not in str(error.value)


def test_served():
    assert lowerings_of("winograd,xla,fft", SHAPES) == ("winograd", "xla", "fft")
    assert lowerings_of(None, SHAPES) == (None, None, None)
