"""HeLoCo's server (Al Asif et al., arXiv 2606.00271): what comes, turned toward the momentum.

Array by array, of the message D, the momentum m, and c the cosine of D and m:

    D <- D                                             c >= c_ok
    D <- |D| u / |u|,  u = (1 - l) D/|D| + l m/|m|     0 <= c < c_ok,   l = min(k (1 - c) f, 1)
    D <- D - b c |D| m/|m|                             c < 0,           b = min(-k c f, 1)
    f  = |D| / (|D| + |m|)                             the confidence

    m     <- mu m + (1 - mu) D
    theta <- theta - eta (D + mu m)

Turning keeps the length of D. From a D that is against m a part of what is against it is taken off.
With c_ok = -1, and where m is 0, D stays as it is.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from optdyn.base.fields import field
from optdyn.base.trees import Choice
from optdyn.core import Array, Params
from optdyn.methods.method import Method
from optdyn.methods.read.cgad import weighed
from optdyn.methods.read.server import Kept, ServerRule

TINY = 1e-12  # beside norms


@dataclass(frozen=True)
class Turned(Method):
    """The numbers of messages that are turned."""

    aligned: float = field(
        0.5,
        "c_ok of 'heloco', a cosine with the momentum from which on a message stays as it is.",
        at_least=-1,
        at_most=1,
    )
    correction: float = field(0.5, "K of 'heloco', how much others are corrected.", at_least=0)


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


def step(message: Params, kept: Kept, c: Choice) -> tuple[Params, Kept]:
    """D + mu m, of a message that is turned, and weighed by its age; `c` is a `Turn`."""
    message = weighed(turned(message, kept.momentum, c.aligned, c.strength), c.weight)
    after = jax.tree.map(lambda m, d: c.decay * m + (1 - c.decay) * d, kept.momentum, message)
    way = jax.tree.map(lambda m, d: d + c.decay * m, after, message)
    return way, kept._replace(momentum=after)


HELOCO = ServerRule(step)
