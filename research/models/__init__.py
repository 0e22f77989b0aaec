"""Models: sequences of named blocks (flax modules), each with parameters of its own."""

from typing import Any

from research.models.base import Blocks
from research.models.cnn import cnn
from research.models.mlp import mlp
from research.models.quadratic import quadratic
from research.models.resmlp import resmlp
from research.models.resnet import resnet
from research.models.transformer import transformer

__all__ = ["NAMES", "Blocks", "make"]

NAMES = ("mlp", "cnn", "resmlp", "resnet", "transformer", "quadratic")


def make(model: Any, classes: int) -> Blocks:
    """The blocks of `config.model`; `classes` is the number of labels of the data.

    Raises ValueError for numbers that do not make a model.
    """
    if model.name == "mlp":
        return mlp(model.hidden, classes, model.dtype)
    if model.name == "cnn":
        return cnn(model.channels, model.hidden, classes, model.dtype, model.lowering or None)
    if model.name == "resmlp":
        return resmlp(model.blocks, model.width, classes, model.dtype)
    if model.name == "resnet":
        lowering = model.lowering or None
        return resnet(model.channels, model.blocks, model.norm, classes, model.dtype, lowering)
    if model.name == "transformer":
        return transformer(model.blocks, model.width, model.attention_heads, classes, model.dtype)
    if model.name == "quadratic":
        return quadratic(model.dimension)
    raise ValueError(f"model {model.name!r}: one of {', '.join(NAMES)}")
