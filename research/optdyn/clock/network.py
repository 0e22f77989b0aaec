"""Seconds of messages: over one kind of link, or over the links between nodes, each its own.

A collective, in which n have the sum of what each has, is the cluster's (`cluster.collective`):

    ring     2 (n - 1) messages in a row, each of 1/n of the bytes
    tree     2 ceil(log2 n) messages in a row: added up toward a root, and handed down again
    server   2 messages: all send to a server at once, whose link is as wide as it takes, and back

With `cluster.regions` = R nodes are all over the earth; node i lives in region i R // n. Regions
are numbered by longitude and lie between 60 degrees south and north, drawn evenly over that part of
a sphere, by R alone, so that all seeds of a study are of one earth. A message between them travels
along the great circle at 2/3 of the speed of light, as in glass fibre,

    cos(angle) = sin(a) sin(b) + cos(a) cos(b) cos(longitude_a - longitude_b)
    latency    = cluster.latency + angle 6,371 km / (2/3 c)

which is a lower bound: cables take detours. Its bytes go through the narrower of the two links. A
region's links have `cluster.bandwidth` in the median, times a log-normal factor of coefficient of
variation `cluster.bandwidth_variation`. This law is assumed, not measured; with 1, nine regions in
ten have between a quarter of the median and four times as much.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from optdyn.base import seeds
from optdyn.clock.cluster import Cluster
from optdyn.clock.timeline import TimelineError

COLLECTIVES = RING, TREE, SERVER = "ring", "tree", "server"
Links = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (from, to) -> seconds, of broadcast nodes


def all_reduce(n: int, size: Any, bandwidth: float, latency: float, kind: str = RING) -> Any:
    """Seconds of an all-reduce of `size` bytes, a number or an array, over `n` alike."""
    return _all_reduce(kind, n, size, lambda part: latency + transfer(part, bandwidth))


def inside_node(cluster: Cluster, devices: int, size: Any) -> Any:
    """Seconds of an all-reduce of `size` bytes, as `all_reduce`, over so many devices of a node."""
    local = cluster.local_bandwidth, cluster.local_latency
    return all_reduce(devices, size, *local, cluster.collective)


def transfer(size: Any, bandwidth: float) -> Any:
    """Seconds that `size` bytes, a number or an array, take at `bandwidth` bytes a second.

    They take none where the bandwidth is 0. A message takes its latency besides.
    """
    return size / bandwidth if bandwidth > 0 else 0.0


def _all_reduce(kind: str, n: int, size: Any, message: Callable[[Any], Any]) -> Any:
    """Seconds of an all-reduce over `n`; `message(bytes)` are those of one of its messages."""
    if n == 1 or kind == RING:
        return 2 * (n - 1) * message(size / n)
    return 2 * (math.ceil(math.log2(n)) if kind == TREE else 1) * message(size)


def broadcast(cluster: Cluster, size: float) -> float:
    """Seconds to hand `size` bytes from one device to the others of its node, as a pipeline."""
    return _pipelined(cluster, cluster.devices_per_node, size)


def _pipelined(cluster: Cluster, devices: int, size: float) -> float:
    if devices == 1:
        return 0.0
    return (devices - 1) * cluster.local_latency + transfer(size, cluster.local_bandwidth)


def between_nodes(cluster: Cluster, size: float) -> float:
    """Seconds of an all-reduce over the nodes, by one device of each.

    Every message takes as long as on the slowest of the links that it goes over. Between regions of
    the earth a ring has two levels (`regional_all_reduce`).
    """
    if cluster.regions and cluster.collective == RING:
        return regional_all_reduce(cluster, size)
    return all_reduce_among(cluster, np.arange(cluster.nodes), size)


def all_reduce_among(cluster: Cluster, nodes: np.ndarray, size: float) -> float:
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
    return float(
        _all_reduce(kind, n, size, lambda part: link_seconds(cluster, part)(nodes, to).max())
    )


def to_server(cluster: Cluster, size: float) -> np.ndarray:
    """(nodes,) seconds of a message from each node to the server, which is where node 0 is.

    Between regions of the earth it is where it has the least far to all. Its link is as wide as it
    takes.
    """
    if cluster.regions:
        earth, region = cluster_regions(cluster), region_of_nodes(cluster)
        far = earth.latency[earth.latency[:, region].sum(axis=1).argmin()]
        width = cluster.bandwidth * earth.width[region]
        return cluster.latency + far[region] + size / np.where(width > 0, width, np.inf)
    if cluster.bandwidths or cluster.latencies:
        return link_seconds(cluster, size)(np.arange(cluster.nodes), np.zeros(cluster.nodes, int))
    return np.full(cluster.nodes, cluster.latency + transfer(size, cluster.bandwidth))


def round_trip(cluster: Cluster, size: int) -> Any:
    """Seconds to send `size` bytes and to receive as many; of each node between regions."""
    if cluster.regions:
        return 2 * to_server(cluster, size)
    return 2 * (cluster.latency + transfer(size, cluster.bandwidth))


def group_exchange(
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
    round_trip_bytes = 2 * to_server(cluster, size)
    if message is not None:
        round_trip_bytes = to_server(cluster, size) + to_server(cluster, message)
    round_trip_bytes = round_trip_bytes[places].max(axis=1) if sent else np.zeros(groups)
    if workers.shape[1] == 1 or (sent and cluster.collective == SERVER):
        return round_trip_bytes
    added = inside_node(cluster, local, size)
    if local > 1:
        added += _pipelined(cluster, local, size)
    return (
        round_trip_bytes
        + added
        + np.array([all_reduce_among(cluster, np.unique(place), size) for place in places])
    )


def all_gather(cluster: Cluster, size: float) -> float:
    """Seconds until every node has the `size` bytes of every other.

    Around a ring these are half the rounds of an all-reduce, each of a whole message and not of a
    part. Up and down a tree, or to a server and back, all messages come back to everybody.
    """
    back = between_nodes(cluster, cluster.nodes * size) / 2
    return back if cluster.collective == RING else back + between_nodes(cluster, size) / 2


def one_way_share(kind: str, n: int) -> float:
    """How many times its bytes an all-reduce over `n` sends one way over its busiest link.

    ring     2 (n - 1) / n    every link
    tree     ceil(log2 n)     the root's, which so many send to
    server   n - 1            the server's, which is where one of them is
    """
    if kind == RING or n == 1:
        return 2 * (n - 1) / n
    return n - 1 if kind == SERVER else math.ceil(math.log2(n))


def busiest_link_bytes(cluster: Cluster, size: float, gathered: bool = False) -> float:
    """Bytes one way over the busiest link of an all-reduce of `size` bytes over the nodes.

    Of the two rings between regions of the earth it is that of a node which is in both. Where every
    node's bytes are `gathered` by all, it is what `all_gather` sends.
    """
    kind, n = cluster.collective, cluster.nodes
    times = one_way_share(kind, n)
    if cluster.regions and kind == RING:
        members = np.bincount(region_of_nodes(cluster))
        times = one_way_share(RING, int(members.max())) + one_way_share(
            RING, int((members > 0).sum())
        )
    if gathered:
        times *= n / 2 if kind == RING else n
    return size * times


def link_seconds(cluster: Cluster, size: float | np.ndarray) -> Links:
    """Seconds of a message of `size` bytes from the one nodes to the others, arrays that broadcast.

    A matrix of all nodes is there only where the config has one. Raises as `message_seconds`.
    """
    if cluster.regions:
        earth, region = cluster_regions(cluster), region_of_nodes(cluster)

        def regional(one: np.ndarray, other: np.ndarray) -> np.ndarray:
            a, b = region[one], region[other]
            width = cluster.bandwidth * np.minimum(earth.width[a], earth.width[b])
            return cluster.latency + earth.latency[a, b] + size / np.where(width > 0, width, np.inf)

        return regional
    if cluster.bandwidths or cluster.latencies:
        matrix = message_seconds(cluster, size)
        return lambda one, other: matrix[one, other]
    alike = cluster.latency + transfer(size, cluster.bandwidth)
    return lambda one, other: np.full(np.broadcast(one, other).shape, alike)


def message_seconds(cluster: Cluster, size: float | np.ndarray) -> np.ndarray:
    """(nodes, nodes) seconds of a message of `size` bytes from the one node to the other.

    By `cluster.latencies` and `cluster.bandwidths`, or where there is none by the one number.
    `TimelineError` if a matrix does not fit.
    """
    latency = _matrix(cluster, "latencies", cluster.latency)
    bandwidth = _matrix(cluster, "bandwidths", cluster.bandwidth)
    return latency + size / np.where(bandwidth > 0, bandwidth, np.inf)


def _matrix(cluster: Cluster, name: str, alike: float) -> np.ndarray:
    shape = (cluster.nodes, cluster.nodes)
    try:
        given = np.asarray(getattr(cluster, name) or np.full(shape, alike), np.float64)
    except (TypeError, ValueError):
        given = np.zeros(())
    if given.shape != shape or not np.all((given >= 0) & np.isfinite(given)):
        raise TimelineError(
            f"config.cluster.{name}: must be {shape[0]} rows of {shape[1]} finite numbers from 0 "
            "up, from the node of the row to that of the column, or ()"
        )
    return given


RADIUS = 6.371e6  # metres
LIGHT = 2 / 3 * 299_792_458.0  # metres a second
NORTH = np.pi / 3  # as far as regions lie from the equator


class Regions(NamedTuple):
    longitude: np.ndarray  # (R,) radians, ascending
    latitude: np.ndarray  # (R,) radians
    latency: np.ndarray  # (R, R) seconds of light in fibre, without what the links add
    width: np.ndarray  # (R,) of unit median, of a region's links


@lru_cache(maxsize=8)
def regions(number: int, variation: float = 0.0) -> Regions:
    """So many regions, whose links vary so much."""
    place, links = seeds.generator(number, "regions").spawn(2)
    longitude = np.sort(place.uniform(-np.pi, np.pi, number))
    latitude = np.arcsin(place.uniform(-np.sin(NORTH), np.sin(NORTH), number))
    width = np.exp(np.sqrt(np.log1p(variation**2)) * links.standard_normal(number))
    return Regions(longitude, latitude, great_circle(longitude, latitude) * RADIUS / LIGHT, width)


def great_circle(longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    """(R, R) angles between the places, radians from 0 to pi."""
    x = np.cos(latitude) * np.cos(longitude)
    y = np.cos(latitude) * np.sin(longitude)
    places = np.stack([x, y, np.sin(latitude)], axis=1)
    chord = np.linalg.norm(places[:, None] - places, axis=2)  # exact also where angles are small
    return 2 * np.arcsin(np.minimum(chord / 2, 1))


def region_of_nodes(cluster: Cluster) -> np.ndarray:
    """(nodes,) number of each node's region; the workers of a node share it."""
    return np.arange(cluster.nodes) * cluster.regions // cluster.nodes


def cluster_regions(cluster: Cluster) -> Regions:
    """The regions that the config names, with their links."""
    return regions(cluster.regions, cluster.bandwidth_variation)


def regional_all_reduce(cluster: Cluster, size: float) -> float:
    """Seconds of an all-reduce over the nodes: a ring inside each region, and one around the earth.

    The m nodes of a region add up in 2 (m - 1) messages of size / m, the slowest region last, and a
    node of each does so with the others in 2 (R - 1) messages of size / R, from region to region by
    longitude. A round ends with the slowest link.
    """
    region = region_of_nodes(cluster)
    _, first, members = np.unique(region, return_index=True, return_counts=True)
    inside = 2 * (members - 1) * link_seconds(cluster, size / members)(first, first)
    number = len(first)
    around = link_seconds(cluster, size / number)(first, np.roll(first, -1))
    return float(inside.max() + 2 * (number - 1) * around.max())
