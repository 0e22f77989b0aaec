"""Messages and collectives of a network: bytes of the busiest link, closed forms, and refusals."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock.cluster import Cluster
from optdyn.clock.network import COLLECTIVES, all_reduce_among, between_nodes, busiest_link_bytes
from optdyn.clock.service import overlapped
from optdyn.clock.timeline import TimelineError
from tests.clock import by_hand


def cluster_of(**values):
    return Cluster(**{"nodes": 5, "latency": 0.1, "bandwidth": 50.0, **values})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ring", 8 * (0.1 + 600 / 5 / 50)),
        ("tree", 6 * (0.1 + 600 / 50)),
        ("server", 2 * (0.1 + 600 / 50)),
    ],
)
def test_collectives_have_closed_forms(kind, expected):
    assert between_nodes(cluster_of(collective=kind), 600.0) == pytest.approx(expected)
    alike = {"latencies": ((0.1,) * 5,) * 5, "bandwidths": ((50.0,) * 5,) * 5}
    matrices = cluster_of(collective=kind, **alike)
    assert between_nodes(matrices, 600.0) == pytest.approx(expected)


@given(st.sampled_from(COLLECTIVES), st.integers(1, 12), st.floats(0, 1e6))
def test_one_alone_sends_nothing_and_more_never_less(kind, nodes, size):
    cluster = cluster_of(nodes=nodes, collective=kind)
    found = [all_reduce_among(cluster, np.arange(n), size) for n in range(1, nodes + 1)]
    assert found[0] == 0
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(found))


@pytest.mark.parametrize("value", [((1.0, 2.0),), ((1, 2, -3),) * 3, ("a", "b", "c")])
def test_what_is_no_matrix_of_links_is_refused(value):
    with pytest.raises(TimelineError, match=r"config\.cluster\.latencies: must be 3 rows of 3"):
        between_nodes(Cluster(nodes=3, latencies=value), 1.0)


positive = st.floats(1e-3, 1e3)
fractions = st.floats(0, 1)


@given(positive, positive, fractions, fractions)
def test_what_overlap_hides(compute, exchange, one, other):
    """Never more than the exchange or that part of the computing, and the more overlap the more."""
    least, most = sorted((one, other))
    seconds = overlapped(compute, exchange, most)
    hidden = compute + exchange - seconds
    # Float64 rounding of sums of up to 2e3 seconds.
    assert -1e-12 < hidden - min(exchange, most * compute) < 1e-12 * (compute + exchange) + 1e-12
    assert seconds <= overlapped(compute, exchange, least)
    assert overlapped(compute, exchange, 0.0) == compute + exchange
    assert overlapped(compute, 0.0, most) == compute


def most(rings, kind, nodes):
    """Bytes over the busiest node's link, the one way and the other, of messages one by one."""
    rounds = [turn for ring in rings for turn in by_hand.sent(kind, ring)]
    one, to, size = np.array([message for turn in rounds for message in turn]).T
    return [np.bincount(way.astype(int), size, nodes).max() for way in (one, to)]


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize("nodes", [2, 3, 5, 8, 13])
def test_the_busiest_link_is_that_of_the_messages_one_by_one(kind, nodes):
    counted = most([range(nodes)], kind, nodes)
    cluster = Cluster(nodes=nodes, collective=kind)
    np.testing.assert_allclose(counted, busiest_link_bytes(cluster, 1.0), rtol=1e-12)
    assert busiest_link_bytes(Cluster(collective=kind), 1.0) == 0


def test_the_busiest_link_between_regions_is_in_both_rings():
    """8 nodes in 3 regions: of 3, 3 and 2, whose first nodes are also around the earth."""
    rings = [0, 1, 2], [3, 4, 5], [6, 7], [0, 3, 6]
    cluster = Cluster(nodes=8, regions=3, bandwidth=1.0)
    assert busiest_link_bytes(cluster, 1.0) == pytest.approx(most(rings, "ring", 8)[0])


@pytest.mark.parametrize(("kind", "times"), [("ring", 7), ("tree", 3 * 8), ("server", 7 * 8)])
def test_what_all_gather_is_what_takes_the_seconds(kind, times):
    """A ring hands on one message of every other; a root has all of them for each below it."""
    assert busiest_link_bytes(Cluster(nodes=8, collective=kind), 1.0, gathered=True) == times
