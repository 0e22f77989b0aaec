"""What is minimized: a model as a sequence of blocks, a loss, metrics and data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from research import data as datasets
from research import models, seeds
from research.models import base
from research.models.quadratic import curvatures, optima

Params = dict[str, Any]
Examples = dict[str, Any]  # arrays whose first axis counts examples


class Problem(NamedTuple):
    """Pure functions; `outputs` is what the last block makes of a batch."""

    blocks: models.Blocks
    input: Callable[[Examples], jax.Array]  # batch -> what the first block takes
    losses: Callable[[jax.Array, Examples], jax.Array]  # (outputs, batch) -> (B,)
    metrics: dict[str, Callable[[jax.Array, Examples], jax.Array]]  # likewise, by name

    def init(self, key: jax.Array, examples: Examples) -> Params:
        """Parameters of all blocks, float32."""
        return base.init(self.blocks, key, self.input(examples))

    def outputs(self, params: Params, batch: Examples) -> jax.Array:
        return base.apply(self.blocks, params, self.input(batch))

    def each_loss(self, params: Params, batch: Examples) -> jax.Array:
        """Loss of every example, (B,) float32."""
        return self.losses(self.outputs(params, batch), batch)

    def loss(self, params: Params, batch: Examples) -> jax.Array:
        """Mean loss of the batch, float32."""
        return jnp.mean(self.each_loss(params, batch))


def _image_input(batch: Examples) -> jax.Array:
    return batch["image"].astype(jnp.float32) / 255


def _cross_entropy(logits: jax.Array, batch: Examples) -> jax.Array:
    logits = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])


def _accuracy(logits: jax.Array, batch: Examples) -> jax.Array:
    return (logits.argmax(-1) == batch["label"]).astype(jnp.float32)


def make(model: Any, classes: int) -> Problem:
    """The problem of `config.model`."""
    blocks = models.make(model, classes)
    if model.name == "quadratic":
        h = jnp.asarray(curvatures(model.dimension, model.condition))

        def losses(displacement: jax.Array, batch: Examples) -> jax.Array:
            return jnp.sum(h * displacement**2, -1) / 2

        return Problem(blocks, lambda batch: batch["optimum"], losses, {})
    return Problem(blocks, _image_input, _cross_entropy, {"accuracy": _accuracy})


def load_data(config: Any) -> datasets.Data:
    """The examples of `config.data`, or those of the quadratic (whose test set is noiseless)."""
    model = config.model
    if model.name == "quadratic":
        rng = seeds.generator(config.seed, "quadratic")
        examples = config.data.train_examples or 1000
        train = optima(rng, examples if model.noise else 1, model.dimension, model.noise)
        test = np.zeros((1, model.dimension), np.float32)
        return datasets.Data({"optimum": train}, {"optimum": test}, 0)
    return datasets.load(config.data.name, config.data.dir or None, config.data.train_examples)
