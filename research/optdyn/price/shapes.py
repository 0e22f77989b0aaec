"""A model by its shapes: what a clock has to know of it, whatever its size."""

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
    """A model by its shapes, or the number of its parameters alone."""

    params: Params  # of jax.ShapeDtypeStruct
    problem: Any = None  # a `Problem`; None: there is only a number of parameters
    examples: Any = None
    set_size: int = 0  # examples of the training set; 0: there is none

    @property
    def bytes(self) -> int:
        """Bytes of the parameters."""
        return bytes_of(self.params)


def model_shapes(config: Config) -> Shapes:
    """The model of an experiment. Raises `ConfigError` and `DataError`."""
    data = shared_data.load(config)
    one = head(data.train, 1)
    params = program.shapes(config, data.classes, seeds.key(config.seed, "init"), one)
    problem = program.problem_of(config, data.classes)
    return Shapes(params, problem, one, examples_in(data.train))


def parameter_shapes(count: float) -> Shapes:
    """Float32 parameters, so many, in square matrices and a vector with the rest."""
    width = max(int(math.sqrt(count / LAYERS)), 1)
    rest = int(count) - LAYERS * width**2
    params = {
        f"layer{i:03}": jax.ShapeDtypeStruct((width, width), "float32") for i in range(LAYERS)
    }
    if rest > 0:
        params["rest"] = jax.ShapeDtypeStruct((rest,), "float32")
    return Shapes(params)


def clock_inputs(config: Config, shapes: Shapes, steps_per_epoch: int = 0) -> ClockInputs:
    network = ModelInfo(shapes.problem, shapes.params, shapes.examples)
    return ClockInputs(config, steps_per_epoch or config.steps, shapes.bytes, network=network)


def stage_work(config: Config, shapes: Shapes) -> StageWork:
    """The work of the nodes that are stages (`pipeline.StageWork`)."""
    of = config.methods.gradient
    of = of if isinstance(of, local.Local) else local.Local(variant="backprop")
    return local.costs(of, config, ModelInfo(shapes.problem, shapes.params, shapes.examples))[1]
