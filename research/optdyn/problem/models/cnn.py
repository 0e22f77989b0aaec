"""LeNet-style network: 5x5 convolutions with ReLU and 2x2 max-pooling, then dense layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import flax.linen as nn
import jax

from optdyn.base.fields import field
from optdyn.base.ranges import WIDTHS
from optdyn.problem.models.base import Blocks, ConvolutionalModel
from optdyn.problem.models.convolution import Conv, each, max_pool
from optdyn.problem.models.mlp import mlp

WINDOW = (5, 5)
SMALLEST = 6  # pixels a side, of which a window and a pooling leave one


class ConvPool(nn.Module):
    """(B, H, W, C) -> (B, (H - 4) / 2, (W - 4) / 2, channels). ValueError for less than a pixel.

    ReLU after pooling: the same function as before it, on a quarter of the numbers.
    """

    channels: int
    dtype: str
    lowering: str | None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        height, width = x.shape[1:3]
        if min(height, width) < SMALLEST:
            raise ValueError(
                f"{height} x {width} pixels: must be at least {SMALLEST} x {SMALLEST} before each "
                "of config.model.channels"
            )
        conv = Conv(self.channels, WINDOW, dtype=self.dtype, lowering=self.lowering)
        return nn.relu(max_pool(conv(x)))


def cnn(
    channels: Sequence[int],
    hidden: Sequence[int],
    classes: int,
    dtype: str,
    lowering: str | None = None,
) -> Blocks:
    """Blocks `conv0`, ... then those of `mlp`. (6, 16) and (120, 84) make LeNet-5.

    That has 61,706 parameters on 32 x 32 x 1 images, 44,426 on 28 x 28 x 1. `lowering` is that
    of all convolutions or a list, see `convolution.each`, which raises ValueError.
    """
    chosen = each(lowering, [(WINDOW, (1, 1))] * len(channels))
    convs = tuple(
        (f"conv{i}", ConvPool(c, dtype, own))
        for i, (c, own) in enumerate(zip(channels, chosen, strict=True))
    )
    return convs + mlp(hidden, classes, dtype)


@dataclass(frozen=True)
class CNN(ConvolutionalModel, name="cnn"):
    """LeNet-style network: 5x5 convolutions with ReLU and 2x2 max-pooling, then dense layers."""

    channels: tuple[int, ...] = field((6, 16), "Channels of its convolutions.", **WIDTHS)
    hidden: tuple[int, ...] = field((256, 256), "Widths of its dense layers.", **WIDTHS)

    def blocks_for(self, classes: int) -> Blocks:
        return cnn(self.channels, self.hidden, classes, self.dtype, self.lowering)
