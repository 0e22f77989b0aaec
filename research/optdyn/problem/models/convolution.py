"""Convolution and max pooling, lowered for the backend they run on.

The `gemm` lowering writes the kernel windows of the whole batch as the columns of one matrix and
multiplies by the kernel once (Hadjis et al., "Omnivore", arXiv 1606.04487, section 3, on lowering
a batch into one GEMM). Inside, arrays are (C, H, W, B): with the batch innermost every window is a
copy of long contiguous runs, however few the channels, and so are the additions of its gradient.
`max_pool` works in the same order, and the transposes between the two cancel when compiled.

`fft` and `winograd` have files of their own; `xla` is the compiler's own convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from optdyn.problem.models.fft import fft
from optdyn.problem.models.winograd import winograd

Lowering = Callable[[jax.Array, jax.Array, Sequence[int], str], jax.Array]
Shape = tuple[tuple[int, int], tuple[int, int]]  # of a convolution: kernel (kh, kw), strides


def _batch_last(x: jax.Array) -> jax.Array:
    """(B, H, W, C) to (C, H, W, B); its own inverse."""
    return x.transpose(3, 1, 2, 0)


def _xla(x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: str) -> jax.Array:
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _gemm(x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: str) -> jax.Array:
    window, features = kernel.shape[:2], kernel.shape[3]
    pads = lax.padtype_to_pads(x.shape[1:3], window, strides, padding)
    columns = _batch_last(jnp.pad(x, ((0, 0), *pads, (0, 0))))
    # Columns of the window, then its rows, each stacked on the channels. The first axis ends up in
    # the order of the kernel's own (kh, kw, C), from kw + kh slices rather than kw kh.
    for axis in (2, 1):
        size, stride = window[axis - 1], strides[axis - 1]
        span = columns.shape[axis] - size + 1
        columns = jnp.concatenate(
            [lax.slice_in_dim(columns, i, i + span, stride, axis) for i in range(size)]
        )
    return _batch_last(_product(kernel.reshape(-1, features), columns))


@jax.custom_vjp
def _product(kernel: jax.Array, columns: jax.Array) -> jax.Array:
    """(n, O) and (n, H, W, B) to (O, H, W, B).

    The batch stays an axis of its own: where it is split over devices, so are the columns.
    """
    return jnp.tensordot(kernel.T, columns, 1)


def _gradients(inputs: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    # Columns first: JAX's own order has dy first, for which XLA lays out all the columns anew.
    kernel, columns = inputs
    return jnp.tensordot(columns, dy, ((1, 2, 3), (1, 2, 3))), jnp.tensordot(kernel, dy, 1)


_product.defvjp(lambda *inputs: (jnp.tensordot(inputs[0].T, inputs[1], 1), inputs), _gradients)


LOWERINGS: dict[str, Lowering] = {"xla": _xla, "gemm": _gemm, "fft": fft, "winograd": winograd}


def serves(lowering: str, kernel_shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a lowering can do a kernel of shape (kh, kw, ...) at these strides."""
    return lowering != "winograd" or (*kernel_shape[:2], *strides) == (3, 3, 1, 1)


def require(lowering: str | None, kernel_shape: Sequence[int], strides: Sequence[int]) -> None:
    """ValueError unless the lowering, None for the default, is known and serves the layer."""
    if lowering is not None and lowering not in LOWERINGS:
        raise ValueError(f"lowering {lowering!r} of a convolution: one of {', '.join(LOWERINGS)}")
    if lowering is not None and not serves(lowering, kernel_shape, strides):
        (kh, kw), (down, right) = kernel_shape[:2], strides
        raise ValueError(
            f"lowering {lowering!r} of a convolution {kh} x {kw} with strides {down} x {right}: "
            "it does 3 x 3 with strides 1 x 1 only"
        )


def default_lowering() -> str:
    """One that serves every layer, and is fast inside small networks: not the fastest of each."""
    # XLA's own convolution is slow on the CPU, the more so inside a loop such as lax.scan.
    return "gemm" if jax.default_backend() == "cpu" else "xla"


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    *,
    strides: Sequence[int] = (1, 1),
    padding: str = "VALID",
    lowering: str | None = None,
    lowering_batch: int | None = None,
) -> jax.Array:
    """Cross-correlate x (B, H, W, C) with kernel (kh, kw, C, O) into (B, H', W', O).

    `padding` is 'VALID' or 'SAME'. `lowering` is a name of LOWERINGS; None is the backend's
    default. `lowering_batch` is Omnivore's b_p: the batch is lowered in groups of so many images,
    one after the other, in the workspace of one group, and lowered again for the gradient; None
    is the whole batch, lowered once and kept for the gradient. ValueError if the name is unknown,
    if the lowering does not serve the layer, or if the groups do not divide the batch.
    """
    require(lowering, kernel.shape, strides)

    def lowered(x: jax.Array) -> jax.Array:
        return LOWERINGS[lowering or default_lowering()](x, kernel, strides, padding)

    if lowering_batch in (None, len(x)):
        return lowered(x)
    if lowering_batch < 1 or len(x) % lowering_batch:
        raise ValueError(f"lowering_batch = {lowering_batch}: must divide the batch of {len(x)}")
    groups = x.reshape(-1, lowering_batch, *x.shape[1:])
    y = lax.map(jax.checkpoint(lowered), groups)
    return y.reshape(len(x), *y.shape[2:])


def max_pool(x: jax.Array, window: int = 2) -> jax.Array:
    """Largest of each window x window square: (B, H, W, C) to (B, H // window, W // window, C).

    Rows and columns beyond the last whole square are dropped. The gradient of a square whose
    largest number occurs n times is shared equally, 1 / n to each.
    """
    x = _batch_last(x)
    h, w = x.shape[1] // window, x.shape[2] // window
    squares = x[:, : h * window, : w * window].reshape(len(x), h, window, w, window, x.shape[3])
    return _batch_last(squares.max((2, 4)))


class Conv(nn.Module):
    """(B, H, W, C) to (B, H', W', features): `convolve` and a bias."""

    features: int
    kernel_size: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: str = "VALID"
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    lowering: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param(
            "kernel",
            nn.initializers.lecun_normal(),
            (*self.kernel_size, x.shape[-1], self.features),
            self.param_dtype,
        )
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), self.param_dtype)
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        y = convolve(x, kernel, strides=self.strides, padding=self.padding, lowering=self.lowering)
        return y + bias


def each(lowering: str | None, shapes: Sequence[Shape]) -> tuple[str | None, ...]:
    """One lowering for each convolution, in the order in which they are computed.

    'gemm' is that for all of them, 'gemm,fft' names them in order, None is the default. ValueError
    if there are as many names as neither, or if one does not serve its convolution.
    """
    names = lowering.split(",") if lowering else [None]
    if len(names) not in (1, len(shapes)):
        raise ValueError(
            f"lowering {lowering!r} names {len(names)}: must be one for all, or one for each of "
            f"{len(shapes)} convolutions"
        )
    chosen = tuple(names * len(shapes) if len(names) == 1 else names)
    for name, shape in zip(chosen, shapes, strict=True):
        require(name, *shape)
    return chosen
