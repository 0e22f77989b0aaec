"""Whether an experiment can run on this machine and these data, besides its own joins."""

from collections.abc import Iterator

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


def check_traits(
    config: Config, data: Dataset, params: Params, state: Params | None, traits: Traits
) -> None:
    """Raises `ConfigError` where a model with these traits cannot be trained in this way."""
    if not (size := program.norm_examples(config, traits)):
        check_parts(config, data, params)
    for joins in (
        experiment.state_joins(config, *traits),
        _state(config, data, params, state, size) if state else (),
        _norms(config, size, traits) if size else (),
    ):
        experiment.refuse_first(config, joins)


def _state(
    config: Config, data: Dataset, params: Params, state: Params, size: int
) -> Iterator[Join]:
    few = head(data.train, EXAMPLES)
    model, variables = (config, data.classes, params, state), params | {STATE: state}
    expected = "must be evaluated example by example, with its running averages, and not by the "
    expected += "batch, as with use_running_average=False also where it is not trained"
    mixes = program.mixes(config, data.classes, variables, few, evaluated=True)
    yield Join("model.name", mixes, expected)
    if config.evaluation.statistics == "recomputed":
        expected = "must be 'carried': in training this model reads its state, as with a spectral "
        expected += "norm, a codebook or a frozen norm, so that it is no average of other batches"
        yield Join("evaluation.statistics", program.reads_state(*model, few), expected)
    if size == 1:
        expected = f"must be 2 or more: of config.batch_size = {config.batch_size} each norm takes "
        expected += "one example, and what is left of it is the same for all"
        yield Join("model.norm_examples", program.is_blind(*model, few), expected)


def _norms(config: Config, size: int, traits: Traits) -> Iterator[Join]:
    """Yields the joins of a norm that takes `size` examples together."""
    key, batch, parts = "model.norm_examples", config.batch_size, program.workers_of(config)
    if config.methods.reduces_itself:
        micro, together = config.methods.key("micro_batch"), config.methods.get("micro_batch", size)
        share = batch // parts
        expected = f"must be given, and at most {share}, an equal share of config.batch_size = "
        yield Join(key, traits.state and size > share, f"{expected}{batch}")
        expected = f"must divide config.{micro} = {together}, the examples that are computed "
    else:
        expected = f"must be given, as config.batch_size = {batch} examples do not divide among "
        uneven = not config.model.norm_examples and batch % parts
        yield Join(key, uneven, f"{expected}{parts} workers' passes")
        together = batch // program.passes_of(config)
        expected = f"must divide {together}, the examples that are computed "
    yield Join(key, together % size, f"{expected}together")


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
