"""Models: sequences of named blocks (flax modules), each with parameters of its own."""

from typing import Any

from research.models.base import Blocks
from research.models.cnn import cnn
from research.models.mlp import mlp
from research.models.quadratic import quadratic

__all__ = ["NAMES", "Blocks", "make"]

NAMES = ("mlp", "cnn", "quadratic")


def make(model: Any, classes: int) -> Blocks:
    """The blocks of `config.model`; `classes` is the number of labels of the data."""
    if model.name == "mlp":
        return mlp(model.hidden, classes, model.dtype)
    if model.name == "cnn":
        return cnn(model.channels, model.hidden, classes, model.dtype, model.lowering or None)
    if model.name == "quadratic":
        return quadratic(model.dimension)
    raise ValueError(f"model {model.name!r}: one of {', '.join(NAMES)}")
