"""Decoder-only transformers with pre-normalization: like GPT-2, and of the 2020s.

    x' = x + attention(LN(x)),     f(x) = x' + W2 gelu(W1 LN(x') + b1) + b2          transformer

after Vaswani et al., arXiv 1706.03762. Attention is causal: position t sees positions up to t. The
2K branches of K blocks are added with 1 / sqrt(2K) of the usual initial scale (Radford et al.,
GPT-2), so that their sum does not grow with depth. With V tokens in the vocabulary there are
blocks width (12 width + 13) + (V + T) width + (width + 1) V + 2 width parameters.

    x' = x + Wo attention(R_t norm(Wq n), R_s norm(Wk n), Wv n),    n = norm(x)      modern
    f(x) = x' + Wd (silu(Wg m) * Wu m),                             m = norm(x')
    norm(x) = scale * x / sqrt(mean(x^2) + 1e-6)

norm is RMSNorm (arXiv 1910.07467), inside attention over a head, with a scale that the heads share
(QK-norm, arXiv 2010.04245). R_t rotates the pairs of a head's numbers by t times their frequency
(RoPE, arXiv 2104.09864). silu(a) * b is SwiGLU (arXiv 2002.05202). There are
blocks (4 width^2 + 3 width h + 2 width + 2 d) + 2 V width + width parameters, with
h = 8 ceil(width / 3) and d = width / attention heads.
"""

from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from optdyn.base.fields import field
from optdyn.base.ranges import WIDE
from optdyn.problem.models.base import Networks, ResidualModel
from optdyn.problem.models.mlp import Output

BASE = 10_000.0  # of the frequencies of rotations
EPSILON = 1e-6


class Block(nn.Module):
    """(B, T, width) -> (B, T, width); with a vocabulary, from tokens (B, T), any integers."""

    width: int
    attention_heads: int
    branches: int  # residual branches of the model, two a block
    dtype: str
    vocabulary: int = 0

    def joining(self) -> nn.initializers.Initializer:
        """Returns the initializer of a layer whose output is added to x."""
        return nn.initializers.variance_scaling(1 / self.branches, "fan_in", "truncated_normal")

    def embedded(self, tokens: jax.Array) -> jax.Array:
        return nn.Embed(self.vocabulary, self.width, dtype=self.dtype, name="tokens")(tokens)


class TransformerBlock(Block):
    """A block with learned positions, for the T of initialization."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.vocabulary:
            normal = nn.initializers.normal(self.width**-0.5)  # as of tokens
            positions = self.param("positions", normal, (x.shape[1], self.width))
            x = self.embedded(x) + positions.astype(self.dtype)
        joining = self.joining()
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.Dense(3 * self.width, dtype=self.dtype, name="qkv")(y)
        q, k, v = jnp.unstack(y.reshape(*x.shape[:2], 3, self.attention_heads, -1), axis=2)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        x = x + nn.Dense(self.width, dtype=self.dtype, kernel_init=joining, name="attended")(y)
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.gelu(nn.Dense(4 * self.width, dtype=self.dtype, name="expand")(y))
        return x + nn.Dense(self.width, dtype=self.dtype, kernel_init=joining, name="contract")(y)


def rotate(x: jax.Array) -> jax.Array:
    """Returns x (B, T, heads, d), (x_2i, x_2i+1) at t rotated by the angle t BASE^(-2i / d)."""
    length, size = x.shape[1], x.shape[-1]
    frequencies = BASE ** (-jnp.arange(0, size, 2) / size)
    angles = (jnp.arange(length)[:, None] * frequencies)[:, None]  # (T, 1, d / 2)
    a, b = x[..., ::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    turned = jnp.stack((a * cos - b * sin, a * sin + b * cos), axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)


class ModernBlock(Block):
    """A block with rotary positions, for any T."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.vocabulary:
            x = self.embedded(x)
        n = self.norm("attention_norm")(x)
        by_head = (*x.shape[:2], self.attention_heads, -1)
        q, k, v = (self.dense(name)(n).reshape(by_head) for name in ("query", "key", "value"))
        q, k = (rotate(self.norm(f"{name}_norm")(y)) for name, y in (("query", q), ("key", k)))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        x = x + self.dense("attended", joins=True)(y)
        m = self.norm("mlp_norm")(x)
        hidden = 8 * -(-self.width // 3)  # the first multiple of 8 from 8 / 3 width on
        y = nn.silu(self.dense("gate", hidden)(m)) * self.dense("up", hidden)(m)
        return x + self.dense("down", joins=True)(y)

    def norm(self, name: str) -> nn.RMSNorm:
        return nn.RMSNorm(EPSILON, dtype=self.dtype, name=name)

    def dense(self, name: str, features: int = 0, joins: bool = False) -> nn.Dense:
        """Returns a linear layer; one that `joins` the residual stream starts smaller."""
        default = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
        return nn.Dense(
            features or self.width,
            use_bias=False,
            dtype=self.dtype,
            kernel_init=self.joining() if joins else default,
            name=name,
        )


class RMSNormOutput(nn.Module):
    """(B, T, width) -> (B, T, classes)."""

    classes: int
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.RMSNorm(EPSILON, dtype=self.dtype, name="norm")(x)
        return nn.Dense(self.classes, use_bias=False, dtype=self.dtype, name="logits")(y)


@dataclass(frozen=True)
class TransformerBase(ResidualModel):
    block: ClassVar[type[Block]]
    output: ClassVar[type[nn.Module]]

    attention_heads: int = field(4, "Attention heads of a block.", **WIDE)

    def blocks_for(self, classes: int) -> Networks:
        """Returns `block0`, with the embeddings, ... and the head. Raises `ValueError`."""
        rotates = self.block is ModernBlock
        if self.width % (self.attention_heads * (1 + rotates)):
            raise ValueError(
                f"{self.name} of width {self.width}: must be a multiple of "
                f"{'twice ' * rotates}its {self.attention_heads} attention heads"
                f"{', as rotations are of pairs' * rotates}"
            )
        sizes = self.width, self.attention_heads, 2 * self.blocks, self.dtype
        first, *others = (f"block{k}" for k in range(self.blocks))
        trunk = ((name, self.block(*sizes)) for name in others)
        return (
            (first, self.block(*sizes, classes)),
            *trunk,
            ("output", self.output(classes, self.dtype)),
        )


@dataclass(frozen=True)
class Transformer(TransformerBase, name="transformer"):
    """Decoder-only transformer (arXiv 1706.03762) with pre-normalization, as GPT-2."""

    block = TransformerBlock
    output = Output


@dataclass(frozen=True)
class ModernTransformer(TransformerBase, name="modern_transformer"):
    """Decoder-only transformer as of the 2020s: rotary positions, RMSNorm, QK-norm, SwiGLU."""

    block = ModernBlock
    output = RMSNormOutput
