"""DiLoCo (Douillard et al., arXiv 2311.08105): model averaging with an outer Nesterov momentum.

    D     = theta - 1/P sum_i x_i             every H updates, of P nodes that train by themselves
    m     <- mu m + D
    theta <- theta - eta (D + mu m)           x_i <- theta

The rule of `outer.py` around what `model_averaging` does: eta = 1, mu = 0 is that. With H = 1 and
SGD inside it is Nesterov SGD of rate eta gamma, with one node and mu = 0 Lookahead. Streaming
DiLoCo (arXiv 2501.18512) has the same of every fragment by itself: `fragments`, `delay` and
`mixing` are those of `model_averaging`, and so is all else that they share.
"""

from dataclasses import dataclass
from types import MappingProxyType

import optax
from jax.typing import ArrayLike

from optdyn.base.trees import Params, State, Tree
from optdyn.methods.mix.model_averaging import ModelAveraging
from optdyn.methods.shared_fields import OuterMomentum


def nesterov() -> optax.GradientTransformationExtraArgs:
    """optax's SGD of the outer gradient D, its rate and momentum arguments of every update."""

    def update(
        gap: Tree,
        state: State,
        params: Params | None = None,
        *,
        outer_learning_rate: ArrayLike,
        outer_momentum: ArrayLike,
        **_: Tree,
    ) -> tuple[Params, Tree]:
        rule = optax.sgd(outer_learning_rate, outer_momentum, nesterov=True)
        return rule.update(gap, state, params)

    return optax.GradientTransformationExtraArgs(optax.sgd(0.0, 0.0, nesterov=True).init, update)


@dataclass(frozen=True)
class DiLoCo(ModelAveraging, OuterMomentum, name="diloco"):
    mean = MappingProxyType({"outer_learning_rate": 1.0, "outer_momentum": 0.0})

    def outer(self) -> optax.GradientTransformationExtraArgs:
        return nesterov()
