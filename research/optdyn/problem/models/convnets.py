"""Convolutional networks: LeNet's kind, and residual ones of pre-activation blocks.

    y = relu(norm(x)),     f(x) = s(x) + conv(relu(norm(conv(y))))                      basic
                           f(x) = s(x) + conv(relu(norm(conv(relu(norm(conv(y)))))))    bottleneck

is a residual block (He et al., arXiv 1603.05027). The convolutions of a basic block are 3 x 3, of a
bottleneck 1 x 1, 3 x 3 and 1 x 1, the last with four times the channels of the others
(arXiv 1512.03385). s(x) = x; where the shape changes, s is a 1 x 1 convolution of y. Stages after
the first halve height and width in their first block, a bottleneck in its 3 x 3. block0 begins with
the stem:

    half     3 x 3 with stride 2: the trunk of an image of 28 x 28 runs at 14 x 14
    whole    3 x 3 with stride 1, as usual for CIFAR
    quarter  7 x 7 with stride 2, then max pooling of 3 x 3 with stride 2, as for ImageNet

ResNet-18 has the stages (2, 2, 2, 2) of channels (64, 128, 256, 512), ResNet-50 bottlenecks in the
stages (3, 4, 6, 3) of the same channels. The originals normalize after each convolution rather than
before, shortcuts and stem too, and their convolutions have no biases.

norm 'group' is group normalization (Wu & He, arXiv 1803.08494) of single examples, 'batch' batch
normalization without running averages: outputs depend on the other examples of the batch, also in
evaluation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice

import flax.linen as nn
import jax

from optdyn.base.errors import Check
from optdyn.base.fields import field
from optdyn.base.ranges import BLOCKS, WIDTHS, counts
from optdyn.problem.models.base import LayeredModel, Networks
from optdyn.problem.models.convolution import Conv, Shape, lowerings_of, max_pool
from optdyn.problem.models.mlp import dense_layers

WINDOW = (5, 5)  # of LeNet
SMALLEST = 6  # pixels a side, of which a window and pooling leave one
NORMS = ("group", "batch")
STEMS: dict[str, Shape] = {
    "half": ((3, 3), (2, 2)),
    "whole": ((3, 3), (1, 1)),
    "quarter": ((7, 7), (2, 2)),
}
WIDER = 4  # output channels of a bottleneck over those inside
GROUPS = 8  # of group normalization, if there are so many channels


@dataclass(frozen=True)
class ConvolutionalModel(LayeredModel):
    _: KW_ONLY
    lowering: str = field(
        "",
        "Lowering of convolutions, or a list 'gemm,fft' in their order; '': the backend's "
        "default; 'measured': the fastest here.",
    )


class ConvPool(nn.Module):
    """(B, H, W, C) -> (B, (H - 4) / 2, (W - 4) / 2, channels). ValueError for less than a pixel."""

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


@dataclass(frozen=True)
class CNN(ConvolutionalModel, name="cnn"):
    """LeNet-style network: 5x5 convolutions with ReLU and 2x2 max-pooling, then dense layers."""

    channels: tuple[int, ...] = field((6, 16), "Channels of the convolutions.", **WIDTHS)
    hidden: tuple[int, ...] = field((256, 256), "Widths of the dense layers.", **WIDTHS)

    def blocks_for(self, classes: int) -> Networks:
        """Returns `conv0`, ... and the MLP's blocks; (6, 16) and (120, 84) are LeNet-5."""
        ways = lowerings_of(self.lowering, [(WINDOW, (1, 1))] * len(self.channels))
        convolutions = tuple(
            (f"conv{i}", ConvPool(channels, self.dtype, way))
            for i, (channels, way) in enumerate(zip(self.channels, ways, strict=True))
        )
        return *convolutions, *dense_layers(self.hidden, classes, self.dtype)


def normalize(x: jax.Array, norm: str, dtype: str) -> jax.Array:
    """Returns x (B, H, W, C), normalized and scaled by parameters of the calling module."""
    if norm == "batch":  # groups of one channel, which extend over the batch
        layer = nn.GroupNorm(None, group_size=1, reduction_axes=(0, 1, 2, 3), dtype=dtype)
    else:
        layer = nn.GroupNorm(min(GROUPS, x.shape[-1]), dtype=dtype)
    return layer(x)


def convolutions(stride: int, stem: str, bottleneck: bool) -> dict[str, Shape]:
    """Returns kernel and strides of a block's convolutions, in the order of computation."""
    first = {"stem": STEMS[stem]} if stem else {}
    strides = (stride, stride)
    if stride > 1 or (stem and bottleneck):
        first["shortcut"] = ((1, 1), strides)
    if bottleneck:
        inner: dict[str, Shape] = {"conv0": ((1, 1), (1, 1)), "conv1": ((3, 3), strides)}
        return first | inner | {"conv2": ((1, 1), (1, 1))}
    return first | {"conv0": ((3, 3), strides), "conv1": ((3, 3), (1, 1))}


class ResidualConv(nn.Module):
    """(B, H, W, C) -> (B, ceil(H / stride), ceil(W / stride), C'), after a stem of its H and W.

    C' is `channels`, of a bottleneck 4 times that.
    """

    channels: int
    stride: int
    norm: str
    dtype: str
    lowerings: Sequence[str | None]  # of its `convolutions`
    stem: str = ""
    bottleneck: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shapes = convolutions(self.stride, self.stem, self.bottleneck)
        ways = dict(zip(shapes, self.lowerings, strict=True))

        def conv(name: str, x: jax.Array) -> jax.Array:
            wide = self.bottleneck and name in ("shortcut", "conv2")
            channels = self.channels * (WIDER if wide else 1)
            window, strides = shapes[name]
            return Conv(channels, window, strides, "SAME", self.dtype, ways[name], name=name)(x)

        if self.stem:
            x = conv("stem", x)
        if self.stem == "quarter":
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        y = nn.relu(normalize(x, self.norm, self.dtype))
        if "shortcut" in shapes:
            x = conv("shortcut", y)
        y = conv("conv0", y)
        for name in ("conv1", "conv2")[: 1 + self.bottleneck]:
            y = conv(name, nn.relu(normalize(y, self.norm, self.dtype)))
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


@dataclass(frozen=True)
class ResNet(ConvolutionalModel, name="resnet"):
    """Residual network of pre-activation blocks (arXiv 1603.05027), basic or bottleneck."""

    channels: tuple[int, ...] = field((6, 16), "Channels of each stage's blocks.", **WIDTHS)
    blocks: int = field(8, "Residual blocks.", at_least=1, at_most=BLOCKS)
    norm: str = field("group", "Normalization, 'group' or 'batch'.", one_of=NORMS)
    stages: tuple[int, ...] = field(
        (),
        "Blocks of each stage, as (3, 4, 6, 3); (): model.blocks evenly.",
        expected=f"whole numbers from 1 to {BLOCKS:,}, or ()",
        is_valid=counts,
    )
    stem: str = field(
        "half",
        "First convolution: 3 x 3 at 'half' or 'whole' size, or ImageNet's at a 'quarter'.",
        one_of=[*STEMS],
    )
    bottleneck: bool = field(False, "Blocks of 1 x 1, 3 x 3 and 1 x 1 convolutions.")

    def blocks_for(self, classes: int) -> Networks:
        """Returns `block0`, with the stem, `block1`, ... and the head, `output`."""
        for wrong, line in self._wrong():
            if wrong:
                raise ValueError(line)
        depths = self.stages or (self.blocks // len(self.channels),) * len(self.channels)
        kinds = [  # channels, stride and stem of each block
            (self.channels[k], 2 if k and not i else 1, "" if k or i else self.stem)
            for k, depth in enumerate(depths)
            for i in range(depth)
        ]
        shapes = [convolutions(*kind[1:], self.bottleneck) for kind in kinds]
        ways = iter(
            lowerings_of(self.lowering, [shape for block in shapes for shape in block.values()])
        )
        trunk = [
            ResidualConv(
                channels,
                stride,
                self.norm,
                self.dtype,
                tuple(islice(ways, len(block))),
                stem,
                self.bottleneck,
            )
            for (channels, stride, stem), block in zip(kinds, shapes, strict=True)
        ]
        blocks = ((f"block{i}", block) for i, block in enumerate(trunk))
        return (*blocks, ("output", PooledOutput(classes, self.norm, self.dtype)))

    def _wrong(self) -> Iterator[Check]:
        stages = len(self.channels)
        uneven = not stages or self.blocks % stages
        yield (
            not self.stages and uneven,
            f"resnet of {self.blocks} blocks: must be a multiple of its {stages} stages, one for "
            "each of its channels",
        )
        yield (
            self.stages and len(self.stages) != stages,
            f"resnet of stages {self.stages}: must be one number of blocks, at least 1, for each "
            f"of its {stages} channels",
        )
        for count in self.channels:
            yield (
                self.norm == "group" and count % min(GROUPS, count),
                f"resnet of {count} channels with norm 'group': must be a multiple of {GROUPS}, or "
                f"less than {GROUPS}",
            )
