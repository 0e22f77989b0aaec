"""What is minimized: a model as a sequence of blocks, a loss, metrics and data."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from research import data as datasets
from research import models, seeds
from research.data.augment import augment
from research.models import base
from research.models.quadratic import curvatures, optima

TEXT = ("transformer",)  # models of text; others take images

Params = dict[str, Any]
Examples = dict[str, Any]  # arrays whose first axis counts examples


class Pixels(NamedTuple):
    """What images go through before the first block: (x - mean) / std, of x from 0 to 1."""

    mean: tuple[float, ...] = ()  # of each channel; (): x itself
    std: tuple[float, ...] = ()
    augment: str = ""  # of `data/augment.py`, of what is trained on


AS_THEY_ARE = Pixels()


class Problem(NamedTuple):
    """Pure functions; `outputs` is what the last block makes of a batch."""

    blocks: models.Blocks
    input: Callable[[Examples], jax.Array]  # batch -> what the first block takes
    losses: Callable[[jax.Array, Examples], jax.Array]  # (outputs, batch) -> (B,)
    metrics: dict[str, Callable[[jax.Array, Examples], jax.Array]]  # likewise, by name
    heads: tuple[str, ...] = ()  # the blocks that have an auxiliary head
    augment: str = ""

    def batch(self, examples: Examples, chosen: jax.Array) -> Examples:
        """The examples that an update is trained on.

        `chosen` is their numbers, (B,); or (B, 2), with the seeds of their augmentation.
        """
        if chosen.ndim == 1:
            return {name: leaf[chosen] for name, leaf in examples.items()}
        batch = self.batch(examples, chosen[:, 0])
        return batch | {"image": augment(self.augment, chosen[:, 1], batch["image"])}

    def init(self, key: jax.Array, examples: Examples) -> Params:
        """Parameters of all blocks and auxiliary heads, float32."""
        return base.init(self.blocks, key, self.input(examples), self.heads)

    def outputs(self, params: Params, batch: Examples) -> jax.Array:
        return base.apply(self.blocks, params, self.input(batch))

    def each_loss(self, params: Params, batch: Examples) -> jax.Array:
        """Loss of every example, (B,) float32."""
        return self.losses(self.outputs(params, batch), batch)

    def loss(self, params: Params, batch: Examples) -> jax.Array:
        """Mean loss of the batch, float32."""
        return jnp.mean(self.each_loss(params, batch))


def _image_input(pixels: Pixels, batch: Examples) -> jax.Array:
    x = batch["image"].astype(jnp.float32) / 255
    return (x - jnp.array(pixels.mean)) / jnp.array(pixels.std) if pixels.mean else x


def _cross_entropy(logits: jax.Array, batch: Examples) -> jax.Array:
    logits = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])


def _accuracy(logits: jax.Array, batch: Examples) -> jax.Array:
    return (logits.argmax(-1) == batch["label"]).astype(jnp.float32)


def _text_input(batch: Examples) -> jax.Array:
    return batch["text"][:, :-1].astype(jnp.int32)


def _next_tokens(batch: Examples) -> jax.Array:
    return batch["text"][:, 1:].astype(jnp.int32)


def _text_cross_entropy(logits: jax.Array, batch: Examples) -> jax.Array:
    """The mean over the positions of a sequence, nats a token."""
    logits = logits.astype(jnp.float32)
    return jnp.mean(
        optax.softmax_cross_entropy_with_integer_labels(logits, _next_tokens(batch)), -1
    )


def _text_accuracy(logits: jax.Array, batch: Examples) -> jax.Array:
    return jnp.mean((logits.argmax(-1) == _next_tokens(batch)).astype(jnp.float32), -1)


def make(
    model: Any, classes: int, heads: tuple[str, ...] = (), pixels: Pixels = AS_THEY_ARE
) -> Problem:
    """The problem of `config.model`, with auxiliary heads on the named blocks."""
    blocks = models.make(model, classes)
    if model.name == "quadratic":
        h = jnp.asarray(curvatures(model.dimension, model.condition))

        def losses(displacement: jax.Array, batch: Examples) -> jax.Array:
            return jnp.sum(h * displacement**2, -1) / 2

        return Problem(blocks, lambda batch: batch["optimum"], losses, {}, heads)
    if model.name in TEXT:
        return Problem(
            blocks, _text_input, _text_cross_entropy, {"accuracy": _text_accuracy}, heads
        )
    take_in = partial(_image_input, pixels)
    return Problem(blocks, take_in, _cross_entropy, {"accuracy": _accuracy}, heads, pixels.augment)


def load_data(config: Any) -> datasets.Data:
    """The examples of `config.data`, or those of the quadratic (whose test set is noiseless)."""
    model = config.model
    if model.name == "quadratic":
        rng = seeds.generator(config.seed, "quadratic")
        examples = config.data.train_examples or 1000
        train = optima(rng, examples if model.noise else 1, model.dimension, model.noise)
        test = np.zeros((1, model.dimension), np.float32)
        return datasets.Data({"optimum": train}, {"optimum": test}, 0)
    chosen = config.data
    data = datasets.load(
        chosen.name,
        chosen.dir or None,
        chosen.train_examples,
        chosen.tokenizer,
        chosen.sequence_length,
        chosen.image_size,
    )
    held = "text" if "text" in data.train else "images"
    wanted = "text" if model.name in TEXT else "images"
    if held != wanted:
        raise datasets.DataError(
            f"config.model.name = {model.name!r} needs {wanted}: config.data.name = "
            f"{chosen.name!r} holds {held}"
        )
    _check_pixels(chosen, data)
    return data


def _check_pixels(chosen: Any, data: datasets.Data) -> None:
    """Raises DataError where `config.data` asks for what these examples cannot have."""
    channels = data.train["image"].shape[-1] if "image" in data.train else 0
    if chosen.augment and not channels:
        raise datasets.DataError(
            f"config.data.augment = {chosen.augment!r}: only of images, not {chosen.name!r}"
        )
    if not (chosen.mean or chosen.std):
        return
    for name, least in (("mean", -math.inf), ("std", 0)):
        values = tuple(chosen[name])
        if len(values) != channels or not all(least < value < math.inf for value in values):
            raise datasets.DataError(
                f"config.data.{name} = {values}: must be a finite number{' above 0' * (not least)} "
                f"for each of the {channels} channels of {chosen.name!r}, as research.data.prepare "
                "prints them"
            )


def batches(
    config: Any, examples: int, start: int, stop: int, independent: bool = False
) -> np.ndarray:
    """What updates start..stop-1 are trained on: int32 (stop - start, B) numbers of examples.

    With augmentation (stop - start, B, 2), each with its seed, as `Problem.batch` takes it. With
    `independent`, second mini-batches beside those, of the same conditional mean.
    """
    names = ("batches", "augmentation", "second", "second augmentation")
    order, pixels, second, seconds = (
        int(seeds.generator(config.seed, name).integers(2**63)) for name in names
    )
    drawn = start, stop, config.batch_size, examples, config.data.replacement
    if independent:
        chosen, pixels = datasets.independent(second, order, *drawn), seconds
    else:
        chosen = datasets.batches(order, *drawn)
    if not config.data.augment:
        return chosen
    return np.stack([chosen, datasets.draws(pixels, *drawn[:3])], axis=-1)
