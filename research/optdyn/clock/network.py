"""Seconds of messages: over one kind of link, or over the links between nodes, each its own.

A collective, in which n have the sum of what each has, is the cluster's (`cluster.collective`):

    ring     2 (n - 1) messages in a row, each of 1/n of the bytes
    tree     2 ceil(log2 n) messages in a row: added up toward a root, and handed down again
    server   2 messages: all send to a server at once, whose link is as wide as it takes, and back
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from optdyn.clock import regions
from optdyn.clock.base import TimelineError
from optdyn.clock.cluster import Cluster

COLLECTIVES = RING, TREE, SERVER = "ring", "tree", "server"


def all_reduce(n: int, size: Any, bandwidth: float, latency: float, kind: str = RING) -> Any:
    """Seconds of an all-reduce of `size` bytes, a number or an array, over `n` alike."""
    return _collective(kind, n, size, lambda part: latency + transfer(part, bandwidth))


def inside_node(cluster: Cluster, devices: int, size: Any) -> Any:
    """Seconds of an all-reduce of `size` bytes, as `all_reduce`, over so many devices of a node."""
    local = cluster.local_bandwidth, cluster.local_latency
    return all_reduce(devices, size, *local, cluster.collective)


def transfer(size: Any, bandwidth: float) -> Any:
    """Seconds that `size` bytes, a number or an array, take at `bandwidth` bytes a second.

    They take none where the bandwidth is 0. A message takes its latency besides.
    """
    return size / bandwidth if bandwidth > 0 else 0.0


def _collective(kind: str, n: int, size: Any, message: Callable[[Any], Any]) -> Any:
    """Seconds of an all-reduce over `n`; `message(bytes)` are those of one of its messages."""
    if n == 1 or kind == RING:
        return 2 * (n - 1) * message(size / n)
    return 2 * (math.ceil(math.log2(n)) if kind == TREE else 1) * message(size)


def broadcast(cluster: Cluster, size: float) -> float:
    """Seconds to hand `size` bytes from one device to the others of its node, as a pipeline."""
    return _handed(cluster, cluster.devices_per_node, size)


def _handed(cluster: Cluster, devices: int, size: float) -> float:
    if devices == 1:
        return 0.0
    return (devices - 1) * cluster.local_latency + transfer(size, cluster.local_bandwidth)


def between_nodes(cluster: Cluster, size: float) -> float:
    """Seconds of an all-reduce over the nodes, by one device of each.

    Every message takes as long as on the slowest of the links that it goes over. Between regions of
    the earth a ring has two levels (`regions.all_reduce`).
    """
    if cluster.regions and cluster.collective == RING:
        return regions.all_reduce(cluster, size)
    return among(cluster, np.arange(cluster.nodes), size)


def among(cluster: Cluster, nodes: np.ndarray, size: float) -> float:
    """Seconds of an all-reduce over these nodes."""
    kind, n = cluster.collective, len(nodes)
    if not (cluster.regions or cluster.bandwidths or cluster.latencies):
        return all_reduce(n, size, cluster.bandwidth, cluster.latency, kind)
    if n == 1:
        return 0.0
    if kind == SERVER:
        return float(to_server(cluster, size)[nodes].max() * 2)
    to = np.roll(nodes, -1)
    if kind == TREE:  # a node sends to the one whose number lacks the last of its bits
        nodes, to = nodes[1:], nodes[np.arange(1, n) & (np.arange(1, n) - 1)]
    return float(_collective(kind, n, size, lambda part: links(cluster, part)(nodes, to).max()))


def to_server(cluster: Cluster, size: float) -> np.ndarray:
    """(nodes,) seconds of a message from each node to the server, which is where node 0 is.

    Between regions of the earth it is where it has the least far to all. Its link is as wide as it
    takes.
    """
    if cluster.regions:
        return regions.to_server(cluster, size)
    if cluster.bandwidths or cluster.latencies:
        return links(cluster, size)(np.arange(cluster.nodes), np.zeros(cluster.nodes, int))
    return np.full(cluster.nodes, cluster.latency + transfer(size, cluster.bandwidth))


def of_groups(
    cluster: Cluster, groups: int, size: float, sent: bool = True, message: float | None = None
) -> np.ndarray:
    """(groups,) seconds of the messages of a group: its gradient, and what it reads then.

    Both are of `size` bytes, or the gradient that goes to the server is a `message` of others.

    The k workers of a group add up among themselves, and one of them sends the sum to the server,
    reads the parameters and hands them on; if nothing is `sent` they only add up. With `server` as
    the cluster's collective each of them does by itself.
    """
    workers = np.arange(cluster.worker_count).reshape(groups, -1)
    places = workers // cluster.devices_per_node
    local = min(workers.shape[1], cluster.devices_per_node)
    both_ways = 2 * to_server(cluster, size)
    if message is not None:
        both_ways = to_server(cluster, size) + to_server(cluster, message)
    both_ways = both_ways[places].max(axis=1) if sent else np.zeros(groups)
    if workers.shape[1] == 1 or (sent and cluster.collective == SERVER):
        return both_ways
    added = inside_node(cluster, local, size)
    if local > 1:
        added += _handed(cluster, local, size)
    return both_ways + added + np.array([among(cluster, np.unique(own), size) for own in places])


def to_all_nodes(cluster: Cluster, size: float) -> float:
    """Seconds until every node has the `size` bytes of every other.

    Around a ring these are half the rounds of an all-reduce, each of a whole message and not of a
    part. Up and down a tree, or to a server and back, all messages come back to everybody.
    """
    every = between_nodes(cluster, cluster.nodes * size) / 2
    return every if cluster.collective == RING else every + between_nodes(cluster, size) / 2


def one_way(kind: str, n: int) -> float:
    """How many times its bytes an all-reduce over `n` sends one way over its busiest link.

    ring     2 (n - 1) / n    every link
    tree     ceil(log2 n)     the root's, which so many send to
    server   n - 1            the server's, which is where one of them is
    """
    if kind == RING or n == 1:
        return 2 * (n - 1) / n
    return n - 1 if kind == SERVER else math.ceil(math.log2(n))


def busiest(cluster: Cluster, size: float, gathered: bool = False) -> float:
    """Bytes one way over the busiest link of an all-reduce of `size` bytes over the nodes.

    Of the two rings between regions of the earth it is that of a node which is in both. Where every
    node's bytes are `gathered` by all, it is what `to_all_nodes` sends.
    """
    kind, n = cluster.collective, cluster.nodes
    times = one_way(kind, n)
    if cluster.regions and kind == RING:
        members = np.bincount(regions.of_workers(cluster))
        times = one_way(RING, int(members.max())) + one_way(RING, int((members > 0).sum()))
    if gathered:
        times *= n / 2 if kind == RING else n
    return size * times


def links(cluster: Cluster, size: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Seconds of a message of `size` bytes from the one nodes to the others, arrays that broadcast.

    A matrix of all nodes is there only where the config has one. `TimelineError` as `messages`.
    """
    if cluster.regions:
        return partial(regions.links, cluster, size)
    if cluster.bandwidths or cluster.latencies:
        every = messages(cluster, size)
        return lambda one, other: every[one, other]
    alike = cluster.latency + transfer(size, cluster.bandwidth)
    return lambda one, other: np.full(np.broadcast(one, other).shape, alike)


def messages(cluster: Cluster, size: float | np.ndarray) -> np.ndarray:
    """(nodes, nodes) seconds of a message of `size` bytes from the one node to the other.

    By `cluster.latencies` and `cluster.bandwidths`, or where there is none by the one number.
    `TimelineError` if a matrix does not fit.
    """
    latency, bandwidth = (
        _matrix(cluster, name, usual)
        for name, usual in (("latencies", cluster.latency), ("bandwidths", cluster.bandwidth))
    )
    return latency + size / np.where(bandwidth > 0, bandwidth, np.inf)


def _matrix(cluster: Cluster, name: str, usual: float) -> np.ndarray:
    shape = (cluster.nodes, cluster.nodes)
    try:
        given = np.asarray(getattr(cluster, name) or np.full(shape, usual), np.float64)
    except (TypeError, ValueError):
        given = np.zeros(())
    if given.shape != shape or not np.all((given >= 0) & np.isfinite(given)):
        raise TimelineError(
            f"config.cluster.{name}: must be {shape[0]} rows of {shape[1]} finite numbers from 0 "
            "up, from the node of the row to that of the column, or ()"
        )
    return given


def exchange(cluster: Cluster, size: int) -> Any:
    """Seconds to send `size` bytes and to receive as many; of each node between regions."""
    if cluster.regions:
        return 2 * regions.to_server(cluster, size)
    return 2 * (cluster.latency + transfer(size, cluster.bandwidth))
