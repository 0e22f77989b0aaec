"""The shipped configs: of real size their parameters, from shapes alone, and that of text."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import gpt, resnet, text
from optdyn.problem import models
from optdyn.problem.data.kinds import KJV
from optdyn.train import trainer
from optdyn.train.checks import check
from tests.models.parameters import count, shapes

IMAGES = {"fashion_mnist": (28, 1, 10), "cifar10": (32, 3, 10), "imagenet2012": (224, 3, 1000)}


@pytest.mark.parametrize("name", gpt.SIZES)
def test_transformers_have_the_size_that_they_are_called(name):
    config, size = gpt.get_config(name), gpt.SIZES[name]
    check(config)
    blocks = models.make(config.model, size.vocabulary)
    made = count(shapes(blocks, jnp.zeros((2, 8), jnp.int32)))
    assert f"{made:,}" in gpt.__doc__
    assert round(made / 1e6) == int(name[:-1])
    assert config.data.tokenizer == f"bpe:{size.vocabulary}"


@pytest.mark.parametrize(
    ("variant", "millions"), [("18", 11.2), ("18,cifar10", 11.2), ("50,imagenet2012", 25.6)]
)
def test_residual_networks_are_for_the_images_that_they_are_of(variant, millions):
    config = resnet.get_config(variant)
    check(config)
    side, channels, classes = IMAGES[variant.partition(",")[2] or "fashion_mnist"]
    assert config.data.image_size in (0, side)
    blocks = models.make(config.model, classes)
    x = jnp.zeros((2, side, side, channels))
    assert round(count(shapes(blocks, x)) / 1e6, 1) == millions
    assert f"{millions} million" in resnet.__doc__
    last = blocks[:-1]
    made = jax.eval_shape(lambda p: models.base.activations(last, p, x)[-1], shapes(blocks, x))
    assert made.shape[1:3] == ((7, 7) if side == 224 else (4, 4))


def test_what_is_drawn_is_what_the_config_says():
    config = gpt.get_config("10m,synthetic")
    config = config.with_({"data.options.examples": 10})
    made = config.data.load()
    assert made.train["text"].shape == (8, gpt.SIZES["10m"].tokens + 1)
    assert made.classes == gpt.SIZES["10m"].vocabulary


def unigram_entropy(tokens: np.ndarray) -> float:
    """Nats a token of a model that knows only how often each occurs."""
    share = np.bincount(tokens.ravel()) / tokens.size
    return float(-np.sum(share[share > 0] * np.log(share[share > 0])))


def test_learns_more_than_frequencies_in_few_updates(tmp_path):
    config = text.get_config("small").with_(
        {
            "model.blocks": 1,
            "model.width": 32,
            "data.sequence_length": 32,
            "data.train_evaluated": 64,
            "data.test_evaluated": 64,
        },
        batch_size=16,
        steps=80,
        log_every=80,
        checkpoint_every=0,
    )
    assert trainer.train(config, tmp_path)["status"] == "completed"
    first, last = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    data = KJV(sequence_length=32).load()
    # A sample of 64 sequences is some 0.03 nats off the whole text.
    assert last["test_loss"] < unigram_entropy(data.train["text"]) - 0.1 < np.log(data.classes)
    assert first["test_loss"] > np.log(data.classes) - 0.1  # an untrained model knows nothing


def test_evaluates_less_than_it_trains_on_between_two_log_points():
    for size in text.STEPS:
        config = text.get_config(size)
        evaluated = config.data.train_evaluated + config.data.test_evaluated
        assert 0 < evaluated <= config.log_every * config.batch_size / 3
