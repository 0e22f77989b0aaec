"""The configuration of a run: every key with its default, and one check of all values.

A config file defines `get_config()`, starts from `default()` and changes what it means to change;
the result is locked, so a misspelt key is an error and not a silent default.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from research import optimizers, strategies
from research.models import NAMES as MODELS
from research.models.convolution import LOWERINGS
from research.parallel.layout import APIS
from research.timeline.make import SERVICES
from research.timeline.service import DRAWN


class ConfigError(ValueError):
    """A configuration that cannot run; the message is one line: what, where, what would do."""


def default() -> ConfigDict:
    """All keys. Times in seconds, sizes in bytes, `batch_size` in examples an update."""
    config = ConfigDict()
    config.seed = 0
    config.steps = 1000
    config.batch_size = 64
    config.log_every = 50  # updates between log points
    config.checkpoint_every = 500  # updates between checkpoints; 0: only at the end

    config.model = ConfigDict()
    config.model.name = "mlp"
    config.model.hidden = (256, 256)  # mlp: widths; cnn: widths of its dense layers
    config.model.channels = (6, 16)  # cnn: channels of its convolutions
    config.model.dtype = "float32"  # of the computation; parameters stay float32
    config.model.lowering = ""  # of convolutions; '': the fastest of the backend
    config.model.dimension = 16  # quadratic
    config.model.condition = 10.0  # quadratic: largest over smallest curvature, largest = 1
    config.model.noise = 0.0  # quadratic: standard deviation of an example's optimum

    config.data = ConfigDict()
    config.data.name = "mnist5k"  # or 'tfds:NAME', any prepared data set of images and labels
    config.data.dir = ""  # where prepared data lies; '': OPTDYN_DATA_DIR or the default of tfds
    config.data.train_examples = 0  # 0: all
    config.data.replacement = False  # True: batches drawn independently, as theory assumes

    config.optimizer = ConfigDict()
    config.optimizer.name = "sgd"  # any of optax
    config.optimizer.learning_rate = 0.1
    config.optimizer.momentum = 0.0  # explicit momentum, may be negative
    config.optimizer.schedule = "constant"
    config.optimizer.warmup_steps = 0
    config.optimizer.decay_steps = 0  # 0: to the end
    config.optimizer.decay_rate = 0.1
    config.optimizer.options = ConfigDict()  # further arguments of the optax optimizer

    config.strategy = ConfigDict()
    config.strategy.name = "sync"
    config.strategy.groups = 1  # compute groups of `asynchronous`
    config.strategy.max_batches = 4  # daso: batches from one exchange between nodes to the next (B)
    config.strategy.wait = 1  # daso: batches from its sending to its receipt (W)
    config.strategy.warmup_epochs = 4  # daso: epochs that synchronize after every batch, first
    config.strategy.cooldown_epochs = 4  # daso: and last
    config.strategy.patience = 2  # daso: epochs without improvement before B and W change
    config.strategy.threshold = 0.05  # daso: fraction by which an improvement lowers the loss
    config.strategy.transfer_dtype = ""  # daso: 'bfloat16' halves what nodes exchange
    config.strategy.adapt = True  # dynamic_batch: False keeps the shares of the batch equal
    config.strategy.smoothing = 0.5  # dynamic_batch: weight of the rates measured before
    config.strategy.micro_batch = 8  # dynamic_batch: examples a worker computes at a time

    config.cluster = ConfigDict()
    config.cluster.nodes = 1
    config.cluster.devices_per_node = 1
    config.cluster.speeds = ()  # relative speed of each worker; (): all 1
    config.cluster.service = "exponential"
    config.cluster.variation = 1.0  # lognormal: standard deviation over mean
    config.cluster.trace = ""  # trace: CSV file, columns worker,seconds
    config.cluster.seconds_per_example = 1e-3  # on a worker of speed 1
    config.cluster.latency = 0.0  # seconds a message
    config.cluster.bandwidth = 0.0  # bytes a second; 0: transfers take no time
    config.cluster.local_latency = 0.0  # daso: seconds a message inside a node
    config.cluster.local_bandwidth = 0.0  # daso: bytes a second inside a node; 0: as above
    config.cluster.disturbances = ()  # dynamic_batch: (worker, first epoch, last, slowdown), ...
    config.cluster.disturbance_probability = 0.0  # dynamic_batch: of a delay, a worker and epoch
    config.cluster.disturbance_seconds = (5.0, 10.0)  # least and most of such a delay, an epoch
    config.cluster.disturbance_epochs = (4, 20)  # least and most epochs that it lasts

    config.parallel = ConfigDict()
    config.parallel.api = ""  # 'jit', 'shard_map', 'pmap': real devices; '': one, others simulated
    config.parallel.devices = 0  # sync: how many; 0: all
    config.parallel.accumulation = 1  # sync: parts of a device's batch, one after the other
    config.parallel.shard_optimizer = False  # sync, jit: optimizer state split over the devices

    config.replicas = ConfigDict()
    config.replicas.count = 0  # > 0: record trajectories of this many replicas instead of one run
    config.replicas.block = 1  # replicas batched together; 1 is the fastest for networks on CPUs
    config.replicas.subspace = 1024  # random subspace that trajectories are projected on
    config.replicas.matching = ()  # explicit momenta of synchronous runs to be compared with
    config.lock()
    config.optimizer.options.unlock()  # its keys are those of the chosen optimizer
    return config


def groups_of(config: ConfigDict) -> int:
    """Groups that arrive by themselves: one where everybody waits for everybody."""
    return config.strategy.groups if config.strategy.name == "asynchronous" else 1


def check(config: ConfigDict) -> None:
    """Raises `ConfigError` at the first value that cannot run."""
    _same_keys(config, default(), "config")
    _one_of(config, "model.name", MODELS)
    _one_of(config, "model.dtype", ("float32", "bfloat16"))
    _one_of(config, "model.lowering", ("", *LOWERINGS))
    _one_of(config, "strategy.name", strategies.NAMES + strategies.PARALLEL)
    _one_of(config, "parallel.api", ("", *APIS))
    _one_of(config, "strategy.transfer_dtype", ("", "bfloat16"))
    _one_of(config, "optimizer.schedule", optimizers.SCHEDULES)
    _one_of(config, "cluster.service", SERVICES)
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
        "parallel.accumulation",
    ):
        _require(config, name, lambda v: v >= 1, "at least 1")
    for name in (
        "checkpoint_every",
        "data.train_examples",
        "optimizer.warmup_steps",
        "optimizer.decay_steps",
        "replicas.count",
        "parallel.devices",
        "model.noise",
        "strategy.warmup_epochs",
        "strategy.cooldown_epochs",
        "strategy.patience",
        "cluster.latency",
        "cluster.variation",
        "cluster.bandwidth",
        "cluster.local_latency",
        "cluster.local_bandwidth",
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
    _require(config, probability, lambda v: 0 <= v <= 1, "between 0 and 1")
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
    _check_cluster(config)
    _check_parallel(config)
    if config.strategy.name == "daso":
        _check_daso(config)
    _check_optimizer(config)
    if config.checkpoint_every % config.log_every:
        raise ConfigError(
            f"config.checkpoint_every = {config.checkpoint_every}: must be a multiple of "
            f"config.log_every = {config.log_every}"
        )


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
    for name in ("disturbances", "disturbance_probability"):
        if config.cluster[name] and config.strategy.name != "dynamic_batch":
            raise ConfigError(
                f"config.cluster.{name}: only of config.strategy.name = 'dynamic_batch' "
                "(which is synchronous SGD with config.strategy.adapt = False)"
            )


def _check_parallel(config: ConfigDict) -> None:
    real, name = config.parallel, config.strategy.name
    apis = {"sync": APIS, "daso": ("shard_map",), "dynamic_batch": ("shard_map",)}.get(name, ())
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
    _one_of(config, "cluster.service", DRAWN)


def _check_optimizer(config: ConfigDict) -> None:
    name = config.optimizer.name
    taken = optimizers.arguments(name)
    if "learning_rate" not in taken:
        raise ConfigError(f"config.optimizer.name = {name!r}: optax has no such optimizer")
    if config.optimizer.momentum and not optimizers.takes_momentum(name):
        raise ConfigError(
            f"config.optimizer.momentum = {config.optimizer.momentum}: optax.{name} has no "
            "momentum; set its own arguments in config.optimizer.options"
        )
    for key in config.optimizer.options:
        if key not in taken:
            raise ConfigError(f"config.optimizer.options.{key}: optax.{name} has no such argument")
        if key in ("learning_rate", "momentum"):
            raise ConfigError(f"config.optimizer.options.{key}: set config.optimizer.{key} instead")
    if config.replicas.matching and (name != "sgd" or config.optimizer.options):
        raise ConfigError(
            "config.replicas.matching: compares with plain momentum SGD, so it needs "
            "config.optimizer.name = 'sgd' without options"
        )
    hyper = {key: jnp.zeros(()) for key in ("learning_rate", "momentum") if key in taken}
    made = optimizers.optimizer(name, tuple(hyper), config.optimizer.options.to_dict())
    try:
        x = jnp.zeros(1)
        jax.eval_shape(lambda hyper: made.update(x, made.init(x), x, **hyper), hyper)
    except (TypeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"config.optimizer: optax.{name} cannot be used ({why})") from error


def to_json(config: ConfigDict) -> str:
    """The resolved config, as it is written to `config.json`."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def differences(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the keys in which two plain configs differ."""
    names = []
    for key in sorted(one.keys() | other.keys()):
        a, b = one.get(key), other.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            names += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(prefix + key)
    return names


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
