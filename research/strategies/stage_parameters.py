"""What a stage of a pipeline that is never flushed (`stale_pipeline.py`) computes with.

Without stashing the derivatives are those of the newest parameters, at the activations of the old:

    h_{j+1} = stop(f_j(old, h_j)) + f_j(new, h_j) - stop(f_j(new, h_j))

Predicted parameters are where heavy ball of momentum mu would be if all gradients in between were
0, from a displacement and not from the velocity, as x_{t-1} - x_t is gamma v:

    x_t - (mu - mu^{tau+1}) / (1 - mu) (x_{t-1} - x_t)          tau updates on
"""

import jax
import jax.numpy as jnp
from jax import lax

from optdyn.models import Blocks, base
from optdyn.strategies.base import Params
from optdyn.trees import Array


def through(blocks: Blocks, new: Params, old: Params, h: jax.Array) -> jax.Array:
    """What the blocks make of h with the `old` parameters, with the derivatives of the `new`."""
    for block in blocks:
        now, then = (base.apply((block,), x, h) for x in (new, old))
        h = lax.stop_gradient(then) + (now - lax.stop_gradient(now))
    return h


def distance(momentum: Array, staleness: Array) -> Array:
    """How many of its last displacements heavy ball goes on in so many updates."""
    return (momentum - momentum ** (jnp.asarray(staleness) + 1)) / (1 - momentum)
