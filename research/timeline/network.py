"""Seconds of messages: over one kind of link, or over the links between nodes, each its own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from research.timeline import regions
from research.timeline.base import TimelineError


def all_reduce(n: int, size: Any, bandwidth: float, latency: float) -> Any:
    """Seconds of a ring all-reduce over `n`: 2 (n - 1) messages of `size` / n bytes in a row.

    `size` is a number or an array of them.
    """
    return 2 * (n - 1) * (latency + (size / n / bandwidth if bandwidth else 0.0))


def broadcast(cluster: Any, size: float) -> float:
    """Seconds to hand `size` bytes from one device to the others of its node, as a pipeline."""
    if cluster.devices_per_node == 1:
        return 0.0
    transfer = size / cluster.local_bandwidth if cluster.local_bandwidth else 0.0
    return (cluster.devices_per_node - 1) * cluster.local_latency + transfer


def between_nodes(cluster: Any, size: float) -> float:
    """Seconds of an all-reduce over the nodes, by one device of each, around the ring of nodes.

    Every round ends with the slowest link of the ring. Between regions of the earth it has two
    levels (`regions.all_reduce`).
    """
    nodes = cluster.nodes
    if cluster.regions:
        return regions.all_reduce(cluster, size)
    if not (cluster.bandwidths or cluster.latencies):
        return all_reduce(nodes, size, cluster.bandwidth, cluster.latency)
    to = (np.arange(nodes) + 1) % nodes
    return 2 * (nodes - 1) * float(np.max(messages(cluster, size / nodes)[np.arange(nodes), to]))


def to_all_nodes(cluster: Any, size: float) -> float:
    """Seconds until every node has the `size` bytes of every other, around the ring of nodes.

    These are half the rounds of an all-reduce, each of a whole message and not of a part.
    """
    return between_nodes(cluster, cluster.nodes * size) / 2


def links(cluster: Any, size: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Seconds of a message of `size` bytes from the one nodes to the others, arrays that broadcast.

    A matrix of all nodes is there only where the config has one. `TimelineError` as `messages`.
    """
    if cluster.regions:
        return partial(regions.links, cluster, size)
    if cluster.bandwidths or cluster.latencies:
        every = messages(cluster, size)
        return lambda one, other: every[one, other]
    alike = cluster.latency + (size / cluster.bandwidth if cluster.bandwidth > 0 else 0.0)
    return lambda one, other: np.full(np.broadcast(one, other).shape, alike)


def messages(cluster: Any, size: Any) -> np.ndarray:
    """(nodes, nodes) seconds of a message of `size` bytes from the one node to the other.

    By `cluster.latencies` and `cluster.bandwidths`, or where there is none by the one number.
    `TimelineError` if a matrix does not fit.
    """
    latency, bandwidth = (
        _matrix(cluster, name, usual)
        for name, usual in (("latencies", cluster.latency), ("bandwidths", cluster.bandwidth))
    )
    return latency + size / np.where(bandwidth > 0, bandwidth, np.inf)


def _matrix(cluster: Any, name: str, usual: float) -> np.ndarray:
    shape = (cluster.nodes, cluster.nodes)
    try:
        given = np.asarray(cluster[name] or np.full(shape, usual), np.float64)
    except (TypeError, ValueError):
        given = np.zeros(())
    if given.shape != shape or not np.all((given >= 0) & np.isfinite(given)):
        raise TimelineError(
            f"config.cluster.{name}: must be {shape[0]} rows of {shape[1]} finite numbers from 0 "
            "up, from the node of the row to that of the column, or ()"
        )
    return given
