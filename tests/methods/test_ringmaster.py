"""Ringmaster ASGD: the paper's algorithm in plain Python, its limit, and what is dropped."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock.arrivals import Work, arrivals, event_arrivals
from optdyn.clock.versions import Policy
from optdyn.train import trainer
from tests.clock.lines import begins_with, same_arrivals
from tests.clock.test_slots import versions_read
from tests.clock.test_stale_synchronous import LAWS
from tests.values import with_values

BOUND = st.integers(1, 6)
SIZES = st.integers(1, 60), st.integers(0, 2**32 - 1)  # steps and seed
# Whole seconds, of which sums are exact, so that constant services tie where they should.
drawn = given(
    st.sampled_from(list(LAWS)), st.lists(st.integers(1, 12), min_size=1, max_size=6), BOUND, *SIZES
)


def made(law, means, bound, steps, seed):
    work = Work(np.array(means, float)[:, None])
    return event_arrivals(seed, LAWS[law], work, steps, Policy(delay_bound=bound))


def algorithm(services, bound, steps):
    """The paper's method: rows (worker, delay, seconds) and how many gradients were ignored."""
    k, ignored, rows = 0, 0, []
    taken_at = [0] * len(services)  # the k of the point that each worker computes at
    ends = [next(own) for own in services]
    while k < steps:
        i = min(range(len(ends)), key=lambda i: (ends[i], i))
        if k - taken_at[i] < bound:
            rows.append((i, k - taken_at[i], ends[i]))
            k += 1
        else:
            ignored += 1
        taken_at[i] = k
        ends[i] += next(services[i])
    return rows, ignored


def services(law, means, steps, seed):
    """Those of every group. Between two arrivals of one that are dropped there is an update."""
    for group, mean in enumerate(means):
        draws = LAWS[law](np.random.default_rng((seed, group)), (2 * steps + 2, 1))
        yield iter((draws[:, 0] * mean).tolist())


@drawn
def test_it_is_the_algorithm_of_the_paper(law, means, bound, steps, seed):
    """Workers in the same order, the same staleness, and the same seconds to the bit."""
    line = made(law, means, bound, steps, seed)
    rows, ignored = algorithm(list(services(law, means, steps, seed)), bound, steps)
    worker, delay, seconds = zip(*rows, strict=True)
    np.testing.assert_array_equal(line.worker, worker)
    np.testing.assert_array_equal(line.staleness, delay)
    np.testing.assert_array_equal(line.seconds, seconds)
    assert line.plan.dropped.sum() == ignored


@drawn
def test_nothing_applied_is_as_old_as_the_bound(law, means, bound, steps, seed):
    """And each slot holds the version that the staleness says, with a slot a group."""
    line = made(law, means, bound, steps, seed)
    assert line.staleness.max() < bound and line.slots == len(means)
    held = versions_read(line.plan.read, line.plan.write, line.slots)
    np.testing.assert_array_equal(held, np.arange(steps) - line.staleness)
    assert max(line.plan.read.max(), line.plan.write.max()) < line.slots


@drawn
def test_a_longer_run_begins_with_the_shorter(law, means, bound, steps, seed):
    begins_with(*(made(law, means, bound, n, seed) for n in (steps + 30, steps)))


@given(st.sampled_from(list(LAWS)), st.lists(st.integers(1, 12), min_size=1, max_size=6), *SIZES)
def test_what_nobody_reaches_drops_nothing(law, means, steps, seed):
    """Staleness is below the number of updates, so as large a bound is none."""
    line = made(law, means, steps, steps, seed)
    free = arrivals(seed, LAWS[law], Work(np.array(means, float)[:, None]), steps)
    assert not line.plan.dropped.any()
    same_arrivals(line, free)


RUN = {"method.name": "ringmaster", "method.groups": 4, "cluster.service.name": "exponential"}


@pytest.mark.parametrize("outer", ["", "daso+"])
def test_without_a_bound_its_timeline_is_that_of_asynchronous_sgd(config, outer):
    """To the bit, with a network, also inside nodes."""
    values = {
        "cluster.service.name": "exponential",
        "cluster.devices_per_node": 4,
        "batch_size": 16,
    }
    values |= {"cluster.latency": 1e-3, "cluster.local_latency": 1e-3}
    one, other = (
        trainer.prepare(
            with_values(config(values), {"method.name": outer + name, "method.groups": 4})
        ).timeline
        for name in ("ringmaster", "asynchronous")
    )
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_the_summary_says_how_many_were_dropped(config, tmp_path):
    """Only where there is a bound, and of those before the last update."""
    chosen = config(RUN | {"method.delay_bound": 2})
    summary = trainer.train(chosen, tmp_path / "a")
    line = trainer.prepare(chosen).timeline
    assert summary["dropped_arrivals"] == line.plan.dropped.sum() > 0
    assert len(summary["staleness_histogram"]) <= 2 and sum(summary["staleness_histogram"]) == 60
    assert "dropped_arrivals" not in trainer.train(config(RUN), tmp_path / "b")


def test_a_dropped_arrival_takes_its_time_and_its_exchange(config):
    """Groups of 1 and 10 seconds an update, R = 2: all that the slow one has is dropped.

    Whatever it had computed, it begins again when it arrives, after as long as any other.
    """
    values = {**RUN, "cluster.service.name": "constant", "cluster.latency": 0.25}
    values |= {"method.groups": 2, "cluster.nodes": 2, "cluster.speeds": (1.0, 0.1)}
    values |= {"method.delay_bound": 2, "batch_size": 1, "cluster.seconds_per_example": 1.0}
    line = config(values).timeline(steps_per_epoch=10, update_bytes=0)
    free = config({**values, "method.delay_bound": 0})
    every = free.timeline(steps_per_epoch=10, update_bytes=0)
    slow = every.seconds[every.worker == 1]
    assert np.all(line.worker == 0)
    before = np.flatnonzero(line.plan.dropped[:, 1])
    np.testing.assert_array_equal(line.plan.dropped[:, 0], False)
    # Before update t: after that of t - 1, and not after it.
    for t, seconds in zip(before, slow, strict=False):
        assert line.seconds[t - 1] <= seconds <= line.seconds[t]
    assert len(before) > 3
