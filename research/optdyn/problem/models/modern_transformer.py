"""Decoder-only transformer as of the 2020s: rotary positions, RMSNorm, QK-norm, SwiGLU, no biases.

    x' = x + Wo attention(R_t norm(Wq n), R_s norm(Wk n), Wv n),    n = norm(x)
    f(x) = x' + Wd (silu(Wg m) * Wu m),                              m = norm(x')
    norm(x) = scale * x / sqrt(mean(x^2) + 1e-6)

norm is RMSNorm (arXiv 1910.07467), inside of attention over each head, with a scale that the heads
share (QK-norm, arXiv 2010.04245). R_t turns the pairs of a head's numbers by t times their
frequency (RoPE, arXiv 2104.09864), so that a query meets a key by their distance alone, and no
length is built in. silu(a) * b is SwiGLU (arXiv 2002.05202). The output is not tied to the
embeddings. Everything else, causality and initial scales, is as in `transformer.py`.
"""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from optdyn.problem.models.base import Blocks, Transformers

BASE = 10_000.0  # of the frequencies
EPSILON = 1e-6


def rotated(x: jax.Array) -> jax.Array:
    """(B, T, heads, d) with (x_2i, x_2i+1) at position t turned by the angle t BASE^(-2i / d)."""
    length, size = x.shape[1], x.shape[-1]
    frequencies = BASE ** (-jnp.arange(0, size, 2) / size)
    angles = (jnp.arange(length)[:, None] * frequencies)[:, None]  # (T, 1, d / 2)
    a, b = x[..., ::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    turned = jnp.stack((a * cos - b * sin, a * sin + b * cos), axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)


class Block(nn.Module):
    """(B, T, width) -> (B, T, width), of any T; with a vocabulary, from tokens (B, T)."""

    width: int
    attention_heads: int
    branches: int  # added to x in the whole model, two a block
    dtype: str
    vocabulary: int = 0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.vocabulary:
            x = nn.Embed(self.vocabulary, self.width, dtype=self.dtype, name="tokens")(x)
        n = self.norm("attention_norm")(x)
        by_head = (*x.shape[:2], self.attention_heads, -1)
        q, k, v = (self.dense(name)(n).reshape(by_head) for name in ("query", "key", "value"))
        q, k = (rotated(self.norm(f"{name}_norm")(y)) for name, y in (("query", q), ("key", k)))
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        x = x + self.dense("attended", joins=True)(y)
        m = self.norm("mlp_norm")(x)
        hidden = 8 * -(-self.width // 3)  # the first multiple of 8 from 8 / 3 width on
        y = nn.silu(self.dense("gate", hidden)(m)) * self.dense("up", hidden)(m)
        return x + self.dense("down", joins=True)(y)

    def norm(self, name: str) -> nn.RMSNorm:
        """The normalization of that name, without a bias."""
        return nn.RMSNorm(EPSILON, dtype=self.dtype, name=name)

    def dense(self, name: str, features: int = 0, joins: bool = False) -> nn.Dense:
        """A linear layer of that name; one that `joins` the residual stream starts smaller."""
        scale = 1 / self.branches if joins else 1.0
        initial = nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")
        return nn.Dense(
            features or self.width,
            use_bias=False,
            dtype=self.dtype,
            kernel_init=initial,
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


def modern_transformer(
    blocks: int, width: int, attention_heads: int, classes: int, dtype: str
) -> Blocks:
    """`block0`, which holds the embeddings, to `block{blocks - 1}`, and the head, `output`.

    blocks (4 width^2 + 3 width h + 2 width + 2 d) + 2 V width + width parameters, with V the
    vocabulary, `classes`, h = 8 ceil(width / 3), and d = width / attention heads. ValueError if the
    width is no multiple of twice the attention heads.
    """
    if width % (2 * attention_heads):
        raise ValueError(
            f"modern_transformer of width {width}: must be a multiple of twice its "
            f"{attention_heads} attention heads, as rotations are of pairs"
        )
    trunk = tuple(
        (f"block{k}", Block(width, attention_heads, 2 * blocks, dtype, 0 if k else classes))
        for k in range(blocks)
    )
    return (*trunk, ("output", RMSNormOutput(classes, dtype)))


@dataclass(frozen=True)
class ModernTransformer(Transformers, name="modern_transformer"):
    """Decoder-only transformer as of the 2020s: rotary positions, RMSNorm, QK-norm, SwiGLU."""

    def blocks_for(self, classes: int) -> Blocks:
        numbers = self.blocks, self.width, self.attention_heads
        return modern_transformer(*numbers, classes, self.dtype)
