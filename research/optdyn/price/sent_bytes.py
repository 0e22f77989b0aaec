"""Bytes that a way of parallelising sends an update, counted from its timeline.

Of an update of s steps by n nodes, whose messages have B bytes between nodes in sum, of which b go
one way over the busiest link, `between_nodes` are

    network    B / s      for a step of one node
    link       b n / s    while every node makes a step

A link is that of a node, in the mean of nodes that do alike, or of the server of groups that arrive
by themselves, which is none of the nodes. It carries as much each way. So around a ring, and where
nodes meet in pairs, both are the same, and the server's link carries what all nodes send.

`logged_bytes` is what a run's log calls `sent_bytes`, a node's own, once.
"""

from typing import Any, NamedTuple

import numpy as np

from optdyn.base.trees import Plan
from optdyn.clock.network import SERVER, busiest_link_bytes, one_way_share
from optdyn.clock.timeline import Arrival, Meeting, Timeline, plan_of
from optdyn.experiment import Config
from optdyn.methods import MethodStack, local
from optdyn.methods.asynchronous import Asynchronous, Grouped
from optdyn.methods.averaging import ModelAveraging
from optdyn.methods.gossip import Gossip, Neighbours
from optdyn.methods.workers import ADPSGD
from optdyn.price.shapes import Shapes, clock_inputs, stage_work


class Sent(NamedTuple):
    """Bytes between nodes."""

    network: float  # of all messages
    link: float  # one way over the busiest link


def between_nodes(config: Config, shapes: Shapes, line: Timeline, exchanges: float) -> Sent:
    """Bytes for a step of one node, and over one link while every node makes a step."""
    nodes, steps = (
        config.cluster.nodes,
        workers_per_update(config) / config.cluster.devices_per_node,
    )
    if nodes == 1:
        return Sent(0.0, 0.0)
    every = _messages(config, shapes, line, exchanges)
    return Sent(every.network / steps, every.link * nodes / steps)


def _messages(config: Config, shapes: Shapes, line: Timeline, exchanges: float) -> Sent:
    """Bytes of an update."""
    methods, choice, size = config.methods, line.plan, shapes.bytes
    if methods.stages:
        return _stage_bytes(stage_work(config, shapes).sent, 0 if _never_back(methods) else 1)
    if methods.mix and (own := methods.mix.sends(shapes.params)):
        return _all_reduced(config, own.bytes, own.gathered)
    if isinstance(methods.mix, ModelAveraging):
        small = methods.mix.compressed()
        sent, states = _meeting_bytes(config, shapes, choice)
        sums, more = (
            _all_reduced(config, sent, bool(small and small.gathered)),
            _all_reduced(config, states),
        )
        return Sent(sums.network + more.network, sums.link + more.link)
    if isinstance(choice, Meeting):
        sent = sum(_meeting_bytes(config, shapes, choice))
        return _all_reduced(config, sent) if choice.to is None else _neighbour_bytes(config, sent)
    if isinstance(choice, Neighbours):
        message = methods.of(Gossip).message_bytes(shapes.params, size)
        return _neighbour_bytes(config, _gossip_bytes(choice, message))
    if not methods.grouped or _is_synchronous(config):
        return _all_reduced(config, size)
    return _server_bytes(config, shapes, line, exchanges)


def _all_reduced(config: Config, size: float, gathered: bool = False) -> Sent:
    """Of an all-reduce of `size` bytes of every node, which may be `gathered` instead."""
    nodes = config.cluster.nodes
    copies = nodes * (nodes - 1) if gathered else 2 * (nodes - 1)
    return Sent(float(copies * size), busiest_link_bytes(config.cluster, size, gathered))


def _neighbour_bytes(config: Config, size: float) -> Sent:
    """Of nodes that send `size` bytes each, and are sent as many."""
    return Sent(config.cluster.nodes * size, size)


def _stage_bytes(sent: np.ndarray, back: int) -> Sent:
    """Of stages that hand activations on, (S - 1,) bytes, and are handed slopes `back`, if 1."""
    on, before = np.append(sent, 0), np.append(0, sent)  # after each stage, and before it
    link = max((on + back * before).max(), (before + back * on).max())
    return Sent(float((1 + back) * sent.sum()), float(link))


def _server_bytes(config: Config, shapes: Shapes, line: Timeline, exchanges: float) -> Sent:
    """Of groups that arrive by themselves, whose messages are of the size of the parameters.

    The busiest link is the server's, which is read as often as groups exchange, or the one of the
    node that sends and reads for a group whose nodes add up. Nodes that meet in pairs have none.
    """
    cluster, methods, size = config.cluster, config.methods, shapes.bytes
    workers = cluster.worker_count // methods.groups
    local_nodes = max(workers // cluster.devices_per_node, 1)
    inside = 2 * (local_nodes - 1)  # a group adds up
    small = methods.read.compressed() if isinstance(methods.read, Asynchronous) else None
    there_and_back = 1 + (small.part(shapes.params) if small else 1)
    to_server, reads = there_and_back + inside, 1
    if cluster.collective == SERVER:
        to_server, reads = there_and_back * workers, workers
    dropped = getattr(plan_of(line, Arrival), "dropped", None)
    arrivals = methods.get("arrivals", 1)
    drops = 0 if dropped is None else float(np.sum(dropped)) / len(line.seconds)
    all_read = arrivals + drops
    arrivals += drops / 2 if methods.get("allotted", 0) else drops  # who is late sends no gradient
    network = size * (arrivals * (exchanges * to_server + (1 - exchanges) * inside))
    if isinstance(methods.read, ADPSGD):
        return Sent(network, network / cluster.nodes)
    of_group = exchanges + one_way_share(cluster.collective, local_nodes)
    busy = max(exchanges * reads, of_group / methods.groups)
    return Sent(network, size * all_read * busy)


def logged_bytes(config: Config, shapes: Shapes, choice: Plan, exchanges: float) -> float:
    """What a run's log calls `sent_bytes`: a node's own, once, and what its groups say.

    Of nodes that meet it is their messages, of workers with parameters of their own both ways.
    """
    methods = config.methods
    if not any("sent_bytes" in method.info for method in methods.members):
        return 0.0
    own = 0.0
    if isinstance(choice, Meeting):
        own = sum(_meeting_bytes(config, shapes, choice))
    elif isinstance(choice, Neighbours):
        size = methods.of(Gossip).message_bytes(shapes.params, shapes.bytes)
        own = _gossip_bytes(choice, size)
    elif methods.mix and (each := methods.mix.sends(shapes.params)):
        own = each.bytes
    own *= config.cluster.nodes > 1  # nobody hears one that is alone
    if methods.read and methods.read.workers:
        own += 2 * shapes.bytes * exchanges
    elif methods.read and "sent_bytes" in methods.read.info:
        own += shapes.bytes * methods.get("arrivals", 1)
    return float(own)


def _gossip_bytes(choice: Neighbours | Meeting, size: Any) -> float:
    """Bytes that a node sends, an update, in the mean of the nodes; `size`: of each message.

    One number, or (updates, 1) where messages are not sent after every update.
    """
    to = np.asarray(choice.to)
    nodes = to.shape[-2]
    peers = (to != np.arange(nodes)[:, None]).sum(axis=(-1, -2))
    return float((np.ravel(size) * peers).mean() / nodes)


def _meeting_bytes(config: Config, shapes: Shapes, choice: Meeting) -> tuple[float, float]:
    """Bytes of a node's messages, an update: of its parameters, and of its optimizer's state."""
    mix = config.methods.mix
    send = np.asarray(choice.send).reshape(len(choice.send), -1)
    receive = np.asarray(choice.receive).reshape(send.shape)
    if isinstance(mix, ModelAveraging):
        return mix.sent_bytes(clock_inputs(config, shapes), choice)
    if choice.to is not None:  # over a graph
        return _gossip_bytes(choice, shapes.bytes * send), 0.0
    blocking = receive & (np.asarray(choice.waited).reshape(send.shape) == 0)
    short, usual = (
        shapes.bytes / (2 if dtype == "bfloat16" else 1)
        for dtype in (
            getattr(mix, "blocking_dtype", "") or getattr(mix, "transfer_dtype", ""),
            getattr(mix, "transfer_dtype", ""),
        )
    )
    return float((send * np.where(blocking, short, usual)).mean()), 0.0


def workers_per_update(config: Config) -> float:
    """Workers whose examples an update is of, each as often as it is."""
    cluster, methods = config.cluster, config.methods
    workers = cluster.worker_count
    return workers / methods.groups * methods.get("arrivals", 1)


def _never_back(methods: MethodStack) -> bool:
    """Whether stages send activations on, and nothing comes back."""
    return isinstance(methods.gradient, local.Local) and methods.gradient.variant != "backprop"


def _is_synchronous(config: Config) -> bool:
    """Whether one group of all shares its parameters, and so has no server."""
    methods = config.methods
    one = methods.groups == 1 and isinstance(methods.read, Grouped)
    return one and not methods.get("waiting", "")
