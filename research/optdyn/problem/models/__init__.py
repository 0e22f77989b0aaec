"""Models: sequences of named blocks (flax modules), each with parameters of its own."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn

from optdyn.base import lookup
from optdyn.base.errors import ConfigError
from optdyn.base.fields import plain
from optdyn.problem.models.base import Blocks, remat
from optdyn.problem.models.cnn import cnn
from optdyn.problem.models.mlp import mlp
from optdyn.problem.models.modern_transformer import modern_transformer
from optdyn.problem.models.quadratic import quadratic
from optdyn.problem.models.resmlp import resmlp
from optdyn.problem.models.resnet import resnet
from optdyn.problem.models.transformer import transformer
from optdyn.setup import Model

__all__ = ["MODELS", "Blocks", "make"]

# Their arguments are keys of `config.model`, and `classes`.
MODELS: Mapping[str, Callable[..., Blocks]] = {
    model.__name__: model
    for model in (mlp, cnn, resmlp, resnet, transformer, modern_transformer, quadratic)
}
KEY = "config.model.name"


def make(model: Model, classes: int) -> Blocks:
    """The blocks of `config.model`; `classes` is what its outputs are to count, in `data.Data`.

    With `config.model.remat` those of `base.remat`.
    A model of the user's own is `make(classes, **config.model.options)` and returns a flax module
    or a sequence of (name, module). Raises ValueError for numbers that do not make a model.
    """
    blocks = _made(model, classes)
    return remat(blocks) if model.remat else blocks


def _made(model: Model, classes: int) -> Blocks:
    function = lookup.find(KEY, model.name, MODELS)
    if lookup.is_own(model.name):
        made = lookup.call(KEY, model.name, function, classes, **plain(model.options))
        return _blocks(model.name, made)
    if model.options:
        raise ConfigError(f"config.model.options: of models of your own, not of {model.name!r}")
    keys = [key for key in inspect.signature(function).parameters if key != "classes"]
    return function(classes=classes, **{key: getattr(model, key) for key in keys})


def _blocks(name: str, made: Any) -> Blocks:
    """What the user's function made, as blocks. Raises `ConfigError`."""
    pairs = (("model", made),) if isinstance(made, nn.Module) else made
    try:
        blocks = tuple((block, module) for block, module in pairs)
    except (TypeError, ValueError):
        blocks = ()
    names = [block for block, _ in blocks]
    good = [isinstance(block, str) and isinstance(m, nn.Module) for block, m in blocks]
    if not blocks or not all(good) or len(set(names)) < len(names):
        raise ConfigError(
            f"{lookup.setting(KEY, name)}: must return a flax.linen module or a sequence of (name, "
            f"module), all names different, and returned {lookup.shown(made)}"
        )
    return blocks
