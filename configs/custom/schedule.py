"""Your schedule: copy this file to a folder of yours, change it, and run from there

    python -m launch.train --config=FILE --workdir=DIR --config.optimizer.schedule=my_schedule:make

`make(learning_rate, steps, **config.optimizer.schedule_options)` returns a function from an
update's number, which is traced, to its learning rate. `steps` is the number of updates after the
warm-up.
"""

import jax.numpy as jnp


def make(learning_rate: float, steps: int, timescale: float = 100.0):
    """Returns learning_rate / sqrt(1 + t / timescale), for any number of steps."""
    return lambda count: learning_rate / jnp.sqrt(1 + count / timescale)
