"""An exchange behind the backward pass, `config.cluster.overlap`: limits, and times by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock.arrivals import compute_groups
from optdyn.clock.cluster import Cluster
from optdyn.clock.meetings import synchronous
from optdyn.clock.service import Constant, overlapped
from optdyn.methods.daso import DASO, clock
from optdyn.methods.dynamic_batch import DynamicBatch, clocked
from tests.values import as_law

LAWS = ("constant", "exponential", "lognormal", "gamma")
STEPS, PER_EPOCH, BATCH, BYTES = 60, 15, 8, 1000
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


def cluster_of(**values):
    values = {"nodes": 4, "devices_per_node": 2, "seconds_per_example": 1.0, **values}
    return Cluster(**{"bandwidth": 2000.0, "latency": 0.01, **values})


def daso_of(cluster, **values):
    method = DASO(**{"warmup_epochs": 0, "cooldown_epochs": 0, **values})
    run = {"steps": STEPS, "batch_size": BATCH, "update_bytes": BYTES, "seed": 3}
    return clock(cluster, method, **run, steps_per_epoch=PER_EPOCH, epoch_losses=[1.0] * 3)


def clocks(cluster):
    """Seconds of every kind of run that exchanges gradients."""
    run = {"steps": STEPS, "batch_size": BATCH, "update_bytes": BYTES, "seed": 3}
    shares, _ = clocked(cluster, DynamicBatch(), steps_per_epoch=PER_EPOCH, **run)
    return {
        "one group": compute_groups(cluster, groups=1, **run).seconds,
        "four groups": compute_groups(cluster, groups=4, **run).seconds,
        "shares": shares.seconds,
        "rings": synchronous(cluster, **run).seconds,
        "blocking": daso_of(cluster, warmup_epochs=4).seconds,
        "daso": daso_of(cluster).seconds,
    }


@pytest.mark.parametrize("law", LAWS)
def test_a_free_network_has_nothing_to_hide(law):
    free = {"service": as_law(law, 0.3), "bandwidth": 0.0, "latency": 0.0}
    with_, without = (clocks(cluster_of(overlap=overlap, **free)) for overlap in (0.8, 0.0))
    for name, seconds in with_.items():
        np.testing.assert_array_equal(seconds, without[name])


@pytest.mark.parametrize("law", LAWS)
def test_computing_takes_its_time_whatever_is_hidden(law):
    """More overlap is never later, and never earlier than without a network."""
    every = [
        clocks(cluster_of(service=as_law(law, 0.3), overlap=overlap)) for overlap in (0.0, 0.4, 1.0)
    ]
    free = clocks(cluster_of(service=as_law(law, 0.3), bandwidth=0.0, latency=0.0))
    for name, least in free.items():
        none, some, all_ = (each[name] for each in every)
        if name != "four groups":  # which arrive in another order
            assert np.all(some <= none * (1 + 1e-13))  # rounding of sums of 60
            assert some[-1] < none[-1] - 1  # four of DASO's updates block, 0.4 s of each hidden
        assert np.all(least * (1 - 1e-13) <= all_)


def test_a_constant_update_by_hand():
    """A second of computing and a ring of four nodes, of which 0.4 s are hidden.

    That is 6 messages of 250 bytes, 6 (0.01 + 0.125) = 0.81 s. Four groups, a node each, hide all
    that they send to the server, 2 (0.01 + 0.5) s, behind 0.4 of four seconds.
    """
    cluster = cluster_of(service=Constant(), overlap=0.4)
    made = clocks(cluster)
    for name in ("one group", "shares", "rings"):
        np.testing.assert_allclose(made[name], 1.41 * np.arange(1, STEPS + 1), rtol=1e-13)
    rounds = 1 + np.arange(STEPS) // 4  # all four arrive together
    np.testing.assert_allclose(made["four groups"], 4 * rounds, rtol=1e-13)


def test_both_rings_share_what_may_be_hidden():
    """The ring inside the node, 2 (0.1 + 0.05) s for two devices, comes first.

    In the end one device hands on what it has, in 0.1 + 0.1 s.
    """
    inside = {"local_latency": 0.1, "local_bandwidth": 10_000.0}
    for overlap, update in ((0.0, 1 + 0.3 + 0.81), (0.2, 0.8 + 0.3 + 0.81), (1.0, 0.3 + 0.81)):
        cluster = cluster_of(service=Constant(), overlap=overlap, **inside)
        expected = (max(update, 1.0) + 0.2) * np.arange(1, STEPS + 1)
        np.testing.assert_allclose(clocks(cluster)["rings"], expected, rtol=1e-13)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("overlap", [0.3, 0.9])
def test_blocking_daso_is_synchronous_training_with_overlap_too(law, overlap):
    cluster = cluster_of(service=as_law(law, 0.3), overlap=overlap, devices_per_node=1)
    made = clocks(cluster)
    # Sums of 60 float64 numbers in another order.
    np.testing.assert_allclose(made["blocking"], made["rings"], rtol=1e-13)
    assert made["daso"][-1] <= made["rings"][-1]
