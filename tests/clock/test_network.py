"""Links between nodes: the one number is a matrix of it, and the slowest link decides."""

import numpy as np
import pytest

from optdyn.clock.cluster import Cluster
from optdyn.clock.network import between_nodes, busiest_link_bytes, message_seconds
from optdyn.clock.timeline import TimelineError


def cluster(**values):
    return Cluster(nodes=3, **values)


def test_the_slowest_link_of_the_ring_decides():
    """Links that are not of the ring do not; a bandwidth of 0 takes no time."""
    slow = np.zeros((3, 3))
    slow[1, 2] = 10.0
    every = cluster(bandwidths=tuple(map(tuple, slow)))
    assert between_nodes(every, 600.0) == 4 * 600.0 / 3 / 10.0
    slow[2, 1], slow[1, 2] = slow[1, 2], 0.0
    assert between_nodes(cluster(bandwidths=tuple(map(tuple, slow))), 600.0) == 0.0


def test_messages_take_latency_and_size_over_bandwidth():
    made = cluster(latencies=((0, 1, 2), (3, 0, 4), (5, 6, 0)), bandwidth=2.0)
    expected = np.array([[0, 1, 2], [3, 0, 4], [5, 6, 0]]) + 4.0
    np.testing.assert_array_equal(message_seconds(made, 8.0), expected)


@pytest.mark.parametrize("value", [((1.0, 2.0),), ((1, 2, -3),) * 3, ("a", "b", "c")])
def test_what_is_no_matrix_of_links_is_refused(value):
    with pytest.raises(TimelineError, match=r"config\.cluster\.latencies: must be 3 rows of 3"):
        between_nodes(cluster(latencies=value), 1.0)


def sent(kind, nodes):
    """(from, to, bytes) of every message of an all-reduce of a byte over these nodes, up and down.

    A node of a tree sends to the one whose number lacks the last of its bits; a server is node 0.
    """
    n = len(nodes)
    if kind == "ring":
        return [(nodes[i], nodes[i - 1], 1 / n) for i in range(n) for _ in range(2 * (n - 1))]
    up = [(nodes[i], nodes[i & (i - 1) if kind == "tree" else 0], 1) for i in range(1, n)]
    return up + [(to, own, size) for own, to, size in up]


def most(every, nodes):
    """Bytes over the busiest node's link, the one way and the other."""
    own, to, size = np.array(every).T
    return [np.bincount(way.astype(int), size, nodes).max() for way in (own, to)]


@pytest.mark.parametrize("kind", ["ring", "tree", "server"])
@pytest.mark.parametrize("nodes", [2, 3, 5, 8, 13])
def test_the_busiest_link_is_that_of_the_messages_one_by_one(kind, nodes):
    made = Cluster(nodes=nodes, collective=kind)
    counted = most(sent(kind, list(range(nodes))), nodes)
    np.testing.assert_allclose(counted, busiest_link_bytes(made, 1.0), rtol=1e-12)
    assert busiest_link_bytes(Cluster(collective=kind), 1.0) == 0


def test_the_busiest_link_between_regions_is_in_both_rings():
    """8 nodes in 3 regions: of 3, 3 and 2, whose first nodes are also around the earth."""
    every = [
        each for ring in ([0, 1, 2], [3, 4, 5], [6, 7], [0, 3, 6]) for each in sent("ring", ring)
    ]
    made = Cluster(nodes=8, regions=3, bandwidth=1.0)
    assert busiest_link_bytes(made, 1.0) == pytest.approx(most(every, 8)[0])


@pytest.mark.parametrize("kind", ["ring", "tree", "server"])
def test_what_all_gather_is_what_takes_the_seconds(kind):
    """A ring hands on one message of every other; a root has all of them for each below it."""
    made = Cluster(nodes=8, collective=kind)
    assert (
        busiest_link_bytes(made, 1.0, gathered=True)
        == {"ring": 7, "tree": 3 * 8, "server": 7 * 8}[kind]
    )
