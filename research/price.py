"""What a way of parallelising takes in seconds, by its own clock: nothing is trained.

    computing = sum_i (seconds that worker i computes) / (workers x seconds of all updates)
    waiting   = 1 - computing on a network that takes no time
    exchange  = what is left of 1

All are of a run of some hundred updates, drawn by the laws of its cluster. A model is its shapes;
there are no arrays, whatever its size.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from optdyn import program, resident, seeds, strategies
from optdyn.checks import check_cluster
from optdyn.experiment import Experiment
from optdyn.strategies import Network, Setting
from optdyn.strategies.gossip import Neighbours
from optdyn.strategies.meetings import message_bytes
from optdyn.strategies.model_averaging import ModelAveraging
from optdyn.timeline.base import Arrival, Meeting, Shares, Timeline, chosen
from optdyn.timeline.compute_groups import compute_means
from optdyn.values import ConfigError

GIGABIT = 1e9 / 8  # bytes
STEPS = 512  # updates of every worker, at least
PERIODS = 8  # or so many of a period
LAYERS = 48  # of the model that a number of parameters stands for
WIDEST, NARROWEST = 1e5, 1e-4  # Gbit/s between which a bandwidth is looked for
RATIO = 1.005  # of two bandwidths that are one
FREE = {"bandwidth": 0.0, "latency": 0.0, "latencies": (), "bandwidths": (), "regions": 0}
FREE |= {"local_bandwidth": 0.0, "local_latency": 0.0, "server_bandwidth": 0.0}


class Price(NamedTuple):
    """What one method takes on one cluster; seconds are simulated, shares are of workers' time."""

    method: str
    seconds: float  # an update
    examples_per_second: float
    computing: float
    waiting: float  # for slower workers
    exchange: float
    sent_bytes: float  # that a node sends, an update
    staleness: float  # updates, mean

    @property
    def updates_per_second(self) -> float:
        return 1 / self.seconds


class Shapes(NamedTuple):
    """A model by its shapes, or the number of its parameters alone."""

    params: Any  # of jax.ShapeDtypeStruct
    problem: Any = None  # None: there is only a number of parameters
    examples: Any = None
    set_size: int = 0  # examples of the training set; 0: there is none

    @property
    def bytes(self) -> int:
        return program.parameter_bytes(self.params)


def of_model(config: Experiment) -> Shapes:
    """The model of an experiment. Raises `ConfigError` and `DataError`."""
    data = resident.load(config)
    one = {name: leaf[:1] for name, leaf in data.train.items()}
    params = program.shapes(config, data.classes, seeds.key(config.seed, "init"), one)
    size = len(next(iter(data.train.values())))
    return Shapes(params, program.problem_of(config, data.classes), one, size)


def of_parameters(count: float) -> Shapes:
    """Float32 parameters, so many, in square matrices and vectors of 48 layers."""
    width = max(int(math.sqrt(count / LAYERS)), 1)
    rest = int(count) - LAYERS * width**2
    params = {
        f"layer{i:02}": jax.ShapeDtypeStruct((width, width), "float32") for i in range(LAYERS)
    }
    if rest > 0:
        params["rest"] = jax.ShapeDtypeStruct((rest,), "float32")
    return Shapes(params)


def step_of(config: Experiment, seconds: float) -> Experiment:
    """The experiment in which every worker computes so long for its part of an update."""
    workers = config.cluster.nodes * config.cluster.devices_per_node
    own = workers // strategies.groups_of(config)
    return config.with_({"cluster.seconds_per_example": seconds, "batch_size": own})


def with_method(config: Experiment, name: str, period: int = 0) -> Experiment:
    """The experiment by another method, whose workers have as many examples for an update.

    Groups that arrive by themselves are as many as workers, or as the devices of a node.
    """
    cluster, before = config.cluster, strategies.groups_of(config)
    workers = cluster.nodes * cluster.devices_per_node
    each = config.batch_size * before / workers  # examples of a worker
    methods = strategies.chosen(name)
    groups = cluster.devices_per_node if methods.mix else workers
    if not methods.read or methods.read.barrier:
        groups = 1
    changes: dict[str, Any] = {"strategy.name": name, "strategy.groups": groups}
    changes |= {"strategy.period": period} if period else {}
    arrivals = config.with_(changes).strategy.methods.get("arrivals", 1)
    return config.with_(changes, batch_size=max(round(each * workers / groups * arrivals), 1))


def price(config: Experiment, shapes: Shapes) -> Price:
    """What the experiment's method takes on its cluster.

    DASO's nodes meet every `max_batches`, as they do between its first and last epochs. Raises
    `ConfigError` and `TimelineError` where the method's clock does not know such a cluster.
    """
    methods = config.strategy.methods
    cluster, period = config.cluster, methods.get("period", 1)
    workers, groups = cluster.nodes * cluster.devices_per_node, strategies.groups_of(config)
    if methods.by_block:
        raise ConfigError(f"{methods.name}: prices are of gradients of the whole model")
    steps = max(STEPS, PERIODS * period) * groups
    whole = config.with_(
        {"steps": steps, "strategy.warmup_epochs": 0, "strategy.cooldown_epochs": 0}
    )
    check_cluster(whole)
    line = _line(whole, shapes)
    computing = min(_busy(whole, line) / (workers * float(line.seconds[-1])), 1.0)
    ideal = max(_ideal(whole.with_(cluster=cluster.with_(**FREE))), computing)
    seconds = float(line.seconds[-1]) / len(line.seconds)
    return Price(
        methods.name,
        seconds,
        config.batch_size / seconds,
        computing,
        1 - ideal,
        ideal - computing,
        _sent(whole, line, shapes),
        float(np.mean(line.staleness)),
    )


def needed(config: Experiment, shapes: Shapes, computing: float) -> float:
    """Gbit/s between nodes with which so much of the workers' time is computing.

    Infinite if no network is fast enough: workers wait for one another too.
    """

    def reached(bandwidth: float) -> bool:
        there = config.with_({"cluster.bandwidth": bandwidth * GIGABIT})
        return price(there, shapes).computing >= computing

    low, high = NARROWEST, WIDEST
    if not reached(high):
        return math.inf
    if reached(low):
        return low
    while high / low > RATIO:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


@lru_cache(maxsize=256)
def _ideal(config: Experiment) -> float:
    """The share of computing where the network takes no time, so that no message has a size."""
    line = _line(config, of_parameters(1e6))
    workers = config.cluster.nodes * config.cluster.devices_per_node
    return min(_busy(config, line) / (workers * float(line.seconds[-1])), 1.0)


def _setting(config: Experiment, shapes: Shapes) -> Setting:
    network = Network(shapes.problem, shapes.params, shapes.examples)
    return Setting(config, config.steps, shapes.bytes, network=network)


def _line(config: Experiment, shapes: Shapes) -> Timeline:
    known = _setting(config, shapes)._asdict()
    return strategies.timeline_of(known.pop("config"), **known)


def _busy(config: Experiment, line: Timeline) -> float:
    """Seconds that all workers compute, in the mean of their law."""
    cluster, methods, updates = config.cluster, config.strategy.methods, len(line.seconds)
    if divided := chosen(line, Shares):
        an_example = cluster.seconds_per_example / np.array(cluster.speeds or 1.0)
        return float((np.asarray(divided.shares).reshape(updates, -1) * an_example).sum())
    nodes, groups = cluster.nodes if methods.mix else 1, strategies.groups_of(config)
    batch = config.batch_size // nodes // methods.get("arrivals", 1)
    means = compute_means(cluster, nodes * groups, batch)  # of every worker of every group
    an_update = means.sum(axis=1).reshape(nodes, groups)
    if groups == 1:
        return float(updates * an_update.sum())
    if methods.mix:  # groups of a node arrive as often as they can
        rate = 1 / means.max(axis=1).reshape(nodes, groups)
        return float(updates * ((rate * an_update).sum(axis=1) / rate.sum(axis=1)).sum())
    arrival = chosen(line, Arrival)
    who = line.worker if arrival is None else np.asarray(arrival.worker)
    return float(np.bincount(who.ravel(), minlength=groups) @ an_update[0])


def _sent(config: Experiment, line: Timeline, shapes: Shapes) -> float:
    """Bytes that a node sends for an update, in messages of its own; a ring's are not counted."""
    nodes, methods, choice = config.cluster.nodes, config.strategy.methods, line.choice
    if nodes == 1:
        return 0.0
    if isinstance(choice, Meeting):
        send = np.asarray(choice.send).reshape(len(line.seconds), -1)
        return float((send @ _messages(config, shapes)).mean())
    if isinstance(choice, Neighbours):
        to = np.asarray(choice.to) != np.arange(nodes)[:, None]
        return float(shapes.bytes * to.sum(axis=(-1, -2)).mean() / nodes)
    if methods.read and methods.read.workers:
        exchanges = getattr(choice, "exchange", np.ones(1))
        return float(2 * shapes.bytes * np.mean(exchanges) / nodes)
    if methods.read and not methods.read.barrier:
        return float(2 * shapes.bytes * methods.get("arrivals", 1) / nodes)
    return float(shapes.bytes)


def _messages(config: Experiment, shapes: Shapes) -> np.ndarray:
    """Bytes of a node's message of every fragment."""
    mix = config.strategy.methods.mix
    if isinstance(mix, ModelAveraging):
        return np.array(message_bytes(mix, _setting(config, shapes)))
    short = config.strategy.methods.get("transfer_dtype", "") == "bfloat16"
    return np.array([shapes.bytes / (2 if short else 1)])
