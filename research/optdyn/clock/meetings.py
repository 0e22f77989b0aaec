"""Seconds of nodes whose devices wait for one another, and of updates by all nodes together.

Every device takes its part of the batch. The devices of a node then add up their gradients over the
node's own links; an exchange between nodes is by one device of each, which hands the sum on to the
others. An exchange takes what the network makes of it, whoever is slow in computing. Nodes that
train by themselves in between meet when their method says so (`of_meetings`).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from optdyn.base import seeds
from optdyn.base.trees import Plan
from optdyn.clock.cluster import Cluster
from optdyn.clock.network import between_nodes, broadcast, inside_node
from optdyn.clock.timeline import Meeting, Timeline, at, from_arrivals, shares


class Within(NamedTuple):
    """What nodes do by themselves."""

    ready: np.ndarray  # (steps, nodes) seconds of an update until its exchange may start
    done: np.ndarray  # (steps, nodes) seconds of an update until its end
    plan: Plan = ()  # what is decided for each node, (steps, nodes, ...)
    staleness: np.ndarray | None = None  # (steps, nodes, ...), if there is any inside
    slots: int = 1  # that the choice addresses


Inside = Callable[[int], Within]  # of so many steps


def synchronous(
    cluster: Cluster, *, steps: int, batch_size: int, update_bytes: int, seed: int = 0
) -> Timeline:
    """Every gradient is averaged over all workers, who wait for one another.

    So it is model averaging after every update, at the same seconds.
    """
    mean = equal_parts(cluster, batch_size)
    if cluster.split == "proportional":
        mean = compute_means(cluster, 1, batch_size).reshape(mean.shape)
    ends = together(cluster, draws(cluster, steps, seed) * mean, update_bytes)
    return from_arrivals(np.zeros(steps, np.int32), np.cumsum(ends), 1)


def together(cluster: Cluster, compute: np.ndarray, update_bytes: int) -> np.ndarray:
    """(steps,) seconds of updates by all, from those that every device computes.

    `compute`, (steps, nodes, devices a node). All wait for the slowest.
    """
    ready, done = (part.max(axis=1) for part in exchanged(cluster, compute, update_bytes))
    arrival = np.maximum(done, ready + between_nodes(cluster, update_bytes))
    return arrival + broadcast(cluster, update_bytes)


def node_seconds(
    cluster: Cluster, steps: int, batch_size: int, update_bytes: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(steps, nodes) seconds from the batch to when an exchange between nodes may start, and to the
    gradient averaged over the devices of the node.

    Every device takes an equal part of the batch. The averaging may run behind the last fraction
    `overlap` of the computing, and the exchange between nodes follows it, layer by layer: it may
    start that much before the gradient is there. Longer runs begin with the shorter ones.
    """
    compute = draws(cluster, steps, seed) * equal_parts(cluster, batch_size)
    return exchanged(cluster, compute, update_bytes)


def equal_parts(cluster: Cluster, batch_size: int) -> np.ndarray:
    """(nodes, devices a node) mean seconds that each device computes for an equal part."""
    shape = (cluster.nodes, cluster.devices_per_node)
    speeds = np.asarray(cluster.speeds or np.ones(shape), np.float64).reshape(shape)
    return cluster.seconds_per_example * batch_size / speeds.size / speeds


def compute_means(cluster: Cluster, groups: int, batch_size: int) -> np.ndarray:
    """(groups, k) mean seconds each worker computes for its share of an update.

    By `cluster.split` shares are equal parts, batch_size / k, or in proportion to the speeds of the
    group, in whole examples: a batch over devices by their FLOPS (arXiv 1606.04487), so that all of
    a group end together and an update computes for batch_size / (sum of speeds).
    """
    workers = cluster.worker_count
    speeds = np.asarray(cluster.speeds or np.ones(workers), np.float64).reshape(groups, -1)
    if cluster.split == "proportional":
        share = np.stack([shares(group, batch_size) for group in speeds])
    else:
        share = np.full(speeds.shape, batch_size / speeds.shape[1])
    return cluster.seconds_per_example * share / speeds


def draws(cluster: Cluster, steps: int, seed: int) -> np.ndarray:
    """(steps, nodes, devices a node) of unit mean, from the law `service`."""
    shape = (steps, cluster.nodes, cluster.devices_per_node)
    return cluster.service.draw(seeds.generator(seed, "arrivals"), shape)


def exchanged(
    cluster: Cluster, compute: np.ndarray, update_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """What `node_seconds` returns, from the seconds that every device computes."""
    local = inside_node(cluster, cluster.devices_per_node, update_bytes)
    slowest = compute.max(axis=2)
    ready = slowest * (1 - cluster.overlap) + local
    return ready, np.maximum(slowest, ready)


def meetings_timeline(meeting: Meeting, within: Within, seconds: np.ndarray) -> Timeline:
    """The timeline of nodes that meet so, and do what they do inside, at these seconds."""
    known = len(seconds)
    staleness = within.staleness
    if staleness is None:
        staleness = np.asarray(meeting.waited).reshape(known, -1).max(axis=1)
    meeting = meeting._replace(inner=at(within.plan, slice(known)))
    none = np.zeros(known, np.int32)
    return Timeline(none, staleness[:known], seconds, within.slots, meeting)
