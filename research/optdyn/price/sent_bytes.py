"""Bytes that a method sends an update, counted from its timeline.

A link is a node's, in the mean of nodes that do alike, or that of the server of groups that arrive
by themselves, which is not on a node. It has as many bytes each way. So around a ring, and where
nodes meet in pairs, a step of one node has the bytes of the busiest link.
"""

from typing import Any, NamedTuple

import numpy as np

from optdyn.base.trees import Plan
from optdyn.clock.network import SERVER, busiest_link_bytes, one_way_share
from optdyn.clock.timeline import Arrival, Meeting, Timeline, plan_of
from optdyn.experiment import Config
from optdyn.methods import local
from optdyn.methods.asynchronous import Asynchronous, Grouped
from optdyn.methods.averaging import ModelAveraging
from optdyn.methods.gossip import Gossip, Neighbours
from optdyn.methods.workers import ADPSGD
from optdyn.price.shapes import Shapes, clock_inputs, stage_work


class Sent(NamedTuple):
    network: float  # of all messages
    link: float  # one way over the busiest link


def between_nodes(config: Config, shapes: Shapes, line: Timeline, exchanges: float) -> Sent:
    """Returns the bytes for a step of one node, and over one link while each makes a step."""
    nodes = config.cluster.nodes
    steps = workers_per_update(config) / config.cluster.devices_per_node
    if nodes == 1:
        return Sent(0.0, 0.0)
    update = _messages(config, shapes, line, exchanges)
    return Sent(update.network / steps, update.link * nodes / steps)


def _messages(config: Config, shapes: Shapes, line: Timeline, exchanges: float) -> Sent:
    methods, plan, size = config.methods, line.plan, shapes.bytes
    if methods.stages:
        gradient = methods.gradient
        never_back = isinstance(gradient, local.Local) and gradient.variant != "backprop"
        return _stage_bytes(stage_work(config, shapes).sent, 0 if never_back else 1)
    if methods.mix and (message := methods.mix.update_message(shapes.params)):
        return _all_reduced(config, message.bytes, message.gathered)
    if isinstance(methods.mix, ModelAveraging):
        compressed = methods.mix.compressor()
        params, states = _meeting_bytes(config, shapes, plan)
        of_params = _all_reduced(config, params, bool(compressed and compressed.gathered))
        of_states = _all_reduced(config, states)
        return Sent(of_params.network + of_states.network, of_params.link + of_states.link)
    if isinstance(plan, Meeting):
        sent = sum(_meeting_bytes(config, shapes, plan))
        return _all_reduced(config, sent) if plan.to is None else _neighbour_bytes(config, sent)
    if isinstance(plan, Neighbours):
        message_bytes = methods.of(Gossip).message_bytes(shapes.params, size)
        return _neighbour_bytes(config, _gossip_bytes(plan, message_bytes))
    is_one_group = methods.groups == 1 and isinstance(methods.read, Grouped)
    if not methods.grouped or (is_one_group and not methods.get("waiting", "")):
        return _all_reduced(config, size)
    return _server_bytes(config, shapes, line, exchanges)


def _all_reduced(config: Config, size: float, gathered: bool = False) -> Sent:
    nodes = config.cluster.nodes
    copies = nodes * (nodes - 1) if gathered else 2 * (nodes - 1)
    return Sent(float(copies * size), busiest_link_bytes(config.cluster, size, gathered))


def _neighbour_bytes(config: Config, size: float) -> Sent:
    return Sent(config.cluster.nodes * size, size)


def _stage_bytes(sent: np.ndarray, back: int) -> Sent:
    """Returns the bytes of stages that send activations on, (S - 1,), and as many `back`, if 1."""
    on, before = np.append(sent, 0), np.append(0, sent)  # after each stage, and before it
    link = max((on + back * before).max(), (before + back * on).max())
    return Sent(float((1 + back) * sent.sum()), float(link))


def _server_bytes(config: Config, shapes: Shapes, line: Timeline, exchanges: float) -> Sent:
    """Returns the bytes of groups that arrive by themselves and send parameters or gradients.

    The busiest link is the server's, which is read as often as groups exchange, or that of the node
    which sends and reads for a group of nodes. Nodes that meet in pairs have no server.
    """
    cluster, methods, size = config.cluster, config.methods, shapes.bytes
    workers = cluster.worker_count // methods.groups
    local_nodes = max(workers // cluster.devices_per_node, 1)
    inside = 2 * (local_nodes - 1)  # a group adds up
    compressed = methods.read.compressor() if isinstance(methods.read, Asynchronous) else None
    both_ways = 1 + (compressed.ratio(shapes.params) if compressed else 1)
    to_server, reads = both_ways + inside, 1
    if cluster.collective == SERVER:
        to_server, reads = both_ways * workers, workers
    dropped = getattr(plan_of(line, Arrival), "dropped", None)
    arrivals = methods.get("arrivals", 1)
    drops = 0 if dropped is None else float(np.sum(dropped)) / len(line.seconds)
    all_read = arrivals + drops
    arrivals += drops / 2 if methods.get("allotted", 0) else drops  # a late group sends none
    network = size * (arrivals * (exchanges * to_server + (1 - exchanges) * inside))
    if isinstance(methods.read, ADPSGD):
        return Sent(network, network / cluster.nodes)
    group_link = exchanges + one_way_share(cluster.collective, local_nodes)
    busiest = max(exchanges * reads, group_link / methods.groups)
    return Sent(network, size * all_read * busiest)


def logged_bytes(config: Config, shapes: Shapes, plan: Plan, exchanges: float) -> float:
    """Returns `sent_bytes` in a run's log: those of one node, once, and of its groups."""
    methods = config.methods
    if not any("sent_bytes" in method.info for method in methods.members):
        return 0.0
    sent = 0.0
    if isinstance(plan, Meeting):
        sent = sum(_meeting_bytes(config, shapes, plan))
    elif isinstance(plan, Neighbours):
        size = methods.of(Gossip).message_bytes(shapes.params, shapes.bytes)
        sent = _gossip_bytes(plan, size)
    elif methods.mix and (message := methods.mix.update_message(shapes.params)):
        sent = message.bytes
    sent *= config.cluster.nodes > 1  # a single node sends nothing
    if methods.read and methods.read.has_worker_params:
        sent += 2 * shapes.bytes * exchanges
    elif methods.read and "sent_bytes" in methods.read.info:
        sent += shapes.bytes * methods.get("arrivals", 1)
    return float(sent)


def _gossip_bytes(plan: Neighbours | Meeting, size: Any) -> float:
    """Returns the bytes that a node sends an update, in the mean; `size` is of each message."""
    to = np.asarray(plan.to)
    nodes = to.shape[-2]
    peers = (to != np.arange(nodes)[:, None]).sum(axis=(-1, -2))
    return float((np.ravel(size) * peers).mean() / nodes)


def _meeting_bytes(config: Config, shapes: Shapes, plan: Meeting) -> tuple[float, float]:
    """Returns the bytes a node sends an update, of parameters and of its optimizer's state."""
    mix = config.methods.mix
    send = np.asarray(plan.send).reshape(len(plan.send), -1)
    receive = np.asarray(plan.receive).reshape(send.shape)
    if isinstance(mix, ModelAveraging):
        return mix.sent_bytes(clock_inputs(config, shapes), plan)
    if plan.to is not None:  # over a graph
        return _gossip_bytes(plan, shapes.bytes * send), 0.0
    is_blocking = receive & (np.asarray(plan.waited).reshape(send.shape) == 0)
    blocking_bytes, other_bytes = (
        shapes.bytes / (2 if dtype == "bfloat16" else 1)
        for dtype in (
            getattr(mix, "blocking_dtype", "") or getattr(mix, "transfer_dtype", ""),
            getattr(mix, "transfer_dtype", ""),
        )
    )
    return float((send * np.where(is_blocking, blocking_bytes, other_bytes)).mean()), 0.0


def workers_per_update(config: Config) -> float:
    """Returns how many workers' examples are in an update, each counted as often as it is."""
    cluster, methods = config.cluster, config.methods
    workers = cluster.worker_count
    return workers / methods.groups * methods.get("arrivals", 1)
