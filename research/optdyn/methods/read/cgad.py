"""CGAD's server (arXiv 2605.09126): what comes late counts less, and Adam in place of a momentum.

    G     <- gate(tau) e^(-alpha tau) G      tau: how often theta was updated since it was read
    gate   = (1 + cos(pi min(tau / T, 1))) / 2                         1 without a cutoff T
    theta <- theta - eta Adam(G)                                       of first decay b

With alpha = 0 and no cutoff, and where tau = 0, G stays as it is.
"""

from dataclasses import dataclass

import jax
import numpy as np
import optax

from optdyn.base.fields import field
from optdyn.base.trees import Choice
from optdyn.core import Array, Params
from optdyn.methods.method import Method
from optdyn.methods.read.server import Kept, ServerRule


@dataclass(frozen=True)
class Aged(Method):
    """The numbers of what counts by its age."""

    age_decay: float = field(
        0.0, "alpha, what comes late counts e^(-alpha age) of its own.", at_least=0
    )
    age_cutoff: float = field(
        0.0,
        "T, an age from which on what comes counts nothing, and less before by a cosine; 0: none.",
        at_least=0,
    )

    def weights(self, age: np.ndarray) -> np.ndarray | None:
        """gate(tau) e^(-alpha tau) of messages of that `age`, float32; None where all count 1."""
        if not (self.age_decay or self.age_cutoff):
            return None
        weight = np.exp(-self.age_decay * age)
        if self.age_cutoff:
            weight *= (1 + np.cos(np.pi * np.minimum(age / self.age_cutoff, 1))) / 2
        return weight.astype(np.float32)


def weighed(message: Params, weight: Array | None) -> Params:
    """The message G times its weight."""
    if weight is None:
        return message
    return jax.tree.map(lambda g: (weight * g).astype(g.dtype), message)


def adam(message: Params, kept: Kept, c: Choice) -> tuple[Params, Kept]:
    """Adam of what is weighed; `c` is a `Turn`."""
    rule = optax.scale_by_adam(b1=c.decay)
    step, state = rule.update(weighed(message, c.weight), kept.optimizer)
    return step, kept._replace(optimizer=state)


ADAM = ServerRule(adam, optax.scale_by_adam().init)
