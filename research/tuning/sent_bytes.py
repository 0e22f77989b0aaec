"""Bytes that a way of parallelising sends an update, counted from its timeline.

`between_nodes` is of all messages between nodes, for a step of one node; `logged` what a run's log
calls `sent_bytes`, a node's own, once.
"""

from typing import Any

import numpy as np

from optdyn.basics.trees import Choice
from optdyn.experiment import Experiment
from optdyn.strategies import Methods
from optdyn.strategies.gradient import local
from optdyn.strategies.mix import averaging_clock
from optdyn.strategies.mix.gossip import Gossip, Neighbours
from optdyn.strategies.mix.model_averaging import ModelAveraging
from optdyn.strategies.read.asynchronous import Asynchronous
from optdyn.strategies.read.groups import Grouped
from optdyn.timeline.base import Arrival, Meeting, Timeline, chosen
from optdyn.timeline.network import SERVER, kind_of
from optdyn.tuning.shapes import Shapes, setting, stages


def between_nodes(config: Experiment, shapes: Shapes, line: Timeline, exchanges: float) -> float:
    """Bytes between nodes for a step of one node: of all messages, over the steps that are made."""
    steps = at_work(config) / config.cluster.devices_per_node
    return _messages(config, shapes, line, exchanges) / steps if config.cluster.nodes > 1 else 0.0


def _messages(config: Experiment, shapes: Shapes, line: Timeline, exchanges: float) -> float:
    """Bytes of all messages between nodes, an update."""
    methods, choice, size = config.methods, line.choice, shapes.bytes
    nodes, around = config.cluster.nodes, 2 * (config.cluster.nodes - 1)
    if methods.stages:
        there_and_back = 1 if _never_back(methods) else 2
        return float(there_and_back * stages(config, shapes).sent.sum())
    if methods.mix and (own := methods.mix.sends(shapes.params)):
        return own.bytes * (nodes * (nodes - 1) if own.gathered else around)
    if isinstance(methods.mix, ModelAveraging):
        small = methods.mix.compressed()
        others = nodes * (nodes - 1) if small and small.gathered else around
        sent, states = _meeting_bytes(config, shapes, choice)
        return others * sent + around * states
    if isinstance(choice, Meeting):
        others = nodes if choice.to is not None else around
        return others * sum(_meeting_bytes(config, shapes, choice))
    if isinstance(choice, Neighbours):
        return nodes * _gossiped(choice, methods.of(Gossip).message_bytes(shapes.params, size))
    if not methods.read or methods.read.barrier or _is_synchronous(config):
        return float(around * size)
    return size * _by_groups(config, shapes, line, exchanges)


def _by_groups(config: Experiment, shapes: Shapes, line: Timeline, exchanges: float) -> float:
    """Messages of the size of the parameters, an update, of groups that arrive by themselves."""
    cluster, methods = config.cluster, config.methods
    workers = cluster.worker_count // methods.groups
    inside = 2 * (max(workers // cluster.devices_per_node, 1) - 1)  # a group adds up
    small = methods.read.compressed() if isinstance(methods.read, Asynchronous) else None
    there_and_back = 1 + (small.part(shapes.params) if small else 1)
    to_server = there_and_back + inside
    if kind_of(cluster) == SERVER:
        to_server = there_and_back * workers
    dropped = getattr(chosen(line, Arrival), "dropped", None)
    arrivals = methods.get("arrivals", 1)
    drops = 0 if dropped is None else float(np.sum(dropped)) / len(line.seconds)
    arrivals += drops / 2 if methods.get("allotted", 0) else drops  # who is late sends no gradient
    return arrivals * (exchanges * to_server + (1 - exchanges) * inside)


def logged(config: Experiment, shapes: Shapes, choice: Choice, exchanges: float) -> float:
    """What a run's log calls `sent_bytes`: a node's own, once, and what its groups say.

    Of nodes that meet it is their messages, of workers with parameters of their own both ways.
    """
    methods = config.methods
    if not any("sent_bytes" in method.info for method in methods.every):
        return 0.0
    own = 0.0
    if isinstance(choice, Meeting):
        own = sum(_meeting_bytes(config, shapes, choice))
    elif isinstance(choice, Neighbours):
        size = methods.of(Gossip).message_bytes(shapes.params, shapes.bytes)
        own = _gossiped(choice, size)
    elif methods.mix and (each := methods.mix.sends(shapes.params)):
        own = each.bytes
    own *= config.cluster.nodes > 1  # nobody hears one that is alone
    if methods.read and methods.read.workers:
        own += 2 * shapes.bytes * exchanges
    elif methods.read and "sent_bytes" in methods.read.info:
        own += shapes.bytes * methods.get("arrivals", 1)
    return float(own)


def _gossiped(choice: Neighbours | Meeting, size: Any) -> float:
    """Bytes that a node sends, an update, in the mean of the nodes; `size`: of each message.

    One number, or (updates, 1) where messages are not sent after every update.
    """
    to = np.asarray(choice.to)
    nodes = to.shape[-2]
    peers = (to != np.arange(nodes)[:, None]).sum(axis=(-1, -2))
    return float((np.ravel(size) * peers).mean() / nodes)


def _meeting_bytes(config: Experiment, shapes: Shapes, choice: Meeting) -> tuple[float, float]:
    """Bytes of a node's messages, an update: of its parameters, and of its optimizer's state."""
    mix = config.methods.mix
    send = np.asarray(choice.send).reshape(len(choice.send), -1)
    receive = np.asarray(choice.receive).reshape(send.shape)
    if isinstance(mix, ModelAveraging):
        of = setting(config, shapes)
        sent = float((send @ np.array(averaging_clock.message_bytes(mix, of))).mean())
        return sent, averaging_clock.state_bytes(mix, of, choice)
    if choice.to is not None:  # over a graph
        return _gossiped(choice, shapes.bytes * send), 0.0
    blocking = receive & (np.asarray(choice.waited).reshape(send.shape) == 0)
    short, usual = (
        shapes.bytes / (2 if dtype == "bfloat16" else 1)
        for dtype in (
            getattr(mix, "blocking_dtype", "") or getattr(mix, "transfer_dtype", ""),
            getattr(mix, "transfer_dtype", ""),
        )
    )
    return float((send * np.where(blocking, short, usual)).mean()), 0.0


def exchanging(choice: Choice) -> float:
    """The share of arrivals that exchange, or of the parameters, there and back, that they do."""
    if hasattr(choice, "peer"):
        return float(np.mean(np.asarray(choice.peer) != np.asarray(choice.worker)))
    return float(np.mean(getattr(choice, "part", getattr(choice, "exchange", 1.0))))


def at_work(config: Experiment) -> float:
    """Workers whose examples an update is of, each as often as it is."""
    cluster, methods = config.cluster, config.methods
    workers = cluster.worker_count
    return workers / methods.groups * methods.get("arrivals", 1)


def _never_back(methods: Methods) -> bool:
    """Whether stages send activations on, and nothing comes back."""
    return isinstance(methods.gradient, local.Local) and methods.gradient.variant != "backprop"


def _is_synchronous(config: Experiment) -> bool:
    """Whether one group of all shares its parameters, and so has no server."""
    methods = config.methods
    one = methods.groups == 1 and isinstance(methods.read, Grouped)
    return one and not methods.get("waiting", "")
