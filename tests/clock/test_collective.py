"""What a network does to an update is the cluster's, the same for every method that makes it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock.arrivals import compute_groups
from optdyn.clock.cluster import Cluster
from optdyn.clock.network import COLLECTIVES, all_reduce_among, between_nodes, group_exchange
from optdyn.clock.service import Exponential, LogNormal
from tests.clock.recorded import config_of, line_of

SLOW = {"latency": 0.01, "bandwidth": 1e5}
FAR = tuple(tuple(0.01 * abs(i - j) for j in range(4)) for i in range(4))
CLUSTERS = {
    "free": {"nodes": 4},
    "slow": {"nodes": 4, **SLOW},
    "nodes": {"nodes": 2, "devices_per_node": 4, **SLOW, "local_latency": 1e-3}
    | {"local_bandwidth": 1e6},
    "overlapping": {"nodes": 4, **SLOW, "overlap": 0.5, "speeds": (1.0, 2.0, 3.0, 4.0)},
    "lognormal": {"nodes": 8, **SLOW, "service": LogNormal(2.0)},
    "tree": {"nodes": 6, **SLOW, "collective": "tree"},
    "server": {"nodes": 3, "devices_per_node": 2, **SLOW, "collective": "server"},
    "unlike links": {"nodes": 4, "latencies": FAR, "bandwidth": 1e5},
}
# Each is synchronous SGD, at what it sends and when.
SAME = {
    "model_averaging": {"method.period": 1},
    "diloco": {"method.period": 1, "method.outer_learning_rate": 1.0}
    | {"method.outer_momentum": 0.0},
    "slowmo": {"method.period": 1, "method.slow_momentum": 0.0},
    "daso": {"method.warmup_epochs": 100},
    "asynchronous": {"method.groups": 1},
    "dynamic_batch": {"method.adapt": False},
}


def seconds(name, cluster, **values):
    own = {"nodes": 1, "devices_per_node": 1, "speeds": (), "service": Exponential(), **cluster}
    own = {f"cluster.{key}": value for key, value in own.items()}
    return line_of(config_of(name, **values, **own, batch_size=48)).seconds


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("where", CLUSTERS)
def test_one_algorithm_has_one_clock(where, name):
    cluster = CLUSTERS[where]
    if name == "asynchronous" and "latencies" in cluster:
        pytest.skip("links of nodes are not those of groups to a server")
    if name == "dynamic_batch" and "speeds" in cluster:  # whose shares are whole examples
        assert 48 % len(cluster["speeds"]) == 0
    # Sums of 40 float64 numbers in another order.
    np.testing.assert_allclose(
        seconds(name, cluster, **SAME[name]), seconds("sync", cluster), rtol=1e-13
    )


def test_a_straggler_does_not_slow_the_network():
    """The exchange is the same in every update, however long its slowest worker computes."""
    free, slow = (
        np.diff(seconds("sync", {"nodes": 8, "service": Exponential(), **network}), prepend=0)
        for network in ({}, SLOW)
    )
    size = 14 * (0.01 + 1000 / 8 / 1e5)
    np.testing.assert_allclose(slow - free, size, rtol=1e-10)


def test_nor_the_way_of_a_group_to_its_server():
    """One worker a group: its services are those of a free network, and two messages each."""
    cluster = Cluster(nodes=2, service=Exponential())
    size = {"groups": 2, "steps": 400, "batch_size": 8, "update_bytes": 1000, "seed": 3}
    free, slow = compute_groups(cluster, **size), compute_groups(cluster.with_(**SLOW), **size)
    for group in range(2):
        services = [np.diff(line.seconds[line.worker == group]) for line in (free, slow)]
        n = min(map(len, services))
        round_trip_bytes = 2 * (0.01 + 1000 / 1e5)
        np.testing.assert_allclose(services[1][:n] - services[0][:n], round_trip_bytes, rtol=1e-8)


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
def test_collectives_by_hand(kind, expected):
    assert between_nodes(cluster_of(collective=kind), 600.0) == pytest.approx(expected)
    alike = {"latencies": ((0.1,) * 5,) * 5, "bandwidths": ((50.0,) * 5,) * 5}
    matrices = cluster_of(collective=kind, **alike)
    assert between_nodes(matrices, 600.0) == pytest.approx(expected)


@given(st.sampled_from(COLLECTIVES), st.integers(1, 12), st.floats(0, 1e6))
def test_one_alone_sends_nothing_and_more_never_less(kind, nodes, size):
    cluster = cluster_of(nodes=nodes, collective=kind)
    found = [all_reduce_among(cluster, np.arange(n), size) for n in range(1, nodes + 1)]
    assert found[0] == 0 or kind == "server"
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(found))


def test_a_tree_goes_over_its_own_links_only():
    """0 <- 1, 0 <- 2, 2 <- 3, 0 <- 4: a slow link from 1 to 2 is none of them."""
    links = np.full((5, 5), 50.0)
    links[1, 2] = 1.0
    tree = cluster_of(bandwidths=tuple(map(tuple, links)), collective="tree")
    assert between_nodes(tree, 600.0) == pytest.approx(6 * (0.1 + 600 / 50))
    links[3, 2] = 1.0
    tree = tree.with_(bandwidths=tuple(map(tuple, links)))
    assert between_nodes(tree, 600.0) == pytest.approx(6 * (0.1 + 600 / 1))


def test_groups_add_up_before_one_of_them_sends():
    """Of 4 nodes of 2: alone, inside a node, and over two nodes."""
    inside = {"local_latency": 0.01, "local_bandwidth": 1000.0}
    cluster = cluster_of(nodes=4, devices_per_node=2, **inside)
    server = 2 * (0.1 + 600 / 50)
    local = 2 * (0.01 + 300 / 1000) + 0.01 + 600 / 1000  # a ring of two, and what one hands on
    between = 2 * (0.1 + 300 / 50)
    np.testing.assert_allclose(group_exchange(cluster, 8, 600.0), server)
    np.testing.assert_allclose(group_exchange(cluster, 4, 600.0), server + local)
    np.testing.assert_allclose(group_exchange(cluster, 2, 600.0), server + local + between)
    np.testing.assert_allclose(group_exchange(cluster, 2, 600.0, sent=False), local + between)
    served = cluster.with_(collective="server")
    np.testing.assert_allclose(group_exchange(served, 2, 600.0), server)
