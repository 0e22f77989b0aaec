"""Models: sequences of named blocks (flax modules), each with parameters of its own."""

from optdyn.problem.models.base import Blocks, Model, remat
from optdyn.problem.models.cnn import CNN
from optdyn.problem.models.mlp import MLP
from optdyn.problem.models.modern_transformer import ModernTransformer
from optdyn.problem.models.own import OwnModel
from optdyn.problem.models.quadratic import Quadratic
from optdyn.problem.models.resmlp import ResMLP
from optdyn.problem.models.resnet import ResNet
from optdyn.problem.models.transformer import Transformer

__all__ = [
    "CNN",
    "MLP",
    "Blocks",
    "Model",
    "ModernTransformer",
    "OwnModel",
    "Quadratic",
    "ResMLP",
    "ResNet",
    "Transformer",
    "make",
]


def make(model: Model, classes: int) -> Blocks:
    """The blocks of a model; `classes` is what its outputs are to count, in `data.Dataset`.

    With `remat` those of `base.remat`. Raises ValueError for numbers that do not make a model.
    """
    blocks = model.blocks_for(classes)
    return remat(blocks) if model.remat else blocks
