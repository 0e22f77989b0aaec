"""SlowMo (Wang et al., arXiv 1910.00643): model averaging with slow momentum, of gradients.

    D     = theta - 1/P sum_i x_i             every H updates, of P nodes that train by themselves
    u     <- beta u + D / gamma
    theta <- theta - a gamma u                x_i <- theta

gamma: the nodes' learning rate at that update, so that u is a sum of gradients whatever their rate
was. The rule of `outer.py` around what `model_averaging` does: beta = 0, a = 1 is that. With gamma
constant it is DiLoCo with heavy ball in place of Nesterov's momentum.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp
import optax

from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.base.trees import Array, Params, Tree
from optdyn.methods.method import Methods
from optdyn.methods.mix import nodes
from optdyn.methods.mix.model_averaging import ModelAveraging
from optdyn.methods.setup import Setup
from optdyn.methods.shared_fields import ABOVE_0


def slow() -> optax.GradientTransformationExtraArgs:
    """The outer optimizer of D, its state u. Where gamma is 0, as before a warm-up, u gets no D."""

    def update(
        gap: Tree,
        u: Tree,
        params: Params | None = None,
        *,
        learning_rate: Array,
        slow_learning_rate: Array,
        slow_momentum: Array,
        **_: Tree,
    ) -> tuple[Params, Tree]:
        inverse = jnp.where(learning_rate == 0, 0.0, 1 / learning_rate)
        kept = jax.tree.map(lambda u: slow_momentum * u, u)
        step = jax.tree.map(lambda u, d: -slow_learning_rate * (learning_rate * u + d), kept, gap)
        u = jax.tree.map(lambda u, d: u + inverse * d, kept, gap)
        return step, u

    return optax.GradientTransformationExtraArgs(
        lambda params: jax.tree.map(jnp.zeros_like, params), update
    )


@dataclass(frozen=True)
class SlowMo(ModelAveraging, name="slowmo"):
    slow_learning_rate: float = field(1.0, "a, learning rate of the slow step.", **ABOVE_0)
    slow_momentum: float = field(0.5, "beta, momentum of the slow step.", at_least=0, below=1)

    mean = MappingProxyType({"slow_learning_rate": 1.0, "slow_momentum": 0.0})

    def outer(self) -> optax.GradientTransformationExtraArgs:
        return slow()

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        yield nodes.has_rate(setup)
