"""Convolution and max pooling against XLA's own, flax's and the definition.

Most arrays hold small integers: every product and sum is then an integer below 2^24, which float32
holds exactly in whatever order it is added, so results are compared without a tolerance.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from research.models.convolution import LOWERINGS, Conv, convolve, max_pool


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


@settings(max_examples=12, deadline=None)  # each example compiles
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

    def gemm(x, kernel):
        return convolve(x, kernel, strides=strides, padding=padding, lowering="gemm")

    def xla(x, kernel):
        return xla_convolution(x, kernel, strides, padding)

    both = jax.jit(lambda *args: [value_and_gradients(f, *args) for f in (gemm, xla)])
    for ours, reference in zip(*both(x, kernel), strict=True):
        np.testing.assert_array_equal(ours, reference)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_every_lowering_is_the_definition(lowering):
    x, kernel = integers(0, 3, 9, 8, 2), integers(1, 3, 2, 2, 4)
    y = convolve(x, kernel, strides=(2, 3), lowering=lowering)
    np.testing.assert_array_equal(y, definition(np.asarray(x), np.asarray(kernel), (2, 3)))
    # SAME with an odd window and no stride: half a window of zeros on every side.
    x, kernel = integers(2, 2, 5, 7, 3), integers(3, 5, 3, 3, 2)
    padded = np.pad(x, ((0, 0), (2, 2), (1, 1), (0, 0)))
    y = convolve(x, kernel, padding="SAME", lowering=lowering)
    np.testing.assert_array_equal(y, definition(padded, np.asarray(kernel), (1, 1)))


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("shared", [True, False])
def test_vmap_over_kernels_is_a_loop(lowering, shared):
    kernels = integers(1, 3, 3, 3, 2, 4)
    x = integers(0, 2, 6, 6, 2) if shared else integers(0, 3, 2, 6, 6, 2)

    def layer(x, kernel):
        y = convolve(x, kernel, strides=(1, 2), padding="SAME", lowering=lowering)
        return max_pool(y)

    one = jax.jit(lambda x, kernel: value_and_gradients(layer, x, kernel))
    together = jax.jit(jax.vmap(one, (None if shared else 0, 0)))(x, kernels)
    for index, kernel in enumerate(kernels):
        alone = one(x if shared else x[index], kernel)
        for ours, reference in zip(together, alone, strict=True):
            # Three tied numbers share a gradient in thirds, the only roundings: 2^-24 each, summed
            # over some 20 windows and 16 products of size 16, so 1e-3 is far above them, and far
            # below the 1 / 12 by which two different gradients differ at least.
            np.testing.assert_allclose(ours[index], reference, rtol=0, atol=1e-3)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_bfloat16_is_kept(lowering):
    # Sums of 2 x 2 products of at most 16 are at most 64: bfloat16 holds integers to 256 exactly.
    x, kernel = integers(0, 2, 6, 6, 1), integers(1, 2, 2, 1, 3)
    layer = jax.jit(lambda x, kernel: max_pool(convolve(x, kernel, lowering=lowering)))
    exact, half = layer(x, kernel), layer(x.astype("bfloat16"), kernel.astype("bfloat16"))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_array_equal(half.astype("float32"), exact)
    module = Conv(3, (2, 2), dtype=jnp.bfloat16, lowering=lowering)
    y, variables = module.init_with_output(jax.random.key(0), x)
    assert y.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_module_is_that_of_flax_with_the_same_parameters(lowering):
    params = {"kernel": integers(1, 3, 2, 2, 4), "bias": integers(2, 4)}
    x = integers(0, 3, 7, 8, 2)
    ours = Conv(4, (3, 2), strides=(2, 1), padding="SAME", lowering=lowering)
    reference = nn.Conv(4, (3, 2), strides=(2, 1), padding="SAME")
    np.testing.assert_array_equal(
        ours.apply({"params": params}, x), reference.apply({"params": params}, x)
    )
    shapes = jax.eval_shape(ours.init, jax.random.key(0), x)["params"]
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)


@pytest.mark.parametrize("backend, convolution", [("cpu", False), ("gpu", True), ("tpu", True)])
def test_default_lowering_is_that_of_the_backend(monkeypatch, backend, convolution):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    x, kernel = integers(0, 1, 5, 5, 1), integers(1, 2, 2, 1, 1)
    # A function of its own: a trace of `convolve` itself would be remembered across backends.
    program = str(jax.make_jaxpr(lambda *args: convolve(*args))(x, kernel))
    assert ("conv_general_dilated" in program) is convolution


def test_unknown_lowering_is_one_line_with_the_names():
    with pytest.raises(ValueError, match=r"^lowering 'fft' .* one of xla, gemm$"):
        convolve(integers(0, 1, 5, 5, 1), integers(1, 2, 2, 1, 1), lowering="fft")


@settings(max_examples=6, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 3), st.integers(3, 9), st.integers(3, 9), st.integers(1, 3)]),
    window=st.integers(1, 3),
)
def test_max_pool_is_reduce_window_where_nothing_ties(shape, window):
    pools = [lambda x, f=f: f(x, window) for f in (max_pool, xla_pool)]
    both = jax.jit(lambda x: [value_and_gradients(pool, x) for pool in pools])
    for ours, reference in zip(*both(distinct(0, *shape)), strict=True):
        np.testing.assert_array_equal(ours, reference)  # both only copy numbers


def test_gradient_of_a_tie_is_shared_equally():
    # Four squares in a row, whose largest number occurs 1, 2, 3 and 4 times.
    x = jnp.asarray([[5, 1, 5, 5, 5, 5, 5, 5], [2, 3, 0, 1, 5, 0, 5, 5]], jnp.float32)
    weights = jnp.asarray([6.0, 12.0, 18.0, 24.0])
    gradient = jax.grad(lambda x: weights @ max_pool(x[None, :, :, None])[0, 0, :, 0])(x)
    expected = [[6, 0, 6, 6, 6, 6, 6, 6], [0, 0, 0, 0, 6, 0, 6, 6]]
    np.testing.assert_array_equal(gradient, expected)  # 6 n / n has no rounding
