"""Closed-loop momentum control for asynchronous training (closed-loop YellowFin, arXiv 1706.03471).

Asynchrony adds implicit momentum (arXiv 1605.09774), so the total is measured while running and
the explicit momentum mu corrected towards a target mu*. With staleness tau,

    x_{t+1}   = x_t + mu (x_t - x_{t-1}) - alpha grad f(x_{t-tau})
    mu_T      = median over coordinates of
                (x_{t-tau+1} - x_{t-tau} + alpha grad f(x_{t-tau})) / (x_{t-tau} - x_{t-tau-1})
    mu        <- mu + gamma (mu* - mu_T)

The paper's t is moved by one: the gradient that arrives at update t is the one at x_{t-tau}, so the
momentum of update t - tau is measured then. With v <- g + mu v and x <- x - alpha v,

    mu_T      = median over coordinates of (v_{t-tau} - g_t) / v_{t-tau-1}

This is a ratio along the path, and not the 1 - 1/g of the mean recursion. So the loop holds mu_T at
the target but does not find the momentum that theory compensates with: for mu* = 0.9 and 16
memoryless groups it settles at mu of 0.77 to 0.89, where 0.9 - (1 - 1/16) is -0.04.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from optdyn.core import Params

LIMIT = 0.999  # of |mu|: a mean lag 1 / (1 - mu) of at most 1000 updates


class ClosedLoopState(NamedTuple):
    velocities: Params  # leaves (tau + 2, ...): ring of v_t, v_{t-1} .. v_{t-tau-1}
    newest: jax.Array  # int32, slot of v_t
    correction: jax.Array  # float32, mu - mu* for the next update: gamma times the summed errors
    explicit: jax.Array  # float32, mu of the last update
    total: jax.Array  # float32, mu_T measured at the last update; NaN where nothing was


def closed_loop(
    learning_rate: ArrayLike,
    momentum: ArrayLike = 0.0,
    gamma: float | jax.Array = 0.01,
    staleness: int = 0,
) -> optax.GradientTransformation:
    """Returns heavy ball of learning rate alpha whose total momentum is held at mu*, `momentum`.

    `staleness`: tau, updates between the read and the arrival of a gradient; g - 1, their mean, for
    g groups of equal speed. Learning rate, momentum and gamma may be traced. mu starts at mu* and
    stays within LIMIT of 0. The state holds tau + 2 copies of the parameters; before so many
    updates nothing is corrected. Raises ValueError if `staleness` or `gamma` is out of range.
    """
    if not isinstance(staleness, int) or staleness < 0:
        raise ValueError(f"staleness {staleness!r}: must be 0 or more updates")
    if not isinstance(gamma, jax.Array) and not 0 <= gamma < math.inf:
        raise ValueError(f"gamma {gamma}: must be finite and at least 0")
    size = staleness + 2

    def init(params: Params) -> ClosedLoopState:
        ring = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), params)
        # Separate arrays, as all are donated.
        zero, explicit, total = (jnp.float32(value) for value in (0, jnp.nan, jnp.nan))
        return ClosedLoopState(ring, jnp.int32(0), zero, explicit, total)

    def update(
        grads: Params, state: ClosedLoopState, params: Params | None = None
    ) -> tuple[Params, ClosedLoopState]:
        explicit = jnp.clip(momentum + state.correction, -LIMIT, LIMIT)
        now = (state.newest + 1) % size
        velocity = jax.tree.map(
            lambda g, ring: g + explicit.astype(ring.dtype) * ring[state.newest],
            grads,
            state.velocities,
        )
        ring = jax.tree.map(lambda r, v: r.at[now].set(v), state.velocities, velocity)
        total = total_momentum(
            grads,
            jax.tree.map(lambda r: r[(now - staleness) % size], ring),
            jax.tree.map(lambda r: r[(now + 1) % size], ring),  # the oldest
        )
        error = jnp.where(jnp.isfinite(total), momentum - total, 0)
        # Limited here too, so that errors beyond the limit do not pile up.
        correction = jnp.clip(explicit + gamma * error, -LIMIT, LIMIT) - momentum
        updates = jax.tree.map(lambda v: -jnp.asarray(learning_rate, v.dtype) * v, velocity)
        numbers = (jnp.asarray(n, jnp.float32) for n in (correction, explicit, total))
        return updates, ClosedLoopState(ring, now, *numbers)

    return optax.GradientTransformation(init, update)


def total_momentum(grads: Params, velocity: Params, before: Params) -> jax.Array:
    """Returns the median over coordinates of (v_s - g) / v_{s-1}, g the gradient at x_s, or NaN.

    Left out are coordinates that did not move, and those without a gradient, whose ratio is mu
    whatever the staleness.
    """
    g, v, b = (ravel_pytree(tree)[0] for tree in (grads, velocity, before))
    moved = (b != 0) & (g != 0)
    return jnp.nanmedian(jnp.where(moved, (v - g) / jnp.where(moved, b, 1), jnp.nan))
