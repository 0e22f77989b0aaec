"""Workers all over the earth: how far apart they are, and how wide their links.

Worker i of n lives in region i R // n of R. Regions are numbered by longitude and lie between 60
degrees south and north, drawn evenly over that part of a sphere. A message between them travels
along the great circle at 2/3 of the speed of light, as in glass fibre,

    cos(angle) = sin(a) sin(b) + cos(a) cos(b) cos(longitude_a - longitude_b)
    latency    = cluster.latency + angle 6,371 km / (2/3 c)

which is a lower bound: cables take detours. Its bytes go through the narrower of the two links. A
region's links have `cluster.bandwidth` in the median, times a log-normal factor of coefficient of
variation `cluster.bandwidth_variation`. This law is assumed, not measured; with 1, nine
regions in ten have between a quarter of the median and four times as much.

Where a region is depends on R only, so that all seeds of a study are of one earth.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from optdyn.base import seeds
from optdyn.clock.cluster import Cluster

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


def of_workers(cluster: Cluster) -> np.ndarray:
    """(nodes,) number of each node's region; the workers of a node share it."""
    return np.arange(cluster.nodes) * cluster.regions // cluster.nodes


def of_cluster(cluster: Cluster) -> Regions:
    """The regions that the config names, with their links."""
    return regions(cluster.regions, cluster.bandwidth_variation)


def links(
    cluster: Cluster, size: float | np.ndarray, one: np.ndarray, other: np.ndarray
) -> np.ndarray:
    """Seconds of a message of `size` bytes from nodes `one` to nodes `other`, elementwise."""
    earth, of = of_cluster(cluster), of_workers(cluster)
    a, b = of[one], of[other]
    width = cluster.bandwidth * np.minimum(earth.width[a], earth.width[b])
    return cluster.latency + earth.latency[a, b] + size / np.where(width > 0, width, np.inf)


def to_server(cluster: Cluster, size: float) -> np.ndarray:
    """(nodes,) seconds of a message from each node to the server, which has the least far to all.

    The server's own link is as wide as it takes.
    """
    earth, of = of_cluster(cluster), of_workers(cluster)
    far = earth.latency[earth.latency[:, of].sum(axis=1).argmin()]
    width = cluster.bandwidth * earth.width[of]
    return cluster.latency + far[of] + size / np.where(width > 0, width, np.inf)


def all_reduce(cluster: Cluster, size: float) -> float:
    """Seconds of an all-reduce over the nodes: a ring inside each region, and one around the earth.

    The m nodes of a region add up in 2 (m - 1) messages of size / m, the slowest region last, and a
    node of each does so with the others in 2 (R - 1) messages of size / R, from region to region by
    longitude. A round ends with the slowest link.
    """
    first, members = np.unique(of_workers(cluster), return_index=True, return_counts=True)[1:]
    inside = 2 * (members - 1) * links(cluster, size / members, first, first)
    number = len(first)
    around = links(cluster, size / number, first, np.roll(first, -1))
    return float(inside.max() + 2 * (number - 1) * around.max())
