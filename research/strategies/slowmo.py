"""SlowMo (Wang et al., arXiv 1910.00643): model averaging with slow momentum, of gradients.

    D     = theta - 1/P sum_i x_i             every H updates, of P nodes that train by themselves
    u     <- beta u + D / gamma
    theta <- theta - a gamma u                x_i <- theta

gamma: the nodes' learning rate at that update, so that u is a sum of gradients whatever their rate
was. The rule of `outer.py` around what `model_averaging` does: beta = 0, a = 1 is that. With gamma
constant it is DiLoCo with heavy ball in place of Nesterov's momentum.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from optdyn.experiment import Experiment
from optdyn.strategies.base import Strategy
from optdyn.strategies.meetings import with_numbers
from optdyn.strategies.method import Keys, Method
from optdyn.strategies.model_averaging import METHOD as AVERAGING
from optdyn.strategies.model_averaging import averaging
from optdyn.values import require

PLAIN = {"slow_learning_rate": 1.0, "slow_momentum": 0.0}  # the mean


def slow() -> optax.GradientTransformationExtraArgs:
    """The outer optimizer of D, its state u. Where gamma is 0, as before a warm-up, u gets no D."""

    def update(
        gap: Any,
        u: Any,
        params: Any = None,
        *,
        learning_rate: Any,
        slow_learning_rate: Any,
        slow_momentum: Any,
        **_: Any,
    ) -> Any:
        inverse = jnp.where(learning_rate == 0, 0.0, 1 / learning_rate)
        kept = jax.tree.map(lambda u: slow_momentum * u, u)
        step = jax.tree.map(lambda u, d: -slow_learning_rate * (learning_rate * u + d), kept, gap)
        u = jax.tree.map(lambda u, d: u + inverse * d, kept, gap)
        return step, u

    return optax.GradientTransformationExtraArgs(
        lambda params: jax.tree.map(jnp.zeros_like, params), update
    )


def slowmo(inner: Strategy, keys: Keys, senders: str | None = None) -> Strategy:
    """The rule around what a node does by itself."""
    return averaging(inner, keys, senders, slow())


def values(config: Experiment) -> None:
    """Raises `ConfigError`."""
    require(config, "strategy.slow_learning_rate", lambda v: 0 < v < float("inf"), "above 0")
    require(config, "strategy.slow_momentum", lambda v: 0 <= v < 1, "at least 0 and less than 1")


METHOD: Method = AVERAGING._replace(
    keys={
        **AVERAGING.keys,
        "slow_learning_rate": 1.0,  # a
        "slow_momentum": 0.5,  # beta
    },
    mix=slowmo,
    clock=with_numbers(PLAIN),
    values=values,
)
