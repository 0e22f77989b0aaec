"""The shipped configs of real size: their numbers of parameters, from shapes alone."""

import jax
import jax.numpy as jnp
import pytest

from configs import gpt, resnet
from optdyn.problem import models
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
