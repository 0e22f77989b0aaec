"""The memory that a run needs, computed before any is taken, and the refusal of too large a run.

The bytes are lower bounds: the run's arrays, without what XLA needs besides.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

import jax

from optdyn.base import seeds
from optdyn.base.errors import ConfigError
from optdyn.base.trees import Params, bytes_of, examples_in, head, numbers_in
from optdyn.clock.arrivals import services_per_draw
from optdyn.clock.cluster import Pieces
from optdyn.core import Rule
from optdyn.devices import paged
from optdyn.devices.layout import part_axis
from optdyn.experiment import Config
from optdyn.problem.data import Dataset
from optdyn.problem.models import Quadratic
from optdyn.train import program

GROUP = Path("/sys/fs/cgroup")
UPDATE = 80  # bytes of a timeline while it is drawn, an update
DRAW = 28  # bytes of a worker's draw, of methods that keep all draws
REFERENCES = 2  # copies of the parameters besides the state: x_0 and a gradient


def available() -> float:
    """Returns the free bytes of the device; of a CPU, of the machine and the control group."""
    device = jax.devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    return stats["bytes_limit"] - stats["bytes_in_use"] if stats else host_memory()


def host_memory() -> float:
    """Returns the free bytes of the machine, or of the control group if that has fewer."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 4  # where Linux does not say
    with contextlib.suppress(OSError):
        found = re.search(r"MemAvailable: *(\d+)", Path("/proc/meminfo").read_text())
        free = 1024 * int(found[1]) if found else free
    with contextlib.suppress(OSError, ValueError):  # no such group, or no limit
        most, used = (int((GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, most - used)
    return free


def check_config(config: Config) -> None:
    """Raises `ConfigError` where the timeline, the batches or drawn examples cannot fit."""
    cluster, methods = config.cluster, config.methods
    updates = config.steps * max(config.replicas.count, 1)
    kept = methods.mix or methods.gradient or cluster.pieces != Pieces()
    rows = updates if kept else services_per_draw(updates, config.methods.groups)
    draws = rows * cluster.worker_count
    many = f" x config.replicas.count = {config.replicas.count:,}" * bool(config.replicas.count)
    workers = f"{cluster.worker_count:,} worker{'s' * (cluster.worker_count > 1)}"
    line = f"config.steps = {config.steps:,}{many}, of {workers}: their timeline needs"
    _fits(UPDATE * updates + DRAW * draws, line)
    chunk = min(config.steps, program.CHUNK) * 4 * config.batch_size
    _fits(chunk, f"config.batch_size = {config.batch_size:,}: numbers of examples need")
    examples = config.data.train_examples
    if isinstance(model := config.model, Quadratic):
        examples = (examples or 1000) if model.noise or model.spread else 0
        need = 4 * examples * model.dimension * (1 + bool(model.spread))
        _fits(need, f"config.data.train_examples = {examples:,}: so many optima need")
    if examples:
        check_batch(config, examples)


def check_batch(config: Config, examples: int) -> None:
    """Raises `ConfigError` if a batch is larger than the training set, without replacement."""
    model = config.model
    drawn_alike = isinstance(model, Quadratic) and not (model.noise or model.spread)
    if config.batch_size > examples and not (config.data.replacement or drawn_alike):
        raise ConfigError(
            f"config.batch_size = {config.batch_size:,}: must be at most {examples:,}, the size of "
            "the training set, without config.data.replacement=True"
        )


def check_data(config: Config, data: Dataset) -> None:
    """Raises `ConfigError` if batches of these examples, or the parameters, cannot fit."""
    train = data.train
    check_batch(config, examples_in(train))
    parts = config.parallel.accumulation * max(config.parallel.devices, 1)
    example = sum(leaf[:1].nbytes for leaf in train.values())
    batch = example * config.batch_size // parts
    _fits(batch, f"config.batch_size = {config.batch_size:,}: a batch needs")
    key = seeds.key(config.seed, "init")
    params = program.shapes(config, data.classes, key, head(train, 1))
    need = REFERENCES * bytes_of(params)
    _fits(need, f"config.model: {numbers_in(params):,} parameters and their gradient need")


class Need(NamedTuple):
    device: int  # bytes of a run's arrays on the first device
    host: int  # of a table of versions in the host's memory; on a CPU `device` has all


def check_state(config: Config, rule: Rule, start: Params, slots: int) -> None:
    """Raises `ConfigError` if the state, with all versions of the parameters, cannot fit."""
    need = need_of(config, rule, start)
    its, more = config.evaluation, f", {slots:,} versions" if slots > 1 else ""
    more += f", config.evaluation.last = {its.last:,} copies" if its.average == "lawa" else ""
    line = f"config: {numbers_in(start):,} parameters{more}, and their optimizer's state need"
    _fits(need.device, line)
    if need.host:
        _fits(need.host, f"config.method.snapshots: {slots:,} versions need", host_memory())


def need_of(config: Config, rule: Rule, params: Params) -> Need:
    """Returns the bytes of the state, x_0 and a gradient, and of versions in transfer."""
    state = jax.eval_shape(rule.init, params)
    device, host = bytes_of(state) + REFERENCES * bytes_of(params), 0
    one_memory = jax.devices()[0].platform == "cpu"
    if config.methods.get("snapshots", "") == "host":
        row = bytes_of(state.slots) // max(len(leaf) for leaf in jax.tree.leaves(state.slots))
        host = bytes_of(state.slots)
        device += (1 + paged.ROWS) * row - host
    if config.parallel.shard_snapshots and not one_memory:
        _, devices = config.methods.devices(config)
        parts = [(leaf, part_axis(leaf.shape, devices)) for leaf in jax.tree.leaves(state.slots)]
        device -= sum(bytes_of(leaf) * (devices - 1) // devices for leaf, axis in parts if axis)
    return Need(device + host, 0) if one_memory else Need(device, host)


def _fits(need: int, what: str, free: float | None = None) -> None:
    free = available() if free is None else free
    if need > free:
        raise ConfigError(f"{what} {need:,} bytes, and {int(free):,} are free")
