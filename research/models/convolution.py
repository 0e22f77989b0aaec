"""Convolution and max pooling, lowered for the backend they run on (first version, being tuned)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax


def _xla(x, kernel, strides, padding):
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _gemm(x, kernel, strides, padding):
    kh, kw, channels, features = kernel.shape
    pads = lax.padtype_to_pads(x.shape[1:3], (kh, kw), strides, padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    batch, height, width, _ = x.shape
    h, w = (height - kh) // strides[0] + 1, (width - kw) // strides[1] + 1
    patches = jnp.concatenate(
        [
            x[:, i : i + (h - 1) * strides[0] + 1 : strides[0], j : j + (w - 1) * strides[1] + 1 : strides[1]]
            for i in range(kh)
            for j in range(kw)
        ],
        axis=-1,
    )
    return patches @ kernel.reshape(kh * kw * channels, features)


LOWERINGS: dict[str, Callable[..., jax.Array]] = {"xla": _xla, "gemm": _gemm}


def convolve(x, kernel, *, strides=(1, 1), padding="VALID", lowering=None):
    """(B, H, W, C) and (kh, kw, C, O) to (B, H', W', O)."""
    if lowering is None:
        lowering = "gemm" if jax.default_backend() == "cpu" else "xla"
    return LOWERINGS[lowering](x, kernel, strides, padding)


def max_pool(x, window=2):
    """(B, H, W, C) to (B, H // window, W // window, C)."""
    batch, height, width, channels = x.shape
    h, w = height // window, width // window
    x = x[:, : h * window, : w * window]
    return x.reshape(batch, h, window, w, window, channels).max((2, 4))


class Conv(nn.Module):
    features: int
    kernel_size: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: str = "VALID"
    dtype: Any = None
    param_dtype: Any = jnp.float32
    lowering: str | None = None

    @nn.compact
    def __call__(self, x):
        kernel = self.param(
            "kernel",
            nn.initializers.lecun_normal(),
            (*self.kernel_size, x.shape[-1], self.features),
            self.param_dtype,
        )
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), self.param_dtype)
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        return (
            convolve(x, kernel, strides=self.strides, padding=self.padding, lowering=self.lowering)
            + bias
        )
