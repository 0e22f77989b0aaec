"""Multi-layer perceptron: dense layers with ReLU, one a block, then the classifier."""

from collections.abc import Sequence
from dataclasses import dataclass

import flax.linen as nn
import jax

from optdyn.base.fields import field
from optdyn.base.ranges import WIDTHS
from optdyn.problem.models.base import Blocks, LayeredModel


class Hidden(nn.Module):
    """(B, ...) -> (B, width)."""

    width: int
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.relu(nn.Dense(self.width, dtype=self.dtype)(x.reshape(len(x), -1)))


class Classifier(nn.Module):
    """(B, ...) -> (B, classes)."""

    classes: int
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.classes, dtype=self.dtype)(x.reshape(len(x), -1))


def mlp(hidden: Sequence[int], classes: int, dtype: str) -> Blocks:
    """Blocks `hidden0`, `hidden1`, ... and `classifier`."""
    layers = tuple((f"hidden{i}", Hidden(width, dtype)) for i, width in enumerate(hidden))
    return (*layers, ("classifier", Classifier(classes, dtype)))


@dataclass(frozen=True)
class MLP(LayeredModel, name="mlp"):
    """Multi-layer perceptron: dense layers with ReLU, one a block, then the classifier."""

    hidden: tuple[int, ...] = field((256, 256), "Widths of its hidden layers.", **WIDTHS)

    def blocks_for(self, classes: int) -> Blocks:
        return mlp(self.hidden, classes, self.dtype)
