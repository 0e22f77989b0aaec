"""Residual network of pre-activation basic blocks (He et al., arXiv 1603.05027).

    y = relu(norm(x)),     f(x) = s(x) + conv(relu(norm(conv(y))))

with convolutions of 3 x 3 and s(x) = x; where the shape changes, s is a 1 x 1 convolution of y.
Every stage after the first halves height and width in its first block, and the stem, the 3 x 3
convolution that block0 begins with, does so too: the trunk of an image of 28 x 28 runs at 14 x 14.

norm 'group' is group normalization (Wu & He, arXiv 1803.08494), of each example by itself. 'batch'
is a batch normalization without state: it takes the mean and variance of each channel over the
batch that it is given, in training and in evaluation alike, and keeps no running averages. What
the network makes of an example so depends on the others of its batch, and the evaluation set is
normalized in the batches in which it is evaluated.
"""

from collections.abc import Sequence
from itertools import islice

import flax.linen as nn
import jax

from research.models.base import Blocks
from research.models.convolution import Conv
from research.models.lowerings import Shape, each

NORMS = ("group", "batch")
GROUPS = 8  # of group normalization, or as many as there are channels


def normalize(x: jax.Array, norm: str, dtype: str) -> jax.Array:
    """x (B, H, W, C), normalized and scaled by parameters of the module that calls this."""
    if norm == "batch":  # groups of one channel, which extend over the batch
        layer = nn.GroupNorm(None, group_size=1, reduction_axes=(0, 1, 2, 3), dtype=dtype)
    else:
        layer = nn.GroupNorm(min(GROUPS, x.shape[-1]), dtype=dtype)
    return layer(x)


def convolutions(stride: int, stem: bool) -> dict[str, Shape]:
    """Kernel and strides of the convolutions of a block, in the order they are computed in."""
    first: dict[str, Shape] = {"stem": ((3, 3), (2, 2))} if stem else {}
    if stride > 1:
        first["shortcut"] = ((1, 1), (stride, stride))
    return first | {"conv0": ((3, 3), (stride, stride)), "conv1": ((3, 3), (1, 1))}


class Residual(nn.Module):
    """(B, H, W, C) -> (B, ceil(H / stride), ceil(W / stride), channels).

    With the stem, H and W are halved, rounded up, before.
    """

    channels: int
    stride: int
    norm: str
    dtype: str
    lowerings: Sequence[str | None]  # of its `convolutions`
    stem: bool = False

    def conv(self, name: str) -> Conv:
        shapes = convolutions(self.stride, self.stem)
        window, strides = shapes[name]
        return Conv(
            self.channels,
            window,
            strides=strides,
            padding="SAME",
            dtype=self.dtype,
            lowering=self.lowerings[list(shapes).index(name)],
            name=name,
        )

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.stem:
            x = self.conv("stem")(x)
        y = nn.relu(normalize(x, self.norm, self.dtype))
        if self.stride > 1:
            x = self.conv("shortcut")(y)
        y = self.conv("conv0")(y)
        y = nn.relu(normalize(y, self.norm, self.dtype))
        return x + self.conv("conv1")(y)


class Output(nn.Module):
    """(B, H, W, C) -> (B, classes): normalization, ReLU, the mean over pixels, a dense layer."""

    classes: int
    norm: str
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.relu(normalize(x, self.norm, self.dtype)).mean((1, 2))
        return nn.Dense(self.classes, dtype=self.dtype)(y)


def resnet(
    channels: Sequence[int],
    blocks: int,
    norm: str,
    classes: int,
    dtype: str,
    lowering: str | None = None,
) -> Blocks:
    """`block0`, which holds the stem, to `block{blocks - 1}`, and the head, `output`.

    `channels` has one entry a stage, each of blocks / len(channels) blocks. ValueError if that is
    no whole number, at least 1, if `norm` is unknown, if groups cannot divide the channels, or if
    `lowering`, that of all convolutions or a list (`lowerings.each`), does not serve them.
    """
    if not channels or blocks < 1 or blocks % len(channels):
        raise ValueError(
            f"resnet of {blocks} blocks: must be a multiple of its {len(channels)} stages, "
            "one for each of its channels"
        )
    if norm not in NORMS:
        raise ValueError(f"norm {norm!r} of a resnet: one of {', '.join(NORMS)}")
    for count in channels:
        if norm == "group" and count % min(GROUPS, count):
            raise ValueError(
                f"resnet of {count} channels with norm 'group': must be a multiple of {GROUPS}, "
                f"or less than {GROUPS}"
            )
    depth = blocks // len(channels)
    strides = [2 if k and k % depth == 0 else 1 for k in range(blocks)]
    shapes = [convolutions(stride, k == 0) for k, stride in enumerate(strides)]
    chosen = iter(each(lowering, [shape for own in shapes for shape in own.values()]))
    trunk = tuple(
        (
            f"block{k}",
            Residual(
                channels[k // depth],
                strides[k],
                norm,
                dtype,
                tuple(islice(chosen, len(shapes[k]))),
                stem=k == 0,
            ),
        )
        for k in range(blocks)
    )
    return (*trunk, ("output", Output(classes, norm, dtype)))
