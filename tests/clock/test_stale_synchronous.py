"""Bounded staleness: its two limits, the bound itself, and what is read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.clock.arrivals import Work, arrivals, event_arrivals
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Constant, Exponential, Gamma, LogNormal
from optdyn.clock.versions import Policy
from optdyn.experiment import Experiment
from optdyn.methods.asynchronous import Asynchronous
from tests.clock.lines import begins_with, same_arrivals
from tests.clock.test_slots import versions_read

LAWS = {
    "constant": Constant().draw,
    "exponential": Exponential().draw,
    "lognormal": LogNormal(1.5).draw,
    "gamma": Gamma(1.5).draw,
}
drawn = given(
    st.sampled_from(list(LAWS)),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=5),
    st.integers(0, 4),
    st.integers(1, 80),
    st.integers(0, 2**32 - 1),
)


def made(law, means, bound, steps, seed):
    work = Work(np.array(means)[:, None])
    return event_arrivals(seed, LAWS[law], work, steps, Policy(bound=bound))


def clocks(timeline, groups):
    """(steps + 1, groups) updates of every group before each event."""
    done = np.arange(groups) == timeline.worker[:, None]
    return np.concatenate([np.zeros((1, groups), int), np.cumsum(done, axis=0)])


@settings(deadline=None)  # a busy machine is not an error
@drawn
def test_without_a_bound_nobody_waits(law, means, bound, steps, seed):
    reference = arrivals(seed, LAWS[law], Work(np.array(means)[:, None]), steps)
    same_arrivals(made(law, means, np.inf, steps, seed), reference)


@settings(deadline=None)
@drawn
def test_nobody_is_further_ahead_than_the_bound(law, means, bound, steps, seed):
    """A group at clock c began while the slowest had c - s, and so delivers c + 1 at most then."""
    every = clocks(made(law, means, bound, steps, seed), len(means))
    assert (every.max(axis=1) - every.min(axis=1)).max() <= bound + 1


@settings(deadline=None)
@drawn
def test_all_updates_older_than_the_bound_are_seen(law, means, bound, steps, seed):
    """The guarantee of the paper: a gradient of clock c has all updates of clocks below c - s."""
    timeline = made(law, means, bound, steps, seed)
    every = clocks(timeline, len(means))
    for t, (worker, staleness) in enumerate(zip(timeline.worker, timeline.staleness, strict=True)):
        assert every[t - staleness].min() >= every[t][worker] - bound


@settings(deadline=None)
@drawn
def test_slots_hold_what_the_staleness_says(law, means, bound, steps, seed):
    timeline = made(law, means, bound, steps, seed)
    assert timeline.slots == len(means)
    held = versions_read(timeline.plan.read, timeline.plan.write, timeline.slots)
    np.testing.assert_array_equal(held, np.arange(steps) - timeline.staleness)
    assert np.all(np.diff(timeline.seconds) >= 0)


@settings(deadline=None)
@drawn
def test_a_longer_run_begins_with_the_shorter(law, means, bound, steps, seed):
    short, long = (made(law, means, bound, n, seed) for n in (steps, steps + 30))
    begins_with(long, short)


def test_bound_0_is_a_barrier_after_every_round():
    """Every round has one update of each group and ends with the slowest."""
    means = [1.0, 2.0, 5.0]
    timeline = made("constant", means, 0, 12, 0)
    np.testing.assert_array_equal(timeline.worker, np.tile([0, 1, 2], 4))
    np.testing.assert_array_equal(timeline.staleness, np.tile([0, 1, 2], 4))
    np.testing.assert_array_equal(timeline.seconds[2::3], 5.0 * np.arange(1, 5))


@pytest.mark.parametrize("bound", [0, 3])
def test_a_straggler_holds_up_all_in_the_long_run(bound):
    """Its rate is everyone's: n rounds take n of its services, whatever the bound."""
    timeline = made("constant", [1.0, 1.0, 10.0], bound, 3000, 0)
    assert np.bincount(timeline.worker).min() >= 1000 - bound - 1
    assert timeline.seconds[-1] == pytest.approx(10_000, rel=0.01)  # but for the first rounds


def test_the_config_asks_for_it():
    """With bound 0 a gradient misses at most one update of each other group."""
    cluster, stalest = Cluster(nodes=4, speeds=(1.0, 1.0, 1.0, 0.1)), {}
    for bound in (-1, 0):
        method = Asynchronous(groups=4, staleness_bound=bound)
        config = Experiment(method=method, cluster=cluster)
        stalest[bound] = config.timeline(steps_per_epoch=10, update_bytes=0).staleness.max()
    assert stalest[0] <= 3 < stalest[-1]
