"""Whether an experiment can run on this machine and these data, besides its own joins."""

from functools import partial

import jax

from optdyn import experiment
from optdyn.base import lookup
from optdyn.base.errors import Join
from optdyn.base.trees import Params, head
from optdyn.experiment import Config
from optdyn.problem.data import Dataset
from optdyn.problem.problem import STATE, Traits
from optdyn.train import memory_checks, program

EXAMPLES = 8  # examples of the batch on which a model is tried


def check(config: Config) -> None:
    """Raises `ConfigError` at the first value that cannot run: by joins, memory, or user code."""
    experiment.check(config)
    memory_checks.check_config(config)
    lookup.check_code(config)


def check_traits(config: Config, data: Dataset, params: Params, traits: Traits) -> None:
    """Raises `ConfigError` where a model with these traits cannot be trained in this way."""
    if not (size := program.norm_examples(config, traits)):
        check_parts(config, data, params)
    refuse = partial(experiment.refuse_first, config)
    refuse(experiment.state_joins(config, *traits))
    few = head(data.train, EXAMPLES)
    if traits.state:
        state = program.initial_state(config, data.classes, jax.random.key(0), few)
        mixes = program.mixes(config, data.classes, params | {STATE: state}, few, evaluated=True)
        expected = "must be evaluated example by example, with its running averages, and not by "
        expected += "the batch, as with use_running_average=False also where it is not trained"
        refuse([Join("model.name", mixes, expected)])
    if traits.state and config.evaluation.statistics == "recomputed":
        reads = program.reads_state(config, data.classes, params, few)
        expected = "must be 'carried': in training this model reads its state, as with a spectral "
        expected += "norm, a codebook or a frozen norm, so that it is no average of other batches"
        refuse([Join("evaluation.statistics", reads, expected)])
    if traits.state and size == 1:
        blind = program.is_blind(config, data.classes, params, few)
        expected = (
            f"must be 2 or more: of config.batch_size = {config.batch_size} each norm takes one "
        )
        expected += "example, and what is left of it is the same for all"
        refuse([Join("model.norm_examples", blind, expected)])
    if not size:
        return
    if config.methods.reduces_itself:
        key, together = config.methods.key("micro_batch"), config.methods.get("micro_batch", size)
        expected = f"must divide config.{key} = {together}, the examples that are computed together"
        refuse([Join("model.norm_examples", together % size, expected)])
        return
    batch, parts = config.batch_size, program.workers_of(config)
    expected = f"must be given, as config.batch_size = {batch} examples do not divide among "
    expected += f"{parts} workers' passes"
    refuse(
        [Join("model.norm_examples", not config.model.norm_examples and batch % parts, expected)]
    )
    together = batch // program.passes_of(config)
    expected = f"must divide {together}, the examples that are computed together"
    refuse([Join("model.norm_examples", together % size, expected)])


def check_parts(config: Config, data: Dataset, params: Params) -> None:
    """Raises `ConfigError` where parts of a batch have another mean gradient than the whole."""
    real, methods = config.parallel, config.methods
    nodes, devices = methods.devices(config)
    if methods.gradient and methods.stages:
        devices *= methods.gradient.parts(nodes)
    divided = real.api in ("shard_map", "pmap") and not methods.mix and devices > 1
    keys = {
        "parallel.accumulation": (real.accumulation > 1, "1"),
        "method.name": (methods.reduces_itself, "another, as its workers go by micro-batches"),
        "parallel.api": (divided, "''" if methods.stages else "'' or 'jit'"),
    }
    divides = next((key for key, (divides, _) in keys.items() if divides), "")
    if divides and program.mixes(config, data.classes, params, head(data.train, EXAMPLES)):
        expected = f"must be {keys[divides][1]}: the loss of an example of this model depends on "
        expected += "the others of its batch (as with a norm over the batch), so on its division; "
        expected += "config.model.norm_examples says how many are normalized together"
        experiment.refuse_first(config, [Join(divides, True, expected)])
