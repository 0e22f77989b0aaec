"""Transforms for gradients that are late, by name in `config.optimizer.chain`.

Delay compensation (DC-ASGD, Zheng et al., arXiv 1609.08326) takes g back to where it is applied,
with lambda g * g in place of the Hessian:

    g <- g + lambda g * g * (x - x_read)
    lambda_t = lambda / sqrt(s_t + eps),   s_t = m s_{t-1} + (1 - m) g * g         adaptive

Staleness-dependent rates multiply g by a function of its delay tau, the argument `staleness`:

    inverse    1 / max(tau, 1)                       Zhang et al., arXiv 1511.05950
    bounded    k / max(k, tau)                       Mishchenko et al., arXiv 2206.07638
    power      ((1 + tau) / (1 + k))^-a              FedBuff's weights, arXiv 2106.06639
    annealed   max(tau, 1)^-(1 - min(t / T, 1))      PipeMare, arXiv 1910.05124

k is a delay at which nothing changes, by default the mean of all so far. An optimizer that divides
by the size of g, as Adam does, divides much of these factors out again.

Error feedback (Zmushko et al., arXiv 2606.30634) comes after the optimizer, whose steps u are of
gradients that are one update late:

    x_{t+1} = x_t + u_t + lambda (u_t - u_{t-1})
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optdyn.base.trees import Tree
from optdyn.core import Params

EPS = 1e-7  # beside the mean of g * g


class MeanSquare(NamedTuple):
    mean_square: Params  # s_t


def delay_compensation(
    lam: float = 0.04, adaptive: bool = False, decay: float = 0.95
) -> optax.GradientTransformationExtraArgs:
    """Returns a transform of gradients to those at the present parameters, to first order.

    `lam` is lambda; 0 leaves them as they are. `decay` is m. The adaptive form, whose `lam` is
    about 2, keeps a copy of the parameters more.
    """

    def init(params: Params) -> MeanSquare | optax.EmptyState:
        return MeanSquare(jax.tree.map(jnp.zeros_like, params)) if adaptive else optax.EmptyState()

    def update(
        grads: Params, state: Tree, params: Params | None = None, *, read_params: Params, **_: Tree
    ) -> tuple[Params, Tree]:
        if not adaptive:
            return jax.tree.map(
                lambda g, x, read: g + lam * g * g * (x - read), grads, params, read_params
            ), state
        s = jax.tree.map(lambda s, g: decay * s + (1 - decay) * g * g, state.mean_square, grads)
        return jax.tree.map(
            lambda g, s, x, read: g + lam / jnp.sqrt(s + EPS) * g * g * (x - read),
            *(grads, s, params, read_params),
        ), MeanSquare(s)

    return optax.GradientTransformationExtraArgs(init, update)


class Delays(NamedTuple):
    updates: jax.Array  # int32, t
    mean: jax.Array  # float32, of the delays so far


def staleness_rate(
    law: str = "inverse", k: float = 0.0, power: float = 0.5, updates: int = 1000
) -> optax.GradientTransformationExtraArgs:
    """Returns a transform that multiplies gradients by a factor that falls with their delay.

    `k` 0 is the mean delay so far. `power` is a, `updates` is T. Raises ValueError if there is no
    such law, or a number is below 0.
    """
    if law not in LAWS:
        raise ValueError(f"law {law!r}: one of {', '.join(LAWS)}")
    if min(k, power, updates) < 0:
        raise ValueError(f"k {k}, power {power}, updates {updates}: must be at least 0")

    def init(params: Params) -> Delays:
        return Delays(jnp.int32(0), jnp.float32(0))

    def update(
        grads: Params,
        state: Delays,
        params: Params | None = None,
        *,
        staleness: ArrayLike,
        **_: Tree,
    ) -> tuple[Params, Delays]:
        tau = jnp.asarray(staleness, jnp.float32)
        mean = state.mean + (tau - state.mean) / (state.updates + 1)
        part = jnp.minimum(state.updates / max(updates, 1), 1.0)
        factor = LAWS[law](tau, k or mean, power, part)
        late = jax.tree.map(lambda g: factor.astype(g.dtype) * g, grads)
        return late, Delays(state.updates + 1, mean)

    return optax.GradientTransformationExtraArgs(init, update)


LAWS: Mapping[str, Callable[..., jax.Array]] = {  # (tau, k, a, t / T) -> factor
    "inverse": lambda tau, k, a, part: 1 / jnp.maximum(tau, 1),
    "bounded": lambda tau, k, a, part: jnp.where(tau > k, k / jnp.maximum(tau, 1), 1.0),
    "power": lambda tau, k, a, part: ((1 + tau) / (1 + k)) ** -a,
    "annealed": lambda tau, k, a, part: jnp.maximum(tau, 1) ** (part - 1),
}


class LastStep(NamedTuple):
    updates: jax.Array  # int32, t
    step: Params  # u_{t-1}


def error_feedback(strength: float = 1.0) -> optax.GradientTransformationExtraArgs:
    """Returns a transform that adds `strength` (lambda) times the change of the step to the step.

    The first step stays as it is. Raises ValueError for a strength below 0.
    """
    if strength < 0:
        raise ValueError(f"strength {strength}: must be at least 0")

    def init(params: Params) -> LastStep:
        return LastStep(jnp.int32(0), jax.tree.map(jnp.zeros_like, params))

    def update(
        steps: Params, state: LastStep, params: Params | None = None, **_: Tree
    ) -> tuple[Params, LastStep]:
        part = jnp.where(state.updates > 0, strength, 0.0)
        fed = jax.tree.map(lambda u, last: u + part.astype(u.dtype) * (u - last), steps, state.step)
        return fed, LastStep(state.updates + 1, steps)

    return optax.GradientTransformationExtraArgs(init, update)
