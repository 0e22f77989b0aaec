"""Convolution in the frequency domain (Mathieu, Henaff and LeCun, arXiv 1312.5851).

A cross-correlation over positions is, frequency by frequency, a product:

    Y(f)[b, o] = sum over c of X(f)[b, c] conj(K(f)[c, o]),

one matrix product over the channels for each frequency f of the padded image. The kernel is as
large as the image there, so the work hardly depends on its window: large windows gain. A stride
takes every s-th number of the result of stride 1, and so saves nothing.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import scipy  # scipy.fft is imported when it is first used
from jax import lax


def fft(x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: str) -> jax.Array:
    """x (B, H, W, C) by kernel (kh, kw, C, O) to (B, H', W', O); computes in float32 at least."""
    window = kernel.shape[:2]
    pads = lax.padtype_to_pads(x.shape[1:3], window, strides, padding)
    images = jnp.pad(x, ((0, 0), *pads, (0, 0))).transpose(1, 2, 0, 3)
    # The transforms have a period of at least the image: what a window wraps around belongs to
    # positions beyond the last whole window, which are cut off.
    sizes = [scipy.fft.next_fast_len(n, real=True) for n in images.shape[:2]]
    wide = jnp.promote_types(x.dtype, jnp.float32)  # 16 bits have no transforms
    of_images, of_kernel = (jnp.fft.rfft2(a.astype(wide), sizes, (0, 1)) for a in (images, kernel))
    products = jnp.einsum("fgbc,fgco->fgbo", of_images, of_kernel.conj())
    y = jnp.fft.irfft2(products, sizes, (0, 1))
    ends = [n - size + 1 for n, size in zip(images.shape[:2], window, strict=True)]
    y = y[: ends[0] : strides[0], : ends[1] : strides[1]]
    return y.transpose(2, 0, 1, 3).astype(x.dtype)
