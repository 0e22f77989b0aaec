"""Whether a configuration can run: every value by itself, and the values that must go together."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from research import models, optimizers, strategies
from research.checks import plan, tune
from research.config import ConfigError, default, groups_of
from research.data.augment import NAMES as AUGMENTATIONS
from research.data.tokenizers import NAMES as TOKENIZERS
from research.models import NAMES as MODELS
from research.models.convolution import LOWERINGS
from research.models.resnet import NORMS
from research.parallel.layout import APIS
from research.strategies.dynamic_batch import WEIGHTS
from research.strategies.local import VARIANTS
from research.strategies.local import groups as local_groups
from research.timeline.make import SERVICES
from research.timeline.service import DRAWN


def check(config: ConfigDict) -> None:
    """Raises `ConfigError` at the first value that cannot run."""
    _same_keys(config, default(), "config")
    _one_of(config, "model.name", MODELS)
    _one_of(config, "model.dtype", ("float32", "bfloat16"))
    names = ("", *LOWERINGS)
    _require(config, "model.lowering", lambda v: {*str(v).split(",")} <= {*names}, f"of {names}")
    _one_of(config, "model.norm", NORMS)
    _one_of(config, "strategy.name", strategies.NAMES + strategies.PARALLEL)
    _one_of(config, "strategy.variant", VARIANTS)
    _one_of(config, "parallel.api", ("", *APIS))
    _one_of(config, "strategy.transfer_dtype", ("", "bfloat16"))
    _one_of(config, "strategy.weights", WEIGHTS)
    _one_of(config, "optimizer.schedule", optimizers.SCHEDULES)
    _one_of(config, "cluster.service", SERVICES)
    _one_of(config, "cluster.split", ("equal", "proportional"))
    _one_of(config, "data.tokenizer", TOKENIZERS)
    _one_of(config, "data.augment", AUGMENTATIONS)
    for name in (
        "steps",
        "batch_size",
        "log_every",
        "strategy.groups",
        "strategy.max_batches",
        "strategy.micro_batch",
        "cluster.nodes",
        "cluster.devices_per_node",
        "replicas.block",
        "replicas.subspace",
        "model.dimension",
        "model.blocks",
        "model.width",
        "model.attention_heads",
        "strategy.window",
        "strategy.chunks",
        "strategy.micro_batches",
        "parallel.accumulation",
        "data.sequence_length",
    ):
        _require(config, name, lambda v: v >= 1, "at least 1")
    for name in (
        "checkpoint_every",
        "data.train_examples",
        "data.image_size",
        "data.train_evaluated",
        "data.test_evaluated",
        "optimizer.warmup_steps",
        "optimizer.decay_steps",
        "replicas.count",
        "parallel.devices",
        "model.noise",
        "strategy.reset_batches",
        "strategy.warmup_epochs",
        "strategy.cooldown_epochs",
        "strategy.patience",
        "cluster.latency",
        "cluster.variation",
        "cluster.bandwidth",
        "cluster.local_latency",
        "cluster.local_bandwidth",
        *(f"cluster.pieces.{name}" for name in config.cluster.pieces),
    ):
        _require(config, name, lambda v: 0 <= v < math.inf, "finite and at least 0")
    _require(config, "seed", lambda v: 0 <= v < 2**32, "at least 0 and less than 2**32")
    for name in ("cluster.seconds_per_example", "optimizer.decay_rate"):
        _require(config, name, lambda v: 0 < v < math.inf, "finite and more than 0")
    _require(config, "model.condition", lambda v: 1 <= v < math.inf, "at least 1")
    _require(config, "optimizer.learning_rate", math.isfinite, "a finite number")
    _require(config, "optimizer.momentum", lambda v: -1 < v < 1, "between -1 and 1")
    _require(config, "strategy.smoothing", lambda v: 0 <= v < 1, "at least 0 and less than 1")
    probability = "cluster.disturbance_probability"
    for name in (probability, "cluster.overlap"):
        _require(config, name, lambda v: 0 <= v <= 1, "between 0 and 1")
    for name in ("cluster.disturbance_seconds", "cluster.disturbance_epochs"):
        ordered = "two finite numbers from 0 up, the least and the most"
        _require(config, name, lambda v: len(v) == 2 and 0 <= v[0] <= v[1] < math.inf, ordered)
    _require(config, "replicas.matching", lambda v: all(-1 < m < 1 for m in v), "between -1 and 1")
    for name in ("model.hidden", "model.channels"):
        _require(config, name, lambda v: all(width >= 1 for width in v), "widths of at least 1")
    _require(config, "strategy.threshold", lambda v: 0 <= v < 1, "at least 0 and less than 1")
    _require(
        config,
        "strategy.wait",
        lambda v: 0 <= v <= config.strategy.max_batches,
        f"from 0 to config.strategy.max_batches = {config.strategy.max_batches}",
    )
    reset = config.strategy.reset_batches or config.strategy.max_batches
    _require(config, "strategy.reset_wait", lambda v: 0 <= v <= reset, f"from 0 to {reset}")
    blocks = _check_model(config)
    _require(
        config,
        "strategy.fresh",
        lambda v: set(v) <= set(blocks),
        f"of the blocks {', '.join(blocks)}",
    )
    _check_cluster(config)
    _check_bound(config)
    _check_pieces(config)
    _check_parallel(config)
    if config.strategy.name == "local":
        _check_local(config, len(blocks) - 1)
    if config.strategy.name == "daso":
        _check_daso(config)
    _check_optimizer(config)
    for asked in (tune, plan):
        asked.check(partial(_require, config))
    if config.checkpoint_every % config.log_every:
        raise ConfigError(
            f"config.checkpoint_every = {config.checkpoint_every}: must be a multiple of "
            f"config.log_every = {config.log_every}"
        )


def _check_model(config: ConfigDict) -> list[str]:
    """The names of the model's blocks."""
    try:
        return [name for name, _ in models.make(config.model, classes=2)]
    except ValueError as error:
        raise ConfigError(f"config.model: {error}") from error


def _check_local(config: ConfigDict, blocks: int) -> None:
    strategy, cluster = config.strategy, config.cluster
    try:
        groups = local_groups(strategy.variant, blocks, strategy.window, strategy.chunks)
    except ValueError as error:
        raise ConfigError(f"config.strategy: {error}") from error
    _one_of(config, "cluster.service", ("constant",))
    if cluster.speeds:
        raise ConfigError("config.cluster.speeds: of strategy 'local' all devices are equal")
    if blocks % cluster.nodes:
        raise ConfigError(
            f"config.cluster.nodes = {cluster.nodes}: must divide the model's {blocks} blocks"
        )
    parts = cluster.devices_per_node
    if strategy.variant == "backprop" and cluster.nodes > 1:
        parts *= strategy.micro_batches
    if config.batch_size % parts:
        raise ConfigError(
            f"config.batch_size = {config.batch_size}: must be a multiple of {parts} (config."
            "cluster.devices_per_node, of backprop on several nodes x strategy.micro_batches)"
        )
    cuts = {blocks * i // cluster.nodes for i in range(cluster.nodes + 1)}
    crossing = [group for group in groups if any(group[0] < cut < group[1] for cut in cuts)]
    if crossing and strategy.variant != "backprop":
        a, b = crossing[0]
        raise ConfigError(
            f"config.cluster.nodes = {cluster.nodes}: blocks {a} to {b - 1} learn together and "
            "must be on one node; on several, variants are 'greedy', 'backprop', or 'chunked' "
            "with chunks that end where nodes do"
        )
    if strategy.shared_heads and cluster.nodes > 1:
        raise ConfigError("config.strategy.shared_heads: several nodes share no parameters")


def _check_cluster(config: ConfigDict) -> None:
    workers = config.cluster.nodes * config.cluster.devices_per_node
    groups = groups_of(config)
    if workers % groups:
        raise ConfigError(
            f"config.strategy.groups = {groups}: must divide the cluster's {workers} workers "
            "(config.cluster.nodes x config.cluster.devices_per_node)"
        )
    _require(
        config,
        "cluster.speeds",
        lambda v: len(v) in (0, workers) and all(0 < speed < math.inf for speed in v),
        f"{workers} positive numbers, one a worker, or ()",
    )
    if config.cluster.service == "trace" and not config.cluster.trace:
        raise ConfigError("config.cluster.trace is empty: service='trace' needs a CSV file")
    if config.cluster.service == "geometric" and config.strategy.name == "sync":
        raise ConfigError("config.cluster.service = 'geometric': has a meaning only asynchronously")
    if config.cluster.service == "measured" and not (
        config.strategy.name == "dynamic_batch" and config.parallel.api
    ):
        raise ConfigError(
            "config.cluster.service = 'measured': only of real workers, so it needs "
            "config.strategy.name = 'dynamic_batch' and config.parallel.api = 'shard_map'"
        )
    if config.cluster.service == "measured":
        for name in ("speeds", "disturbance_probability"):
            if config.cluster[name]:
                raise ConfigError(f"config.cluster.{name}: simulated, so not of service 'measured'")
    for name in ("disturbances", "disturbance_probability"):
        if config.cluster[name] and config.strategy.name != "dynamic_batch":
            raise ConfigError(
                f"config.cluster.{name}: only of config.strategy.name = 'dynamic_batch' "
                "(which is synchronous SGD with config.strategy.adapt = False)"
            )


def _check_bound(config: ConfigDict) -> None:
    _require(config, "strategy.staleness_bound", lambda v: v >= -1, "at least 0, or -1 for none")
    if config.strategy.staleness_bound < 0:
        return
    if config.cluster.service not in DRAWN or any(config.cluster.pieces.values()):
        raise ConfigError(
            "config.strategy.staleness_bound: groups wait for one another only where their times "
            f"are drawn, config.cluster.service one of {', '.join(DRAWN)} and no pieces"
        )
    if config.strategy.name != "asynchronous" or config.replicas.count:
        raise ConfigError(
            "config.strategy.staleness_bound: only of runs, not replicas, of "
            "config.strategy.name = 'asynchronous'"
        )


def _check_pieces(config: ConfigDict) -> None:
    cluster, pieces = config.cluster, any(config.cluster.pieces.values())
    for key, used in (("pieces", pieces), ("split", cluster.split == "proportional")):
        if used and config.strategy.name not in ("sync", "asynchronous"):
            raise ConfigError(
                f"config.cluster.{key}: only of config.strategy.name = 'sync' and 'asynchronous'"
            )
    if cluster.overlap and (pieces or config.strategy.name == "local"):
        raise ConfigError(
            "config.cluster.overlap: not of config.cluster.pieces, which have their own, nor of "
            "config.strategy.name = 'local'"
        )
    if pieces and not cluster.pieces.conv_compute:
        raise ConfigError("config.cluster.pieces.conv_compute = 0: must be more than 0 beside them")
    if pieces and cluster.speeds:
        raise ConfigError("config.cluster.speeds: with config.cluster.pieces all workers are equal")
    if pieces:
        _one_of(config, "cluster.service", DRAWN)


def _check_parallel(config: ConfigDict) -> None:
    real, name = config.parallel, config.strategy.name
    apis = APIS if name == "sync" else ("shard_map",) if name in strategies.PARALLEL else ()
    if real.api and real.api not in apis:
        usable = ", ".join(map(repr, ("", *apis)))
        raise ConfigError(
            f"config.parallel.api = {real.api!r}: must be {usable} for "
            f"config.strategy.name = {name!r}"
        )
    if name == "sync":
        parts = max(real.devices, 1) * real.accumulation
        if config.batch_size % parts:
            raise ConfigError(
                f"config.batch_size = {config.batch_size}: must be a multiple of {parts} "
                "(config.parallel.devices x config.parallel.accumulation)"
            )
    for key in ("augment", "streaming"):
        if config.replicas.count and config.data[key]:
            raise ConfigError(f"config.data.{key}: replicas are of one objective, held in memory")
    if config.replicas.count and (real.api or name in strategies.PARALLEL):
        raise ConfigError(
            "config.replicas.count: replicas are recorded of strategies of one device "
            f"({', '.join(strategies.NAMES)}), with config.parallel.api = ''"
        )


def _check_daso(config: ConfigDict) -> None:
    devices = config.cluster.nodes * config.cluster.devices_per_node
    if config.batch_size % devices:
        raise ConfigError(
            f"config.batch_size = {config.batch_size}: must be a multiple of the cluster's "
            f"{devices} devices (config.cluster.nodes x config.cluster.devices_per_node)"
        )
    _one_of(config, "cluster.service", (*DRAWN, "trace"))


def _check_optimizer(config: ConfigDict) -> None:
    name = config.optimizer.name
    taken = optimizers.arguments(name)
    made_by = name if name in optimizers.OWN else f"optax.{name}"
    if "learning_rate" not in taken:
        raise ConfigError(f"config.optimizer.name = {name!r}: optax has no such optimizer")
    if config.optimizer.momentum and not optimizers.takes_momentum(name):
        raise ConfigError(
            f"config.optimizer.momentum = {config.optimizer.momentum}: {made_by} has no "
            "momentum; set its own arguments in config.optimizer.options"
        )
    for key in config.optimizer.options:
        if key not in taken:
            raise ConfigError(f"config.optimizer.options.{key}: {made_by} has no such argument")
        if key in ("learning_rate", "momentum"):
            raise ConfigError(f"config.optimizer.options.{key}: set config.optimizer.{key} instead")
    if name in optimizers.OWN:
        _one_of(config, "strategy.name", strategies.NAMES)
    if config.replicas.matching and (name != "sgd" or config.optimizer.options):
        raise ConfigError(
            "config.replicas.matching: compares with plain momentum SGD, so it needs "
            "config.optimizer.name = 'sgd' without options"
        )
    hyper = {key: jnp.zeros(()) for key in ("learning_rate", "momentum") if key in taken}
    made = optimizers.optimizer(name, tuple(hyper), optimizers.options(config))
    try:
        x = jnp.zeros(1)
        jax.eval_shape(lambda hyper: made.update(x, made.init(x), x, **hyper), hyper)
    except (TypeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"config.optimizer: {made_by} cannot be used ({why})") from error


def _value(config: ConfigDict, name: str) -> Any:
    for part in name.split("."):
        config = config[part]
    return config


def _require(config: ConfigDict, name: str, holds: Any, wanted: str) -> None:
    value = _value(config, name)
    try:
        good = holds(value)
    except TypeError:
        good = False
    if not good:
        shown = tuple(value) if isinstance(value, (list, tuple)) else value
        raise ConfigError(f"config.{name} = {shown!r}: must be {wanted}")


def _one_of(config: ConfigDict, name: str, values: tuple[str, ...]) -> None:
    _require(config, name, lambda v: v in values, "one of " + ", ".join(map(repr, values)))


def _same_keys(config: Any, reference: ConfigDict, prefix: str) -> None:
    for key in config:
        if key not in reference:
            raise ConfigError(f"{prefix}.{key}: no such key")
    for key in reference:
        if key not in config:
            raise ConfigError(f"{prefix}.{key}: missing; start from research.config.default()")
        if isinstance(reference[key], ConfigDict):
            if not isinstance(config[key], ConfigDict):
                raise ConfigError(f"{prefix}.{key}: must hold keys of its own")
            if key != "options":
                _same_keys(config[key], reference[key], f"{prefix}.{key}")
