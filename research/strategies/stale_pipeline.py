"""Pipelines that are never flushed: every stage has parameters of an age of its own.

    x^s_{t+1} = x^s_t - alpha grad_s f(x^1_{t - tau_1}, ..., x^S_{t - tau_S})      s = 1, ..., S

    stash      tau_s = S - s, forward and backward     PipeDream with weight stashing, 1806.03377
    2bw        tau_s = 1 of all stages                 PipeDream-2BW, 2006.09503
    no_stash   forward as stash, backward at x_t:      PipeDream without stashing
               h_{j+1} = f_j(x_{t - tau}, h_j), and its derivatives are those of f_j(x_t, h_j)
    predict    stash, but forward and backward at      SpecTrain, 1809.02839; FTPipe
               x_{t-tau} - (mu - mu^{tau+1}) / (1 - mu) (x_{t-tau-1} - x_{t-tau})

The nodes of the cluster are the stages. Prediction is where heavy ball of momentum mu would be now
if all gradients since were 0: x_{t-1} - x_t is its gamma v. A stage knows when it reads how late
its gradient will be. That is asynchronous SGD whose blocks each have a slot of their own, which the
clock decides; and each block has an optimizer of its own, with a staleness of its own.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from ml_collections import ConfigDict

from research import models
from research.strategies import local
from research.strategies.asynchronous import State, asynchronous
from research.strategies.base import Batch, Event, Gradient, Info, Params, Strategy, Update, whole
from research.strategies.method import Chosen, Keys, Method, Network, Setting
from research.timeline import pipeline
from research.timeline.base import Timeline
from research.values import ConfigError, one_of

KINDS = ("stash", "2bw", "no_stash", "predict")


def _gradient(problem: Any, keys: Keys) -> Gradient:
    """At what was read; where `_read` says so, with derivatives at `newest` or further `ahead`."""
    of = whole(problem.loss)

    def late(new: Params, old: Params, batch: Batch) -> jax.Array:
        h = problem.input(batch)
        for name, module in problem.blocks:
            now, then = (module.apply({"params": x[name]}, h) for x in (new, old))
            h = lax.stop_gradient(then) + (now - lax.stop_gradient(now))
        return jnp.mean(problem.losses(h, batch))

    def gradient(params: Params, event: Event, batch: Batch) -> tuple[jax.Array, Params]:
        control: Any = event.control or {}
        if "newest" in control:
            return jax.value_and_grad(late)(control["newest"], params, batch)
        if "ahead" in control:
            params = jax.tree.map(jnp.add, params, control["ahead"])
        return of(params, event, batch)

    return gradient


def _read(gradient: Gradient, update: Update, keys: Keys, slots: int, servers: Any) -> Strategy:
    """Of `event.control`: `read` and `write`, and for predictions `before`, (blocks,) int32."""
    inner = asynchronous(gradient, update, slots, servers=servers)

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        control: Any = dict(event.control or {})
        if keys["pipeline"] == "no_stash":
            control["newest"] = state.params
        if keys["pipeline"] == "predict":
            control["ahead"] = ahead(state, event)
        return inner.step(state, event._replace(control=control), batch)

    def ahead(state: State, event: Event) -> Params:
        mu, control = event.hyper["momentum"], event.control or {}
        factor = (mu - mu ** (jnp.asarray(event.staleness) + 1)) / (1 - mu)
        read, before = (
            state.at({name: control[when][block] for name, block in servers.items()})
            for when in ("read", "before")
        )
        return {
            name: jax.tree.map(lambda x, old, b=b: factor[b] * (x - old), read[name], before[name])
            for name, b in servers.items()
        }

    return Strategy(inner.init, step)


def delays(kind: str, stages: int, blocks: int) -> np.ndarray:
    """(blocks,) int32, tau of every block; the last is where the block before it is."""
    trunk = np.minimum(np.arange(blocks), max(blocks - 2, 0))
    cuts = [(blocks - 1) * stage // stages for stage in range(stages)]
    behind = stages - np.searchsorted(cuts, trunk, side="right")
    return np.minimum(behind.max(), 1) + 0 * behind if kind == "2bw" else behind


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """One forward and one backward in turn, without a flush (`timeline/pipeline.py`).

    Of 2bw an update is of `micro_batches`, of the others of one batch as a whole.
    """
    config, strategy = setting.config, setting.config.strategy
    assert setting.network
    blocks, stages = len(setting.network.problem.blocks), config.cluster.nodes
    late = delays(strategy.pipeline, stages, blocks)
    t = np.arange(config.steps)[:, None]
    staleness = np.minimum(late, t).astype(np.int32)
    slots = int(late.max()) + 1 + (strategy.pipeline == "predict")
    versions = {"read": t - staleness, "write": t + 1 + 0 * late}
    if strategy.pipeline == "predict":
        versions["before"] = np.maximum(t - staleness - 1, 0)
    control = {name: (version % slots).astype(np.int32) for name, version in versions.items()}
    size = {"steps": config.steps, "batch_size": config.batch_size}
    parts = strategy.micro_batches if strategy.pipeline == "2bw" else 1
    seconds = pipeline.never_flushed(config.cluster, parts, _work(config, setting.network), **size)
    none = np.zeros(config.steps, np.int32)
    return Timeline(none, none, none, staleness, seconds, slots, control)


def _work(config: ConfigDict, network: Network) -> pipeline.Work:
    """Of backpropagation on the stages."""
    one = config.copy_and_resolve_references()
    one.strategy.variant, one.strategy.shared_heads = "backprop", False
    return local.costs(one, network)[1]


def values(config: ConfigDict) -> None:
    """Raises `ConfigError`."""
    one_of(config, "strategy.pipeline", KINDS)


def check(config: ConfigDict, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    strategy, cluster = config.strategy, config.cluster
    blocks = len(models.make(config.model, classes=2)) - 1
    if not 1 <= cluster.nodes <= blocks:
        raise ConfigError(
            f"config.cluster.nodes = {cluster.nodes}: stages of a pipeline, must be from 1 to the "
            f"model's {blocks} blocks before its last"
        )
    if config.parallel.api:
        raise ConfigError(
            f"config.parallel.api = {config.parallel.api!r}: {methods.name!r} is simulated only, "
            "must be ''"
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


def report(config: ConfigDict, network: Network) -> dict[str, Any]:
    """Bytes of an update between stages, activations forward and their gradients back."""
    return {"communicated_bytes": int(2 * _work(config, network).sent.sum())}


METHOD = Method(
    keys={"pipeline": "stash"},  # or '2bw', 'no_stash', 'predict': which parameters stages use
    compiled=("pipeline",),
    gradient=_gradient,
    read=_read,
    servers=lambda problem: {name: place for place, (name, _) in enumerate(problem.blocks)},
    staged=True,
    clock=clock,
    laws=("constant",),
    cluster=("latencies", "bandwidths"),
    values=values,
    check=check,
    report=report,
)
