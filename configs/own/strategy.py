"""A strategy of one's own: copy this file to a folder of yours, change it, and run from there

    python -m launch.train --config=FILE --workdir=DIR --config.strategy.name=my_strategy:CLIPPED

`research/strategies/README.md` says what a `Method` is made of. Its keys are in
`config.strategy.options`, and it joins with others by '+', as in my_strategy:CLIPPED+asynchronous.
"""

import jax
import jax.numpy as jnp

from optdyn.strategies.method import Method
from optdyn.timeline import make
from optdyn.timeline.service import DRAWN


def clipped(problem, keys):
    """The gradient of the batch, every number of it between -largest and largest."""
    of = jax.value_and_grad(problem.loss)

    def gradient(params, event, batch):
        loss, grads = of(params, batch)
        most = keys["largest"]
        return loss, jax.tree.map(lambda leaf: jnp.clip(leaf, -most, most), grads)

    return gradient


def clock(setting, methods):
    """All workers wait for one another."""
    config = setting.config
    return make(config.cluster, groups=1, steps=config.steps, batch_size=config.batch_size)


CLIPPED = Method(
    keys={"largest": 0.1}, compiled=("largest",), gradient=clipped, clock=clock, laws=DRAWN
)
