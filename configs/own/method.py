"""A method of one's own: copy this file to a folder of yours, change it, and run from there

    python -m launch.train --config=FILE --workdir=DIR --config.method.name=my_method:Clipped

`methods/README.md` says what a method is made of. Its fields are keys,
`config.method.largest`. It joins with others by '+': of my_method:Clipped+asynchronous the key is
`config.method.Clipped.largest`.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from optdyn.clock.arrivals import compute_groups
from optdyn.methods import Gradients


@dataclass(frozen=True)
class Clipped(Gradients):
    """The gradient of the batch, every number of it between -largest and largest."""

    largest: float = 0.1

    def gradient(self, problem):
        of = jax.value_and_grad(problem.loss)

        def clipped(params, event, batch):
            loss, grads = of(params, batch)
            return loss, jax.tree.map(
                lambda leaf: jnp.clip(leaf, -self.largest, self.largest), grads
            )

        return clipped

    def clock(self, inputs, methods):
        """All workers wait for one another."""
        setup = inputs.setup
        return compute_groups(
            setup.cluster, groups=1, steps=setup.steps, batch_size=setup.batch_size
        )
