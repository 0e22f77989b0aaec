"""The range of every value by itself: a table of what is wanted and of the keys it is wanted of."""

from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from optdyn.dynamics.moments import FEWEST
from optdyn.values import ConfigError, require

BLOCKS = 1000  # of a model, which is traced block by block
WIDTH = 2**20  # of a layer, or of a set of workers
PIXELS = 4096  # a side


def _widths(value: Any) -> bool:
    return len(value) <= BLOCKS and all(1 <= width <= WIDTH for width in value)


def _counts(value: Any) -> bool:
    return all(type(entry) is int and 1 <= entry <= BLOCKS for entry in value)


def _numbers(value: Any) -> bool:
    return all(isinstance(entry, (int, float)) for entry in value)


def _ordered(value: Any) -> bool:
    return len(value) == 2 and 0 <= value[0] <= value[1]


Rule = tuple[str, Callable[[Any], bool], tuple[str, ...]]
RULES: tuple[Rule, ...] = (
    (
        "at least 1",
        lambda v: v >= 1,
        (
            "steps",
            "batch_size",
            "log_every",
            "replicas.block",
            "replicas.subspace",
            "probes.every",
            "parallel.accumulation",
            "data.sequence_length",
        ),
    ),
    (
        f"from 1 to {WIDTH:,}",
        lambda v: 1 <= v <= WIDTH,
        (
            "cluster.nodes",
            "cluster.devices_per_node",
            "model.dimension",
            "model.width",
            "model.attention_heads",
        ),
    ),
    (f"from 1 to {BLOCKS:,}", lambda v: 1 <= v <= BLOCKS, ("model.blocks",)),
    (f"from 0 to {PIXELS:,}", lambda v: 0 <= v <= PIXELS, ("data.image_size",)),
    (
        "at least 0",
        lambda v: v >= 0,
        (
            "seed",
            "checkpoint_every",
            "data.train_examples",
            "data.train_evaluated",
            "data.test_evaluated",
            "optimizer.learning_rate",
            "optimizer.warmup_steps",
            "optimizer.decay_steps",
            "replicas.count",
            "parallel.devices",
            "model.noise",
            "data.dirichlet",
            "cluster.latency",
            "cluster.variation",
            "cluster.bandwidth",
            "cluster.local_latency",
            "cluster.local_bandwidth",
            "cluster.bandwidth_variation",
            "cluster.presence",
            "cluster.absence",
            "cluster.server_bandwidth",
        ),
    ),
    (
        "more than 0",
        lambda v: v > 0,
        ("cluster.seconds_per_example", "cluster.day", "optimizer.decay_rate"),
    ),
    ("at least 0 and less than 1", lambda v: 0 <= v < 1, ("cluster.diurnal",)),
    (f"from 0 to {BLOCKS:,}", lambda v: 0 <= v <= BLOCKS, ("cluster.regions",)),
    ("at least 1", lambda v: v >= 1, ("model.condition",)),
    ("from 0 to 10", lambda v: 0 <= v <= 10, ("model.spread",)),
    ("between -1 and 1", lambda v: -1 < v < 1, ("optimizer.momentum",)),
    (
        "between 0 and 1",
        lambda v: 0 <= v <= 1,
        ("cluster.disturbance_probability", "cluster.overlap"),
    ),
    (
        "two numbers from 0 up, the least and the most",
        _ordered,
        ("cluster.disturbance_seconds", "cluster.disturbance_epochs"),
    ),
    (
        f"at most {BLOCKS:,} widths from 1 to {WIDTH:,}",
        _widths,
        ("model.hidden", "model.channels"),
    ),
    (f"whole numbers from 1 to {BLOCKS:,}, or ()", _counts, ("model.stages",)),
    ("numbers, one a channel, or ()", _numbers, ("data.mean", "data.std")),
    ("names, or ()", lambda v: all(isinstance(name, str) for name in v), ("metrics",)),
    ("numbers, one a worker, or ()", _numbers, ("cluster.speeds",)),
    (
        "numbers between -1 and 1, or ()",
        lambda v: _numbers(v) and all(-1 < m < 1 for m in v),
        ("replicas.matching",),
    ),
    (f"at least {FEWEST + 4} updates", lambda v: v >= FEWEST + 4, ("probes.window",)),
)


def check(config: ConfigDict) -> None:
    """Raises `ConfigError` at the first value that is out of its range."""
    for wanted, holds, names in RULES:
        for name in names:
            require(config, name, holds, wanted)
    for name in config.cluster.pieces:
        require(config, f"cluster.pieces.{name}", lambda v: v >= 0, "at least 0")
    workers = config.cluster.nodes * config.cluster.devices_per_node
    if workers > WIDTH:
        raise ConfigError(
            f"config.cluster.nodes x config.cluster.devices_per_node = {workers:,} workers: must "
            f"be at most {WIDTH:,}"
        )
