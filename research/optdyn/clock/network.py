"""Seconds of messages, over equal links or over the link between each two nodes.

A collective, after which n have the sum of what each has, is one of (`cluster.collective`)

    ring     2 (n - 1) messages in a row, each of 1/n of the bytes
    tree     2 ceil(log2 n) messages in a row: added up toward a root, and handed down again
    server   2 messages: all send to a server at once, whose link is as wide as it takes, and back

With `cluster.regions` = R nodes are all over the earth, node i of n in region i R // n. Regions are
numbered by longitude and drawn evenly over the sphere between 60 degrees south and north, by R
alone, so that all seeds of a study are of one earth. A message travels along the great circle at
2/3 of the speed of light, as in glass fibre, which is a lower bound as cables take detours:

    cos(angle) = sin(a) sin(b) + cos(a) cos(b) cos(longitude_a - longitude_b)
    latency    = cluster.latency + angle 6,371 km / (2/3 c)

Its bytes go through the narrower of the two regions' links, which have `cluster.bandwidth` in the
median, times a log-normal factor of coefficient of variation `cluster.bandwidth_variation`. This
law is assumed, not measured; with 1, nine regions in ten have a quarter to four times the median.
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
Links = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (from, to) -> seconds, broadcast arrays


def all_reduce(n: int, size: Any, bandwidth: float, latency: float, kind: str = RING) -> Any:
    """Returns the seconds of an all-reduce of `size` bytes by n devices over equal links."""
    return _all_reduce(kind, n, size, lambda part: latency + transfer(part, bandwidth))


def inside_node(cluster: Cluster, devices: int, size: Any) -> Any:
    """Returns the seconds of an all-reduce of `size` bytes over so many devices of a node."""
    local = cluster.local_bandwidth, cluster.local_latency
    return all_reduce(devices, size, *local, cluster.collective)


def transfer(size: Any, bandwidth: Any) -> Any:
    """Returns the seconds of `size` bytes at `bandwidth` bytes a second; 0 is no limit."""
    if isinstance(bandwidth, np.ndarray):
        return size / np.where(bandwidth > 0, bandwidth, np.inf)
    return size / bandwidth if bandwidth > 0 else 0.0


def _all_reduce(kind: str, n: int, size: Any, message: Callable[[Any], Any]) -> Any:
    if n == 1 or kind == RING:
        return 2 * (n - 1) * message(size / n)
    return 2 * (math.ceil(math.log2(n)) if kind == TREE else 1) * message(size)


def broadcast(cluster: Cluster, size: float, devices: int = 0) -> float:
    """Returns the seconds of `size` bytes from a device to all others of its node, pipelined."""
    devices = devices or cluster.devices_per_node
    if devices == 1:
        return 0.0
    return (devices - 1) * cluster.local_latency + transfer(size, cluster.local_bandwidth)


def between_nodes(cluster: Cluster, size: float) -> float:
    """Returns the seconds of an all-reduce of `size` bytes by one device of each node."""
    if cluster.regions and cluster.collective == RING:
        return regional_all_reduce(cluster, size)
    return all_reduce_among(cluster, np.arange(cluster.nodes), size)


def all_reduce_among(cluster: Cluster, nodes: np.ndarray, size: float) -> float:
    """Returns the seconds of an all-reduce of `size` bytes over these nodes."""
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

    def slowest(part: float) -> float:
        return float(link_seconds(cluster, part)(nodes, to).max())

    return float(_all_reduce(kind, n, size, slowest))


def to_server(cluster: Cluster, size: float) -> np.ndarray:
    """Returns the seconds of a message of `size` bytes from each node to the server, (nodes,).

    The server is where node 0 is; between regions of the earth, in the region with the least
    latency to all nodes.
    """
    if cluster.regions:
        earth, region = cluster_regions(cluster), region_of_nodes(cluster)
        latency = earth.latency[earth.latency[:, region].sum(axis=1).argmin()][region]
        return cluster.latency + latency + transfer(size, cluster.bandwidth * earth.width[region])
    if cluster.bandwidths or cluster.latencies:
        return link_seconds(cluster, size)(np.arange(cluster.nodes), np.zeros(cluster.nodes, int))
    return np.full(cluster.nodes, cluster.latency + transfer(size, cluster.bandwidth))


def round_trip(cluster: Cluster, size: int) -> Any:
    """Returns the seconds to send `size` bytes and receive as many; (nodes,) between regions."""
    if cluster.regions:
        return 2 * to_server(cluster, size)
    return 2 * (cluster.latency + transfer(size, cluster.bandwidth))


def group_exchange(
    cluster: Cluster, groups: int, size: float, sent: bool = True, message: float | None = None
) -> np.ndarray:
    """Returns the seconds of a gradient to the server and of the parameters back, (groups,).

    Both have `size` bytes, or the gradient has `message` bytes. The workers of a group add up, and
    one of them sends the sum, reads the parameters and broadcasts them; if nothing is `sent` they
    only add up. With the collective `server` each worker sends separately.
    """
    workers = np.arange(cluster.worker_count).reshape(groups, -1)
    places = workers // cluster.devices_per_node
    local = min(workers.shape[1], cluster.devices_per_node)
    both_ways = to_server(cluster, size) + to_server(cluster, size if message is None else message)
    seconds = both_ways[places].max(axis=1) if sent else np.zeros(groups)
    if workers.shape[1] == 1 or (sent and cluster.collective == SERVER):
        return seconds
    inside = inside_node(cluster, local, size) + broadcast(cluster, size, local)
    between = [all_reduce_among(cluster, np.unique(place), size) for place in places]
    return seconds + inside + np.array(between)


def all_gather(cluster: Cluster, size: float) -> float:
    """Returns the seconds until each node has the `size` bytes of all others.

    Around a ring these are half the rounds of an all-reduce, each of a whole message; otherwise all
    messages come back to all nodes.
    """
    back = between_nodes(cluster, cluster.nodes * size) / 2
    return back if cluster.collective == RING else back + between_nodes(cluster, size) / 2


def one_way_share(kind: str, n: int) -> float:
    """Returns how many times its bytes an all-reduce sends one way over its busiest link.

    ring     2 (n - 1) / n    every link
    tree     ceil(log2 n)     the root's, which so many send to
    server   n - 1            the server's, which is where one of them is
    """
    if kind == RING or n == 1:
        return 2 * (n - 1) / n
    return n - 1 if kind == SERVER else math.ceil(math.log2(n))


def busiest_link_bytes(cluster: Cluster, size: float, gathered: bool = False) -> float:
    """Returns the bytes one way over the busiest link of an all-reduce, or an `all_gather`."""
    kind, n = cluster.collective, cluster.nodes
    times = one_way_share(kind, n)
    if cluster.regions and kind == RING:
        members = np.bincount(region_of_nodes(cluster))
        in_region = one_way_share(RING, int(members.max()))
        times = in_region + one_way_share(RING, int((members > 0).sum()))
    if gathered:
        times *= n / 2 if kind == RING else n
    return size * times


def link_seconds(cluster: Cluster, size: float | np.ndarray) -> Links:
    """Returns (from, to) -> seconds of a message of `size` bytes; arrays of nodes broadcast."""
    if cluster.regions:
        earth, region = cluster_regions(cluster), region_of_nodes(cluster)

        def regional(sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
            a, b = region[sender], region[receiver]
            width = cluster.bandwidth * np.minimum(earth.width[a], earth.width[b])
            return cluster.latency + earth.latency[a, b] + transfer(size, np.asarray(width))

        return regional
    if cluster.bandwidths or cluster.latencies:
        matrix = message_seconds(cluster, size)
        return lambda sender, receiver: matrix[sender, receiver]
    seconds = cluster.latency + transfer(size, cluster.bandwidth)
    return lambda sender, receiver: np.full(np.broadcast(sender, receiver).shape, seconds)


def message_seconds(cluster: Cluster, size: float | np.ndarray) -> np.ndarray:
    """Returns the seconds from row to column, (nodes, nodes). Raises `TimelineError`."""
    latency = _matrix(cluster, "latencies", cluster.latency)
    return latency + transfer(size, _matrix(cluster, "bandwidths", cluster.bandwidth))


def _matrix(cluster: Cluster, name: str, default: float) -> np.ndarray:
    shape = (cluster.nodes, cluster.nodes)
    try:
        matrix = np.asarray(getattr(cluster, name) or np.full(shape, default), np.float64)
    except (TypeError, ValueError):
        matrix = np.zeros(())
    if matrix.shape != shape or not np.all((matrix >= 0) & np.isfinite(matrix)):
        raise TimelineError(
            f"config.cluster.{name}: must be {shape[0]} rows of {shape[1]} finite numbers from 0 "
            "up, from the node of the row to that of the column, or ()"
        )
    return matrix


RADIUS = 6.371e6  # metres
LIGHT = 2 / 3 * 299_792_458.0  # metres a second
NORTH = np.pi / 3  # the latitude of the regions farthest from the equator


class Regions(NamedTuple):
    longitude: np.ndarray  # (R,) radians, ascending
    latitude: np.ndarray  # (R,) radians
    latency: np.ndarray  # (R, R) seconds of light in fibre, to add to those of the links
    width: np.ndarray  # (R,) factors of unit median on the bandwidth of a region's links


@lru_cache(maxsize=8)
def regions(number: int, variation: float = 0.0) -> Regions:
    """Returns drawn regions; `variation` is that of their links' bandwidth."""
    place, links = seeds.generator(number, "regions").spawn(2)
    longitude = np.sort(place.uniform(-np.pi, np.pi, number))
    latitude = np.arcsin(place.uniform(-np.sin(NORTH), np.sin(NORTH), number))
    width = np.exp(np.sqrt(np.log1p(variation**2)) * links.standard_normal(number))
    return Regions(longitude, latitude, great_circle(longitude, latitude) * RADIUS / LIGHT, width)


def great_circle(longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    """Returns the angles between places, (R, R) radians from 0 to pi."""
    x = np.cos(latitude) * np.cos(longitude)
    y = np.cos(latitude) * np.sin(longitude)
    places = np.stack([x, y, np.sin(latitude)], axis=1)
    chord = np.linalg.norm(places[:, None] - places, axis=2)  # exact also where angles are small
    return 2 * np.arcsin(np.minimum(chord / 2, 1))


def region_of_nodes(cluster: Cluster) -> np.ndarray:
    return np.arange(cluster.nodes) * cluster.regions // cluster.nodes


def cluster_regions(cluster: Cluster) -> Regions:
    return regions(cluster.regions, cluster.bandwidth_variation)


def regional_all_reduce(cluster: Cluster, size: float) -> float:
    """Returns the seconds of an all-reduce by a ring in each region and one around the earth.

    The m nodes of a region add up in 2 (m - 1) messages of size / m; then one node of each does so
    with the others in 2 (R - 1) messages of size / R. A round ends with the slowest link.
    """
    region = region_of_nodes(cluster)
    _, first, members = np.unique(region, return_index=True, return_counts=True)
    inside = 2 * (members - 1) * link_seconds(cluster, size / members)(first, first)
    number = len(first)
    around = link_seconds(cluster, size / number)(first, np.roll(first, -1))
    return float(inside.max() + 2 * (number - 1) * around.max())
