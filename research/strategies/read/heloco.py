"""HeLoCo's server (Al Asif et al., arXiv 2606.00271): what comes, turned toward the momentum.

Array by array, of the message D, the momentum m, and c the cosine of D and m:

    D <- D                                             c >= c_ok
    D <- |D| u / |u|,  u = (1 - l) D/|D| + l m/|m|     0 <= c < c_ok,   l = min(k (1 - c) f, 1)
    D <- D - b c |D| m/|m|                             c < 0,           b = min(-k c f, 1)
    f  = |D| / (|D| + |m|)                             the confidence

    m     <- mu m + (1 - mu) D
    theta <- theta - eta (D + mu m)

Turning keeps the length of D; of what is against m it takes a part off. With c_ok = -1, and where m
is 0, D stays as it is.
"""

import jax
import jax.numpy as jnp

from optdyn.core import Array, Params

TINY = 1e-12  # beside norms


def turned(message: Params, momentum: Params, aligned: Array, strength: Array) -> Params:
    """D of every array; `aligned` is c_ok, `strength` k."""

    def one(d: jax.Array, m: jax.Array) -> jax.Array:
        size, length = jnp.linalg.norm(d.reshape(-1)), jnp.linalg.norm(m.reshape(-1))
        towards = m / (length + TINY)
        c = jnp.sum(d * towards) / (size + TINY)
        confidence = size / (size + length + TINY)
        part = jnp.minimum(strength * (1 - c) * confidence, 1)
        u = (1 - part) * d / (size + TINY) + part * towards
        tilted = size * u / (jnp.linalg.norm(u.reshape(-1)) + TINY)
        shrunk = d - jnp.minimum(-strength * c * confidence, 1) * c * size * towards
        kept = (c >= aligned) | (length == 0)
        return jnp.where(kept, d, jnp.where(c < 0, shrunk, tilted)).astype(d.dtype)

    return jax.tree.map(one, message, momentum)


def step(message: Params, momentum: Params, decay: Array) -> tuple[Params, Params]:
    """D + mu m and the m in it, of what came and the momentum before."""
    after = jax.tree.map(lambda m, d: decay * m + (1 - decay) * d, momentum, message)
    return jax.tree.map(lambda m, d: d + decay * m, after, message), after
