"""Multi-layer perceptrons: plain, and residual with one hidden layer a block.

    x_{k+1} = x_k + W2 relu(W1 LN(x_k) + b1) + b2,     x_0 = W0 x + b0,     logits = W LN(x_K) + b

is the residual one, with x_k, W1 and W2 of one width and LN layer normalization. It has
blocks 2 width (width + 2) + (inputs + 1) width + (width + 1) classes + 2 width parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import flax.linen as nn
import jax

from optdyn.base.fields import field
from optdyn.base.ranges import WIDTHS
from optdyn.problem.models.base import LayeredModel, Networks, ResidualModel


class DenseLayer(nn.Module):
    """(B, ...) -> (B, width), with ReLU if it is `hidden`."""

    width: int
    dtype: str
    hidden: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.Dense(self.width, dtype=self.dtype)(x.reshape(len(x), -1))
        return nn.relu(y) if self.hidden else y


def dense_layers(hidden: Sequence[int], classes: int, dtype: str) -> Networks:
    layers = ((f"hidden{i}", DenseLayer(width, dtype, True)) for i, width in enumerate(hidden))
    return (*layers, ("classifier", DenseLayer(classes, dtype)))


@dataclass(frozen=True)
class MLP(LayeredModel, name="mlp"):
    """Multi-layer perceptron: dense layers with ReLU, one a block, then the classifier."""

    hidden: tuple[int, ...] = field((256, 256), "Widths of the hidden layers.", **WIDTHS)

    def blocks_for(self, classes: int) -> Networks:
        return dense_layers(self.hidden, classes, self.dtype)


class Residual(nn.Module):
    """(B, width) -> (B, width); with a stem, (B, ...) is first flattened and projected."""

    width: int
    dtype: str
    stem: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.stem:
            x = nn.Dense(self.width, dtype=self.dtype, name="stem")(x.reshape(len(x), -1))
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.relu(nn.Dense(self.width, dtype=self.dtype)(y))
        return x + nn.Dense(self.width, dtype=self.dtype)(y)


class Output(nn.Module):
    """(B, ..., width) -> (B, ..., classes)."""

    classes: int
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.classes, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))


@dataclass(frozen=True)
class ResMLP(ResidualModel, name="resmlp"):
    """Residual multi-layer perceptron: one hidden layer a block, added to the block's input."""

    def blocks_for(self, classes: int) -> Networks:
        trunk = (
            (f"block{k}", Residual(self.width, self.dtype, k == 0)) for k in range(self.blocks)
        )
        return (*trunk, ("output", Output(classes, self.dtype)))
