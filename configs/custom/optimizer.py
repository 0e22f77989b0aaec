"""Your optimizer: copy this file to a folder of yours, change it, and run from there

    python -m launch.train --config=FILE --workdir=DIR --config.optimizer.name=my_optimizer:make

`make` is a function of `learning_rate`, optionally `momentum`, and `config.optimizer.options`, and
returns an optax transformation. Both numbers are traced, with new values at each update. An
`update` with extra arguments receives `staleness` and `read_params`, at which the gradient was
computed.
"""

import jax
import jax.numpy as jnp
import optax


def make(learning_rate, momentum=0.0, softness=1.0):
    """Returns heavy ball on soft signs of the gradient, g / (softness + |g|)."""

    def soft(updates, state, params=None):
        return jax.tree.map(lambda g: g / (softness + jnp.abs(g)), updates), state

    signs = optax.GradientTransformation(lambda params: optax.EmptyState(), soft)
    return optax.chain(signs, optax.sgd(learning_rate, momentum))
