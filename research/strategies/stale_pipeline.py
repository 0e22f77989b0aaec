"""Pipelines that are never flushed: every stage has parameters of an age of its own.

    x^s_{t+1} = x^s_t - alpha grad_s f(x^1_{t - tau_1}, ..., x^S_{t - tau_S})      s = 1, ..., S

    stash      tau_s = S - s, forward and backward     PipeDream with weight stashing, 1806.03377
    2bw        tau_s = 1 of all stages                 PipeDream-2BW, 2006.09503
    no_stash   likewise forward, backward at x_t       PipeDream without stashing
    predict    as stash, of parameters predicted for   SpecTrain, 1809.02839; FTPipe
               tau_s updates later

The nodes of the cluster are the stages. This is asynchronous SGD whose blocks have a slot each,
which the clock decides, and what else stages do is in `late_stages.py`. Each block has an optimizer
of its own, with a staleness of its own.
"""

from typing import Any

from optdyn import models
from optdyn.experiment import Experiment
from optdyn.parallel.layout import mesh
from optdyn.parallel.never_flushed import never_flushed
from optdyn.problem import Problem
from optdyn.strategies import local
from optdyn.strategies.late_stages import gradient_of, reading
from optdyn.strategies.method import Chosen, Keys, Method, Network, Setting
from optdyn.timeline import pipeline
from optdyn.timeline.base import Timeline
from optdyn.timeline.stale_stages import KINDS, cuts, stale_stages
from optdyn.values import ConfigError, one_of


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """One forward and one backward in turn, without a flush (`timeline/pipeline.py`).

    Of 2bw an update is of `micro_batches`, of the others of one batch as a whole.
    """
    config, strategy = setting.config, setting.config.strategy
    assert setting.network
    blocks, stages = len(setting.network.problem.blocks), config.cluster.nodes
    size = {"steps": config.steps, "batch_size": config.batch_size}
    parts = strategy.micro_batches if strategy.pipeline == "2bw" else 1
    seconds = pipeline.never_flushed(config.cluster, parts, _work(config, setting.network), **size)
    return stale_stages(strategy.pipeline, stages, blocks, seconds)


def _work(config: Experiment, network: Network) -> pipeline.Work:
    """Of backpropagation on the stages."""
    plain = {"strategy.variant": "backprop", "strategy.shared_heads": False}
    return local.costs(config.with_(plain), network)[1]


def values(config: Experiment) -> None:
    """Raises `ConfigError`."""
    one_of(config, "strategy.pipeline", KINDS)


def check(config: Experiment, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    strategy, cluster = config.strategy, config.cluster
    blocks = len(models.make(config.model, classes=2)) - 1
    if not 1 <= cluster.nodes <= blocks:
        raise ConfigError(
            f"config.cluster.nodes = {cluster.nodes}: stages of a pipeline, must be from 1 to the "
            f"model's {blocks} blocks before its last"
        )
    parts = cluster.devices_per_node
    if strategy.pipeline == "2bw":
        parts *= strategy.micro_batches
        if strategy.micro_batches < cluster.nodes:
            raise ConfigError(
                f"config.strategy.micro_batches = {strategy.micro_batches}: must be at least the "
                f"{cluster.nodes} stages, or '2bw' is later than by one update"
            )
    if config.batch_size % parts:
        raise ConfigError(
            f"config.batch_size = {config.batch_size}: must be a multiple of {parts} (config."
            "cluster.devices_per_node, of '2bw' x config.strategy.micro_batches)"
        )
    if strategy.pipeline == "predict" and config.optimizer.name != "sgd":
        raise ConfigError(
            f"config.optimizer.name = {config.optimizer.name!r}: 'predict' is of heavy ball, must "
            "be 'sgd'"
        )


def report(config: Experiment, network: Network) -> dict[str, Any]:
    """Bytes of an update between stages, activations forward and their gradients back."""
    return {"communicated_bytes": int(2 * _work(config, network).sent.sum())}


def layout(problem: Problem, optimizer: Any, keys: Keys, nodes: int, devices: int) -> Any:
    """A stage a device, or several that share its batches."""
    kind, blocks = keys["pipeline"], len(problem.blocks)
    parts = keys["micro_batches"] if kind == "2bw" else 1
    on = mesh(("stage", "data"), (nodes, devices))
    return never_flushed(problem, optimizer, kind, cuts(nodes, blocks), on, parts)


METHOD = Method(
    keys={
        "pipeline": "stash",  # or '2bw', 'no_stash', 'predict': which parameters stages use
        "micro_batches": 4,  # local, backprop on several nodes, or stale_pipeline, 2bw: of a batch
    },
    compiled=("pipeline", "micro_batches"),
    gradient=gradient_of,
    read=reading,
    servers=lambda problem: {name: place for place, (name, _) in enumerate(problem.blocks)},
    staged=True,
    clock=clock,
    laws=("constant",),
    cluster=("latencies", "bandwidths"),
    values=values,
    check=check,
    report=report,
    layout=layout,
)
