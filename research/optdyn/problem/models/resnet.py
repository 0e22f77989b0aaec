"""Residual network of pre-activation blocks (He et al., arXiv 1603.05027), basic or bottleneck.

    y = relu(norm(x)),     f(x) = s(x) + conv(relu(norm(conv(y))))                      basic
                           f(x) = s(x) + conv(relu(norm(conv(relu(norm(conv(y)))))))    bottleneck

A basic block's convolutions are of 3 x 3. Those of a bottleneck are of 1 x 1, 3 x 3 and 1 x 1, and
the last has four times the channels of the others (arXiv 1512.03385). s(x) = x; where the shape
changes, s is a 1 x 1 convolution of y. Every stage after the first halves height and width in its
first block, the bottleneck's in its 3 x 3. block0 begins with the stem:

    half     3 x 3 at every second pixel: the trunk of an image of 28 x 28 runs at 14 x 14
    whole    3 x 3 at every pixel, as is usual for CIFAR
    quarter  7 x 7 at every second pixel, then the largest of 3 x 3 at every second: ImageNet's

ResNet-18 has the stages (2, 2, 2, 2) of channels (64, 128, 256, 512), ResNet-50 bottlenecks in the
stages (3, 4, 6, 3) of the same channels. For ImageNet's 1,000 classes they have 11,692,520 and
25,575,912 parameters. The originals (torchvision's 11,689,512 and 25,557,032) normalize after each
convolution rather than before, shortcuts and stem too, and their convolutions have no biases.

norm 'group' is group normalization (Wu & He, arXiv 1803.08494), of each example by itself. 'batch'
is a batch normalization without state: it takes the mean and variance of each channel over the
batch that it is given, in training and in evaluation alike, and keeps no running averages. What
the network makes of an example so depends on the others of its batch, and the evaluation set is
normalized in the batches in which it is evaluated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import flax.linen as nn
import jax

from optdyn.base.fields import field
from optdyn.base.ranges import BLOCKS, WIDTHS, counts
from optdyn.problem.models.base import Blocks, ConvolutionalModel
from optdyn.problem.models.convolution import Conv, Shape, each

NORMS = ("group", "batch")
STEMS: dict[str, Shape] = {
    "half": ((3, 3), (2, 2)),
    "whole": ((3, 3), (1, 1)),
    "quarter": ((7, 7), (2, 2)),
}
WIDER = 4  # a bottleneck's output than the channels inside
GROUPS = 8  # of group normalization, or as many as there are channels


def normalize(x: jax.Array, norm: str, dtype: str) -> jax.Array:
    """x (B, H, W, C), normalized and scaled by parameters of the module that calls this."""
    if norm == "batch":  # groups of one channel, which extend over the batch
        layer = nn.GroupNorm(None, group_size=1, reduction_axes=(0, 1, 2, 3), dtype=dtype)
    else:
        layer = nn.GroupNorm(min(GROUPS, x.shape[-1]), dtype=dtype)
    return layer(x)


def convolutions(stride: int, stem: str, bottleneck: bool = False) -> dict[str, Shape]:
    """Kernel and strides of the convolutions of a block, in the order they are computed in."""
    first = {"stem": STEMS[stem]} if stem else {}
    strides = (stride, stride)
    if stride > 1 or (stem and bottleneck):
        first["shortcut"] = ((1, 1), strides)
    if bottleneck:
        inner: dict[str, Shape] = {"conv0": ((1, 1), (1, 1)), "conv1": ((3, 3), strides)}
        return first | inner | {"conv2": ((1, 1), (1, 1))}
    return first | {"conv0": ((3, 3), strides), "conv1": ((3, 3), (1, 1))}


class ResidualConv(nn.Module):
    """(B, H, W, C) -> (B, ceil(H / stride), ceil(W / stride), channels).

    Of a bottleneck 4 channels. With a stem, H and W are what it leaves of them.
    """

    channels: int
    stride: int
    norm: str
    dtype: str
    lowerings: Sequence[str | None]  # of its `convolutions`
    stem: str = ""
    bottleneck: bool = False

    def conv(self, name: str) -> Conv:
        """The convolution of that name: its window, strides and lowering."""
        shapes = convolutions(self.stride, self.stem, self.bottleneck)
        window, strides = shapes[name]
        wide = self.bottleneck and name in ("shortcut", "conv2")
        return Conv(
            self.channels * (WIDER if wide else 1),
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
        if self.stem == "quarter":
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        y = nn.relu(normalize(x, self.norm, self.dtype))
        if "shortcut" in convolutions(self.stride, self.stem, self.bottleneck):
            x = self.conv("shortcut")(y)
        y = self.conv("conv0")(y)
        for name in ("conv1", "conv2")[: 1 + self.bottleneck]:
            y = self.conv(name)(nn.relu(normalize(y, self.norm, self.dtype)))
        return x + y


class PooledOutput(nn.Module):
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
    stages: Sequence[int] = (),
    stem: str = "half",
    bottleneck: bool = False,
) -> Blocks:
    """`block0`, which holds the stem, to `block{K - 1}`, and the head, `output`.

    `channels` has one entry a stage, and so has `stages`, the blocks of each; if that is (), each
    has blocks / len(channels) of them. ValueError if that is no whole number, at least 1, if there
    are more or fewer stages, if `norm` or `stem` is unknown, if groups cannot divide the channels,
    or if `lowering`, that of all convolutions or a list (`convolution.each`), does not serve them.
    """
    if not stages and (not channels or blocks < 1 or blocks % len(channels)):
        raise ValueError(
            f"resnet of {blocks} blocks: must be a multiple of its {len(channels)} stages, "
            "one for each of its channels"
        )
    depths = tuple(stages) or (blocks // len(channels),) * len(channels)
    if len(depths) != len(channels) or min(depths) < 1:
        raise ValueError(
            f"resnet of stages {depths}: must be one number of blocks, at least 1, for each of its "
            f"{len(channels)} channels"
        )
    if norm not in NORMS:
        raise ValueError(f"norm {norm!r} of a resnet: one of {', '.join(NORMS)}")
    if stem not in STEMS:
        raise ValueError(f"stem {stem!r} of a resnet: one of {', '.join(STEMS)}")
    for count in channels:
        if norm == "group" and count % min(GROUPS, count):
            raise ValueError(
                f"resnet of {count} channels with norm 'group': must be a multiple of {GROUPS}, "
                f"or less than {GROUPS}"
            )
    of_block = [k for k, depth in enumerate(depths) for _ in range(depth)]  # its stage
    own = [  # stride and stem
        (2 if i and of_block[i - 1] != k else 1, "" if i else stem) for i, k in enumerate(of_block)
    ]
    shapes = [convolutions(*one, bottleneck) for one in own]
    chosen = iter(each(lowering, [shape for of in shapes for shape in of.values()]))
    trunk = tuple(
        (
            f"block{i}",
            ResidualConv(
                channels[k],
                stride,
                norm,
                dtype,
                tuple(islice(chosen, len(shapes[i]))),
                first,
                bottleneck,
            ),
        )
        for i, (k, (stride, first)) in enumerate(zip(of_block, own, strict=True))
    )
    return (*trunk, ("output", PooledOutput(classes, norm, dtype)))


@dataclass(frozen=True)
class ResNet(ConvolutionalModel, name="resnet"):
    """Residual network of pre-activation blocks (arXiv 1603.05027), basic or bottleneck."""

    channels: tuple[int, ...] = field((6, 16), "Channels of each stage's blocks.", **WIDTHS)
    blocks: int = field(8, "Residual blocks.", at_least=1, at_most=BLOCKS)
    norm: str = field("group", "Its normalization, 'group' or 'batch'.", one_of=NORMS)
    stages: tuple[int, ...] = field(
        (),
        "Blocks of each stage, as (3, 4, 6, 3); (): model.blocks evenly.",
        wanted=f"whole numbers from 1 to {BLOCKS:,}, or ()",
        holds=counts,
    )
    stem: str = field(
        "half",
        "3 x 3 at 'half' or the 'whole' size, or ImageNet's at a 'quarter'.",
        one_of=("half", "whole", "quarter"),
    )
    bottleneck: bool = field(False, "Blocks of 1 x 1, 3 x 3 and 1 x 1 convolutions.")

    def blocks_for(self, classes: int) -> Blocks:
        numbers = self.channels, self.blocks, self.norm, classes, self.dtype, self.lowering
        return resnet(*numbers, self.stages, self.stem, self.bottleneck)
