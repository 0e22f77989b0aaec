"""Your loss and metric: copy this file to a folder of yours, change it, and run from there

    python -m launch.train --config=FILE --workdir=DIR \
        --config.loss=my_loss:log_cosh --config.metrics="('my_loss:worst', 'absolute_error')"

Both are `(outputs, batch) -> (B,)`, a number an example. `outputs` are those of the last block for
the batch, a dict of arrays with the data's names. A metric is `test_NAME` in the log.
"""

import jax
import jax.numpy as jnp


def log_cosh(outputs: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """Returns errors that are squared near 0 and absolute far away; outputs (B, D) as `y`."""
    return jnp.log(jnp.cosh(outputs - batch["y"])).sum(-1)


def worst(outputs: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """Returns the largest error among an example's numbers."""
    return jnp.abs(outputs - batch["y"]).max(-1)
