"""A schedule of one's own: copy this file to a folder of yours, change it, and run from there

    python -m launch.train --config=FILE --workdir=DIR --config.optimizer.schedule=my_schedule:make

`make(learning_rate, steps, **config.optimizer.schedule_options)` returns a function of the number
of an update, which is traced, to its learning rate; a warm-up goes before it. `steps` are the
updates that it is for.
"""

import jax.numpy as jnp


def make(learning_rate: float, steps: int, timescale: float = 100.0):
    """learning_rate / sqrt(1 + t / timescale), whatever the length of the run."""
    return lambda count: learning_rate / jnp.sqrt(1 + count / timescale)
