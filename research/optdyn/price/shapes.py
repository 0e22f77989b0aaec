"""A model by its shapes, which are all that a clock needs of it."""

import math
from typing import Any, NamedTuple

import jax

from optdyn.base import seeds
from optdyn.base.trees import Params, bytes_of, examples_in, head
from optdyn.clock.pipeline import StageWork
from optdyn.experiment import Config
from optdyn.methods import ClockInputs, ModelInfo, local
from optdyn.problem import shared_data
from optdyn.train import program

LAYERS = 144  # arrays of the model that a number of parameters stands for


class Shapes(NamedTuple):
    """A model by its shapes, or a number of parameters."""

    params: Params  # of jax.ShapeDtypeStruct
    problem: Any = None  # a `Problem`; None: only a number of parameters
    examples: Any = None
    set_size: int = 0  # examples of the training set; 0: no training set

    @property
    def bytes(self) -> int:
        return bytes_of(self.params)


def model_shapes(config: Config) -> Shapes:
    """Returns the shapes of a config's model. Raises `ConfigError` and `DataError`."""
    data = shared_data.load(config)
    example = head(data.train, 1)
    params = program.shapes(config, data.classes, seeds.key(config.seed, "init"), example)
    problem = program.problem_of(config, data.classes)
    return Shapes(params, problem, example, examples_in(data.train))


def parameter_shapes(count: float) -> Shapes:
    """Returns `count` float32 parameters: square matrices, and a vector with the rest."""
    width = max(int(math.sqrt(count / LAYERS)), 1)
    rest = int(count) - LAYERS * width**2
    params = {
        f"layer{i:03}": jax.ShapeDtypeStruct((width, width), "float32") for i in range(LAYERS)
    }
    if rest > 0:
        params["rest"] = jax.ShapeDtypeStruct((rest,), "float32")
    return Shapes(params)


def clock_inputs(config: Config, shapes: Shapes, steps_per_epoch: int = 0) -> ClockInputs:
    return ClockInputs(
        config, steps_per_epoch or config.steps, shapes.bytes, model_info=_model_info(shapes)
    )


def stage_work(config: Config, shapes: Shapes) -> StageWork:
    """Returns the work of the nodes that are stages."""
    method = config.methods.gradient
    method = method if isinstance(method, local.Local) else local.Local(variant="backprop")
    return local.costs(method, config, _model_info(shapes))[1]


def _model_info(shapes: Shapes) -> ModelInfo:
    return ModelInfo(shapes.problem, shapes.params, shapes.examples)
