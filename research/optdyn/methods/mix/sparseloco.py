"""SparseLoCo (Sarfi et al., arXiv 2508.15706): sparse messages, and errors in place of a momentum.

    D_i   = theta - x_i                       every H updates, of P nodes that train by themselves
    e_i   <- beta e_i + D_i
    s_i   = Q_b(top-k(e_i))                   the share k of an array's numbers, b bits each
    e_i   <- e_i - s_i
    theta <- theta - a 1/P sum_i s_i          x_i <- theta

The rule of `outer.py`, whose messages are those of `compression.py`: e is what they leave out, and
beta its decay. With beta = 1, a = 1 and numbers as they are (b = 32) it is model averaging with
top-k and error feedback. There is no outer momentum: what is not sent yet is one, of each node.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import jax
import optax

from optdyn.base.errors import Join, one_of_these
from optdyn.base.fields import field
from optdyn.base.trees import Array, Params, Tree
from optdyn.methods.method import Methods
from optdyn.methods.mix import compression
from optdyn.methods.mix.messages import Compression
from optdyn.methods.mix.model_averaging import ALWAYS_THERE, ModelAveraging
from optdyn.methods.mix.quantized import numbers
from optdyn.methods.setup import Setup
from optdyn.methods.shared_fields import FRACTION, OuterRate


def descent() -> optax.GradientTransformationExtraArgs:
    """A step of rate a along the outer gradient."""

    def update(
        gap: Tree,
        state: Tree,
        params: Params | None = None,
        *,
        outer_learning_rate: Array,
        **_: Tree,
    ) -> tuple[Params, Tree]:
        return jax.tree.map(lambda leaf: -outer_learning_rate * leaf, gap), state

    return optax.GradientTransformationExtraArgs(optax.identity().init, update)


@dataclass(frozen=True)
class SparseLoCo(ModelAveraging, OuterRate, name="sparseloco"):
    error_decay: float = field(
        0.95, "beta, what is kept of an error until the next message.", **FRACTION
    )

    cluster = ALWAYS_THERE  # nobody says what the errors of those who are away become
    over_graphs = False  # messages are differences from a theta that all nodes have
    mean = MappingProxyType({"outer_learning_rate": 1.0, "error_decay": 1.0})

    def outer(self) -> optax.GradientTransformationExtraArgs:
        return descent()

    def compressed(self) -> Compression:
        sent = numbers(self.compression_bits, self.compression_block)
        return compression.top_k(self.compression_share, sent)

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        known = ("", "top_k")
        said = f"of sparseloco must be {one_of_these(self.compression, known)}"
        yield Join("method.compression", self.compression not in known, said)

    def why_no_overlap(self) -> str:
        return "sends the largest numbers of an array only"
