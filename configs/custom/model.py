"""Your model: copy this file to a folder of yours, change it, and run from there

    python -m launch.train --config=FILE --workdir=DIR --config.model.name=my_model:make

`make(classes, **config.model.options)` returns a flax.linen module, what `optdyn.from_nnx` and its
like return, or, for methods that need blocks, such as local learning and merged servers, a sequence
of (name, module). Parameters are float32. A block may have dropout and a state, such as the running
averages of batch norms (`docs/faq.md`, `student.py`). `classes` is the number of outputs: labels,
tokens, or the last axis of `y`.
"""

import flax.linen as nn
import jax


class Sines(nn.Module):
    """(B, ...) -> (B, width)."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.numpy.sin(nn.Dense(self.width)(x.reshape(len(x), -1)))


def make(classes: int, widths: tuple[int, ...] = (32, 32)):
    """Returns dense layers with sine activations, one a block, and the output."""
    layers = [(f"sine{i}", Sines(width)) for i, width in enumerate(widths)]
    return [*layers, ("output", nn.Dense(classes))]
