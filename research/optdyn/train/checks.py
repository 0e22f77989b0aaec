"""Whether an experiment can run on this machine and these data, besides its own joins."""

from optdyn import experiment
from optdyn.base import lookup
from optdyn.base.errors import Join
from optdyn.base.trees import Params, head
from optdyn.experiment import Config
from optdyn.problem.data import Dataset
from optdyn.train import memory_checks, program

EXAMPLES = 8  # on which a model is tried


def check(config: Config) -> None:
    """Raises `ConfigError` at the first value that cannot run, though it is in its range.

    First what must go together, then whether it can fit into this machine's memory, and whether
    the user's own code is what it asks for.
    """
    experiment.check(config)
    memory_checks.of_config(config)
    lookup.check_code(config)


def check_parts(config: Config, data: Dataset, params: Params) -> None:
    """Raises `ConfigError` where parts of a batch have another mean gradient than the whole.

    That is where the loss of an example depends on the others of its batch, and the batch is taken
    in parts in which a simulation on one device does not take it.
    """
    real, methods = config.parallel, config.methods
    nodes, devices = methods.devices(config)
    if methods.gradient and methods.stages:
        devices *= methods.gradient.parts(nodes)
    apart = real.api in ("shard_map", "pmap") and not methods.mix and devices > 1
    keys = {
        "parallel.accumulation": (real.accumulation > 1, "1"),
        "method.name": (methods.reduces_itself, "another, as its workers go by micro-batches"),
        "parallel.api": (apart, "''" if methods.stages else "'' or 'jit'"),
    }
    chosen = next((key for key, (divides, _) in keys.items() if divides), "")
    if chosen and program.mixes(config, data.classes, params, head(data.train, EXAMPLES)):
        expected = (
            f"{keys[chosen][1]}: with this model the loss of an example depends on the others "
        )
        expected += "of its batch (as with a norm over the batch), and so on how that is divided"
        experiment.refuse_first(config, [Join(chosen, True, f"must be {expected}")])
