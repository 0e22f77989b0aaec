"""DiLoCo (Douillard et al., arXiv 2311.08105): model averaging with an outer Nesterov momentum.

    D     = theta - 1/P sum_i x_i             every H updates, of P nodes that train by themselves
    m     <- mu m + D
    theta <- theta - eta (D + mu m)           x_i <- theta

The rule of `outer.py` around what `model_averaging` does: eta = 1, mu = 0 is that. With H = 1 and
SGD inside it is Nesterov SGD of rate eta gamma, with one node and mu = 0 Lookahead. Streaming
DiLoCo (arXiv 2501.18512) has the same of every fragment by itself: `fragments`, `delay` and
`mixing` are those of `model_averaging`, and so is all else that they share.
"""

from typing import Any

import optax

from optdyn.experiment import Experiment
from optdyn.strategies.base import Strategy
from optdyn.strategies.meetings import with_numbers
from optdyn.strategies.method import Keys, Method
from optdyn.strategies.model_averaging import METHOD as AVERAGING
from optdyn.strategies.model_averaging import averaging
from optdyn.values import require

PLAIN = {"outer_learning_rate": 1.0, "outer_momentum": 0.0}  # the mean


def nesterov() -> optax.GradientTransformationExtraArgs:
    """optax's SGD of the outer gradient D, its rate and momentum arguments of every update."""

    def update(
        gap: Any,
        state: Any,
        params: Any = None,
        *,
        outer_learning_rate: Any,
        outer_momentum: Any,
        **_: Any,
    ) -> Any:
        rule = optax.sgd(outer_learning_rate, outer_momentum, nesterov=True)
        return rule.update(gap, state, params)

    return optax.GradientTransformationExtraArgs(optax.sgd(0.0, 0.0, nesterov=True).init, update)


def diloco(inner: Strategy, keys: Keys, senders: str | None = None) -> Strategy:
    """The rule around what a node does by itself."""
    return averaging(inner, keys, senders, nesterov())


def values(config: Experiment) -> None:
    """Raises `ConfigError`."""
    require(config, "strategy.outer_learning_rate", lambda v: 0 < v < float("inf"), "above 0")
    require(config, "strategy.outer_momentum", lambda v: 0 <= v < 1, "at least 0 and less than 1")


METHOD: Method = AVERAGING._replace(
    keys={
        **AVERAGING.keys,
        "outer_learning_rate": 0.7,  # eta
        "outer_momentum": 0.9,  # mu
    },
    mix=diloco,
    clock=with_numbers(PLAIN),
    values=values,
)
