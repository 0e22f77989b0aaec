"""Links between nodes: the one number is a matrix of it, and the slowest link decides."""

import numpy as np
import pytest

from optdyn.setup import Cluster
from optdyn.timeline.base import TimelineError
from optdyn.timeline.network import all_reduce, between_nodes, messages


def cluster(**values):
    return Cluster(nodes=3, **values)


def test_a_matrix_of_the_one_number_is_that_number():
    one = cluster(latency=0.1, bandwidth=50.0)
    same = cluster(latencies=((0.1,) * 3,) * 3, bandwidths=((50.0,) * 3,) * 3)
    assert between_nodes(one, 600.0) == pytest.approx(between_nodes(same, 600.0))
    assert between_nodes(one, 600.0) == all_reduce(3, 600.0, 50.0, 0.1)


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
    np.testing.assert_array_equal(messages(made, 8.0), expected)


@pytest.mark.parametrize("value", [((1.0, 2.0),), ((1, 2, -3),) * 3, ("a", "b", "c")])
def test_what_is_no_matrix_of_links_is_refused(value):
    with pytest.raises(TimelineError, match=r"config\.cluster\.latencies: must be 3 rows of 3"):
        between_nodes(cluster(latencies=value), 1.0)
