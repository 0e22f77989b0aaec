"""A loss and a metric of one's own: copy this file to a folder of yours and run from there

    python -m launch.train --config=FILE --workdir=DIR \
        --config.loss=my_loss:log_cosh --config.metrics="('my_loss:worst', 'absolute_error')"

Both are `(outputs, batch) -> (B,)`, a number an example. `outputs` is what the last block makes of
the batch, a dict of arrays named as the data's. A metric is `test_` and its name in the log.
"""

import jax
import jax.numpy as jnp


def log_cosh(outputs: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """Like the squared error near 0 and like the absolute one far away; outputs (B, D) as `y`."""
    return jnp.log(jnp.cosh(outputs - batch["y"])).sum(-1)


def worst(outputs: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """The largest error among an example's numbers."""
    return jnp.abs(outputs - batch["y"]).max(-1)
