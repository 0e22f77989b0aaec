"""Convolution and max pooling, lowered for the backend they run on.

`gemm` writes the kernel windows of the whole batch as the columns of one matrix and multiplies by
the kernel once (Hadjis et al., "Omnivore", arXiv 1606.04487, section 3). Its arrays are
(C, H, W, B), so that windows are copies of long contiguous runs even with few channels. `max_pool`
works in the same order, and the transposes between the two cancel when compiled.

`fft` is convolution in the frequency domain (Mathieu, Henaff and LeCun, arXiv 1312.5851). A
cross-correlation over positions is, frequency by frequency, a product:

    Y(f)[b, o] = sum over c of X(f)[b, c] conj(K(f)[c, o]),

one matrix product over the channels for each frequency f of the padded image. The work hardly
depends on the window, and a stride saves nothing.

`winograd` is 3 x 3 convolution by minimal filtering (Lavin and Gray, arXiv 1509.09308, section
4.1). F(m x m, 3 x 3) computes m x m numbers Y of the result from a tile d of (m + 2) x (m + 2)
numbers of the image; tiles overlap by 2:

    Y = A^T [ sum over c of U . V ] A,   U = G g G^T,   V = B^T d B,   g the 3 x 3 kernel,

with one product for each of the (m + 2)^2 positions in a tile where the definition has 9 m^2: at
m = 4 a quarter. Fractions and cancellation cost about one digit of accuracy.
"""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # scipy.fft is imported when it is first used
from jax import lax
from jax.typing import DTypeLike

# (x (B, H, W, C), kernel (kh, kw, C, O), strides, padding) -> (B, H', W', O).
Lowering = Callable[[jax.Array, jax.Array, Sequence[int], str], jax.Array]
Shape = tuple[tuple[int, int], tuple[int, int]]  # of a convolution: kernel (kh, kw), strides


def _xla(x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: str) -> jax.Array:
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _batch_last(x: jax.Array) -> jax.Array:
    """Returns (C, H, W, B) for (B, H, W, C), and the reverse."""
    return x.transpose(3, 1, 2, 0)


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
    """Returns (O, H, W, B) for (n, O) and (n, H, W, B); a batch split over devices stays so."""
    return jnp.tensordot(kernel.T, columns, 1)


def _gradients(inputs: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    # Columns first: JAX's own order has dy first, for which XLA lays out all the columns anew.
    kernel, columns = inputs
    return jnp.tensordot(columns, dy, ((1, 2, 3), (1, 2, 3))), jnp.tensordot(kernel, dy, 1)


_product.defvjp(lambda *inputs: (jnp.tensordot(inputs[0].T, inputs[1], 1), inputs), _gradients)


def _fft(x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: str) -> jax.Array:
    """Computes in float32 at least: 16 bits have no transforms."""
    window = kernel.shape[:2]
    pads = lax.padtype_to_pads(x.shape[1:3], window, strides, padding)
    images = jnp.pad(x, ((0, 0), *pads, (0, 0))).transpose(1, 2, 0, 3)
    # The transforms have a period of at least the image: what a window wraps around belongs to
    # positions beyond the last whole window, which are cut off.
    sizes = [scipy.fft.next_fast_len(n, real=True) for n in images.shape[:2]]
    wide = jnp.promote_types(x.dtype, jnp.float32)
    of_images, of_kernel = (jnp.fft.rfft2(a.astype(wide), sizes, (0, 1)) for a in (images, kernel))
    products = jnp.einsum("fgbc,fgco->fgbo", of_images, of_kernel.conj())
    y = jnp.fft.irfft2(products, sizes, (0, 1))
    ends = [n - size + 1 for n, size in zip(images.shape[:2], window, strict=True)]
    y = y[: ends[0] : strides[0], : ends[1] : strides[1]]
    return y.transpose(2, 0, 1, 3).astype(x.dtype)


M = 4
B_T = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
G = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
A_T = (
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)


def _winograd(x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: str) -> jax.Array:
    """Computes in float32 at least: 16 bits have no digit to spare."""
    pads = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    height, width = (n + sum(pad) - 2 for n, pad in zip(x.shape[1:3], pads, strict=True))
    rows, columns = -(-height // M), -(-width // M)  # of tiles, the last ones filled with zeros
    (top, bottom), (left, right) = pads
    bottom, right = bottom + rows * M - height, right + columns * M - width
    wide = jnp.promote_types(x.dtype, jnp.float32)
    padded = jnp.pad(x.astype(wide), ((0, 0), (top, bottom), (left, right), (0, 0)))
    # Position (i, j) in every tile: (6, 6, B, rows, columns, C).
    d = _positions(_positions(padded, 2, columns), 2, rows)
    v, u = _both_sides(B_T, d), _both_sides(G, kernel.astype(wide))
    y = _both_sides(A_T, jnp.einsum("ijbrsc,ijco->ijbrso", v, u))
    y = y.transpose(2, 3, 0, 4, 1, 5).reshape(len(x), rows * M, columns * M, -1)
    return y[:, :height, :width].astype(x.dtype)


def _positions(x: jax.Array, axis: int, tiles: int) -> jax.Array:
    """Returns every M-th number of an axis from its first, second, ... on, (M + 2, ...)."""
    last = M * (tiles - 1) + 1
    return jnp.stack([lax.slice_in_dim(x, i, i + last, M, axis) for i in range(M + 2)])


def _both_sides(matrix: Sequence[Sequence[float]], x: jax.Array) -> jax.Array:
    """Returns matrix x matrix^T over the first two axes of x, as one matrix product."""
    both = np.einsum("ki,lj->klij", matrix, matrix).astype(x.dtype)
    return jnp.tensordot(both, x, 2)


LOWERINGS: dict[str, Lowering] = {"xla": _xla, "gemm": _gemm, "fft": _fft, "winograd": _winograd}


def serves(lowering: str, kernel_shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns whether a lowering can do a kernel of shape (kh, kw, ...) with these strides."""
    return lowering != "winograd" or (*kernel_shape[:2], *strides) == (3, 3, 1, 1)


def require(lowering: str | None, kernel_shape: Sequence[int], strides: Sequence[int]) -> None:
    """Raises `ValueError` unless the lowering, None for the default, can do the layer."""
    if lowering is None:
        return
    if lowering not in LOWERINGS:
        raise ValueError(f"lowering {lowering!r} of a convolution: one of {', '.join(LOWERINGS)}")
    if not serves(lowering, kernel_shape, strides):
        (kh, kw), (down, right) = kernel_shape[:2], strides
        raise ValueError(
            f"lowering {lowering!r} of a convolution {kh} x {kw} with strides {down} x {right}: "
            "it does 3 x 3 with strides 1 x 1 only"
        )


def lowerings_of(lowering: str | None, shapes: Sequence[Shape]) -> tuple[str | None, ...]:
    """Returns the lowerings of the convolutions, in the order of computation.

    'gemm' is for all, 'gemm,fft' for one after the other, None the default. Raises `ValueError`.
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


def default_lowering() -> str:
    # XLA's convolution is slow on the CPU, even more so inside a loop such as lax.scan.
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
    """Returns the cross-correlation of x (B, H, W, C) with kernel (kh, kw, C, O), (B, H', W', O).

    `padding` is 'VALID' or 'SAME'; the default of `lowering`, a name of LOWERINGS, is the
    backend's. `lowering_batch` is Omnivore's b_p: so many images are lowered at a time, and again
    for the gradient; None lowers the whole batch once and keeps it. Raises `ValueError` for a
    lowering that cannot do the layer, or groups that do not divide the batch.
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


class Conv(nn.Module):
    """(B, H, W, C) to (B, H', W', features): `convolve` and a bias."""

    features: int
    kernel_size: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: str = "VALID"
    dtype: DTypeLike | None = None
    lowering: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        y = convolve(x, kernel, strides=self.strides, padding=self.padding, lowering=self.lowering)
        return y + bias


def max_pool(x: jax.Array, window: int = 2) -> jax.Array:
    """Returns the maxima of window x window squares, (B, H // window, W // window, C).

    A remainder of rows and columns is dropped. Equal maxima share their square's gradient equally.
    """
    x = _batch_last(x)
    h, w = x.shape[1] // window, x.shape[2] // window
    squares = x[:, : h * window, : w * window].reshape(len(x), h, window, w, window, x.shape[3])
    return _batch_last(squares.max((2, 4)))
