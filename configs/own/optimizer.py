"""An optimizer of one's own: copy this file to a folder of yours, change it, and run from there

    python -m launch.train --config=FILE --workdir=DIR --config.optimizer.name=my_optimizer:make

`make` is a function of `learning_rate`, maybe of `momentum`, and of `config.optimizer.options`, and
returns an optax transformation. Both numbers arrive traced, anew with each update. An `update` that
takes further arguments is given `staleness` and `read_params`, where the gradient was taken.
"""

import jax
import jax.numpy as jnp
import optax


def make(learning_rate, momentum=0.0, softness=1.0):
    """Heavy ball on soft signs of the gradient, g / (softness + |g|)."""

    def soft(updates, state, params=None):
        return jax.tree.map(lambda g: g / (softness + jnp.abs(g)), updates), state

    signs = optax.GradientTransformation(lambda params: optax.EmptyState(), soft)
    return optax.chain(signs, optax.sgd(learning_rate, momentum))
