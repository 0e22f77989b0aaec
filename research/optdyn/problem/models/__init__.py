"""Models: sequences of named blocks, flax modules with separate parameters."""

from optdyn.problem.models.adapters import equinox as from_equinox
from optdyn.problem.models.adapters import nnx as from_nnx
from optdyn.problem.models.base import Blocks, Model, OwnModel, make
from optdyn.problem.models.convnets import CNN, ResNet
from optdyn.problem.models.mlp import MLP, ResMLP
from optdyn.problem.models.quadratic import Quadratic
from optdyn.problem.models.transformer import ModernTransformer, Transformer

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
    "from_equinox",
    "from_nnx",
    "make",
]
