"""Residual multi-layer perceptron: one hidden layer a block, added to what the block is given.

    x_{k+1} = x_k + W2 relu(W1 LN(x_k) + b1) + b2,     x_0 = W0 x + b0,     logits = W LN(x_K) + b

with all of x_k, W1 and W2 of one width and LN layer normalization.
"""

from dataclasses import dataclass

import flax.linen as nn
import jax

from optdyn.problem.models.base import Blocks, ResidualModel


class Residual(nn.Module):
    """(B, width) -> (B, width); with the stem, (B, ...) is first flattened and projected."""

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


def resmlp(blocks: int, width: int, classes: int, dtype: str) -> Blocks:
    """`block0`, which holds the stem, to `block{blocks - 1}`, and the head, `output`.

    blocks 2 width (width + 2) + (inputs + 1) width + (width + 1) classes + 2 width parameters.
    """
    trunk = tuple((f"block{k}", Residual(width, dtype, stem=k == 0)) for k in range(blocks))
    return (*trunk, ("output", Output(classes, dtype)))


@dataclass(frozen=True)
class ResMLP(ResidualModel, name="resmlp"):
    """Residual multi-layer perceptron: one hidden layer a block, added to what it is given."""

    def blocks_for(self, classes: int) -> Blocks:
        return resmlp(self.blocks, self.width, classes, self.dtype)
