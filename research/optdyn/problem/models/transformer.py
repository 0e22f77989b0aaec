"""Decoder-only transformer (Vaswani et al., arXiv 1706.03762), normalized before each branch.

    x' = x + attention(LN(x)),     f(x) = x' + W2 gelu(W1 LN(x') + b1) + b2

Attention is causal: position t sees positions up to t. The 2K branches of K blocks are added with
1 / sqrt(2K) of the usual initial scale (Radford et al., GPT-2), so that their sum does not grow
with depth.
"""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from optdyn.problem.models.base import Blocks, Transformers
from optdyn.problem.models.resmlp import Output


class TransformerBlock(nn.Module):
    """(B, T, width) -> (B, T, width); with a vocabulary, from tokens (B, T), any integers.

    T is that of initialization, to which the learned positions belong.
    """

    width: int
    attention_heads: int
    branches: int  # added to x in the whole model, two a block
    dtype: str
    vocabulary: int = 0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.vocabulary:
            x = self.embed(x)
        joining = nn.initializers.variance_scaling(1 / self.branches, "fan_in", "truncated_normal")
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.Dense(3 * self.width, dtype=self.dtype, name="qkv")(y)
        q, k, v = jnp.unstack(y.reshape(*x.shape[:2], 3, self.attention_heads, -1), axis=2)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        x = x + nn.Dense(self.width, dtype=self.dtype, kernel_init=joining, name="attended")(y)
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.gelu(nn.Dense(4 * self.width, dtype=self.dtype, name="expand")(y))
        return x + nn.Dense(self.width, dtype=self.dtype, kernel_init=joining, name="contract")(y)

    def embed(self, tokens: jax.Array) -> jax.Array:
        """(B, T) tokens as (B, T, width): what is learned of each token and of its position."""
        embedding = nn.Embed(self.vocabulary, self.width, dtype=self.dtype, name="tokens")
        normal = nn.initializers.normal(self.width**-0.5)  # as that of tokens
        positions = self.param("positions", normal, (tokens.shape[1], self.width))
        return embedding(tokens) + positions.astype(self.dtype)


def transformer(blocks: int, width: int, attention_heads: int, classes: int, dtype: str) -> Blocks:
    """`block0`, which holds the embeddings, to `block{blocks - 1}`, and the head, `output`.

    blocks width (12 width + 13) + (V + T) width + (width + 1) V + 2 width parameters, with V the
    vocabulary, `classes`. ValueError if the width is no multiple of the attention heads.
    """
    if width % attention_heads:
        raise ValueError(
            f"transformer of width {width}: must be a multiple of its {attention_heads} "
            "attention heads"
        )
    trunk = tuple(
        (
            f"block{k}",
            TransformerBlock(width, attention_heads, 2 * blocks, dtype, 0 if k else classes),
        )
        for k in range(blocks)
    )
    return (*trunk, ("output", Output(classes, dtype)))


@dataclass(frozen=True)
class Transformer(Transformers, name="transformer"):
    """Decoder-only transformer (arXiv 1706.03762), normalized before each branch."""

    def blocks_for(self, classes: int) -> Blocks:
        return transformer(self.blocks, self.width, self.attention_heads, classes, self.dtype)
