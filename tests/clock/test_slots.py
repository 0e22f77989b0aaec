"""What every timeline must satisfy, whatever its law: replayed slot by slot."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.clock.arrivals import compute_groups
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import DRAWN
from optdyn.clock.timeline import from_arrivals
from tests.clock.lines import begins_with, numbers, replica
from tests.values import as_law


@st.composite
def clusters(draw):
    """A cluster and its groups: any law but the recorded one, any speeds, with or without delay."""
    groups, k = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    cluster = Cluster(
        nodes=groups,
        devices_per_node=k,
        service=as_law(draw(st.sampled_from((*DRAWN, "geometric"))), draw(numbers(3))),
        speeds=draw(
            st.just(())
            | st.lists(st.floats(0.1, 10), min_size=groups * k, max_size=groups * k).map(tuple)
        ),
        latency=draw(st.sampled_from([0.0, 0.5])),
    )
    return cluster, groups


def versions_read(read, write, slots):
    """Version in the slot that each update reads; update t writes version t + 1."""
    table, versions = [0] * slots, []
    for t, (r, w) in enumerate(zip(read, write, strict=True)):
        versions.append(table[r])
        table[w] = t + 1
    return np.array(versions)


def check(timeline, groups, steps):
    for array in (timeline.worker, timeline.staleness, *timeline.plan[:3]):
        assert array.shape == (steps,) and array.dtype == np.int32 and array.min() >= 0
    assert timeline.seconds.shape == (steps,) and timeline.seconds.dtype == np.float64
    assert timeline.worker.max() < groups
    assert max(table.max() for table in timeline.plan[1:3]) < timeline.slots
    assert timeline.seconds[0] >= 0 and np.all(np.diff(timeline.seconds) >= 0)
    held = versions_read(timeline.plan.read, timeline.plan.write, timeline.slots)
    np.testing.assert_array_equal(held, np.arange(steps) - timeline.staleness)


@settings(deadline=None)  # a busy machine is not an error
@given(clusters(), st.integers(1, 80), st.integers(0, 2**32 - 1))
def test_slots_hold_what_the_staleness_says(drawn, steps, seed):
    cluster, groups = drawn
    timeline = compute_groups(cluster, groups=groups, steps=steps, batch_size=8, seed=seed)
    check(timeline, groups, steps)


@settings(deadline=None)
@given(clusters(), st.integers(1, 40), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_every_replica_starts_afresh(drawn, steps, replicas, seed):
    cluster, groups = drawn
    many = compute_groups(
        cluster, groups=groups, steps=steps, batch_size=8, seed=seed, replicas=replicas
    )
    assert many.worker.shape == (replicas, steps)
    for i in range(replicas):
        check(replica(many, i), groups, steps)


@settings(deadline=None)
@given(clusters(), st.integers(1, 60), st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_a_longer_run_begins_with_the_shorter(drawn, steps, more, seed):
    cluster, groups = drawn
    short, long = (
        compute_groups(cluster, groups=groups, steps=n, batch_size=8, seed=seed)
        for n in (steps, steps + more)
    )
    begins_with(long, short)
    assert short.slots == long.slots


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=50), st.integers(1, 3))
def test_any_order_of_arrivals_is_replayed(order, replicas):
    """Also orders in which some worker never arrives, and several at once along a first axis."""
    worker = np.array([np.roll(order, shift) for shift in range(replicas)])
    timeline = from_arrivals(worker, np.cumsum(np.ones_like(worker), axis=-1), 5)
    for i in range(replicas):
        held = versions_read(timeline.plan.read[i], timeline.plan.write[i], 5)
        np.testing.assert_array_equal(held, np.arange(len(order)) - timeline.staleness[i])
