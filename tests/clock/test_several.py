"""Updates of several arrivals: expected times, who waits and who is dropped, and what is read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.clock.arrivals import Work, arrivals, event_arrivals
from optdyn.clock.service import Exponential
from optdyn.clock.versions import WAITING, Policy
from tests.clock.lines import begins_with, same_arrivals
from tests.clock.test_stale_synchronous import LAWS

drawn = given(
    st.sampled_from(WAITING),
    st.sampled_from(list(LAWS)),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(0, 2**32 - 1),
)


def made(waiting, law, means, k, steps, seed):
    k = k if "batch" in waiting else min(k, len(means))
    work = Work(np.array(means)[:, None])
    return event_arrivals(seed, LAWS[law], work, steps, Policy(k, waiting))


@pytest.mark.parametrize("waiting", WAITING)
def test_expected_seconds_of_memoryless_groups(waiting):
    """Dutta et al.: n - i groups are still at work after i of a round, or n always."""
    n, k, rate, steps = 8, 3, 2.0, 4000
    work = Work(np.full((n, 1), 1 / rate))
    line = event_arrivals(0, Exponential().draw, work, steps, Policy(k, waiting))
    between = np.diff(line.seconds, prepend=0.0)
    at_work = np.full(k, n) if "batch" in waiting else n - np.arange(k)
    expected = (1 / (rate * at_work)).sum()
    if waiting == "k_sync":
        harmonic = np.cumsum(1 / np.arange(1, n + 1))
        assert expected == pytest.approx((harmonic[n - 1] - harmonic[n - k - 1]) / rate)
    # Four standard errors of the mean of independent intervals, as memoryless ones are.
    assert abs(between.mean() - expected) < 4 * between.std() / steps**0.5


@settings(deadline=None)  # a busy machine is not an error
@drawn
def test_slots_hold_what_the_staleness_says(waiting, law, means, k, steps, seed):
    line = made(waiting, law, means, k, steps, seed)
    read = line.plan.read.reshape(steps, -1)
    stale = line.staleness.reshape(steps, -1)
    assert line.plan.write.max() < line.slots <= len(means) and read.max() < line.slots
    table = [0] * line.slots
    for t in range(steps):
        np.testing.assert_array_equal(t - stale[t], [table[slot] for slot in read[t]])
        table[line.plan.write[t]] = t + 1
    assert np.all(np.diff(line.seconds) >= 0) and stale.min() >= 0
    if waiting.endswith("_sync"):
        assert not stale.any()


@settings(deadline=None)
@drawn
def test_a_longer_run_begins_with_the_shorter(waiting, law, means, k, steps, seed):
    short, long = (made(waiting, law, means, k, n, seed) for n in (steps, steps + 20))
    begins_with(long, short)


@settings(deadline=None)
@drawn
def test_one_arrival_without_waiting_is_asynchronous(waiting, law, means, k, steps, seed):
    free = arrivals(seed, LAWS[law], Work(np.array(means)[:, None]), steps)
    same_arrivals(made("k_batch_async", law, means, 1, steps, seed), free)


@settings(deadline=None)
@drawn
def test_who_waits_for_all_is_synchronous(waiting, law, means, k, steps, seed):
    """With K = n nobody is dropped and nobody is late, whether the others go on or not."""
    both = [made(name, law, means, len(means), steps, seed) for name in ("k_sync", "k_async")]
    assert not both[1].staleness.any()
    np.testing.assert_array_equal(both[0].seconds, both[1].seconds)
    services = [
        LAWS[law](np.random.default_rng((seed, group)), (steps, 1))[:, 0] * mean
        for group, mean in enumerate(means)
    ]
    np.testing.assert_allclose(both[0].seconds, np.cumsum(np.max(services, axis=0)), rtol=1e-12)


def test_a_straggler_is_waited_for_or_not():
    """Of groups that take 1, 1 and 10 seconds, two arrivals an update."""
    means = [1.0, 1.0, 10.0]
    ends = {name: made(name, "constant", means, 2, 100, 0).seconds[-1] for name in WAITING}
    assert ends["k_sync"] == ends["k_batch_sync"] == 100
    # 20 of 200 arrivals are the straggler's, and for each of these one of the fast need not be.
    assert ends["k_batch_async"] == pytest.approx(200 / 2.1, abs=1)
    stale = made("k_async", "constant", means, 2, 100, 0).staleness
    assert stale.max() == 10 and ends["k_async"] == 100  # it counts for the tenth update after
