"""Timelines held against one another, whatever they decide."""

import math

import jax
import numpy as np
from hypothesis import strategies as st
from scipy import stats

from optdyn.base.ranges import SMALL
from optdyn.clock.timeline import entries_at


def numbers(most):
    """Of a config: 0, or of a size that it may have."""
    return st.just(0.0) | st.floats(SMALL, most)


def p_of_geometric(tau, g):
    """The p-value of P(tau = k) = (1/g) (1 - 1/g)^k, of draws that are independent."""
    # One bin a value while 50 or more are expected, then one bin for the tail.
    last = int(math.log(50 * g / len(tau)) / math.log1p(-1 / g))
    pmf = (1 / g) * (1 - 1 / g) ** np.arange(last)
    expected = len(tau) * np.append(pmf, 1 - pmf.sum())
    observed = np.bincount(np.minimum(tau, last), minlength=last + 1)
    return stats.chisquare(observed, expected).pvalue


def arrays(line):
    """All but the number of slots."""
    return line._replace(slots=None)


def same_arrivals(line, other):
    """Two clocks that add up the same draws, each in an order of its own."""
    np.testing.assert_array_equal(line.worker, other.worker)
    np.testing.assert_array_equal(line.staleness, other.staleness)
    np.testing.assert_allclose(line.seconds, other.seconds, rtol=1e-12)


def begins_with(long, short):
    """The longer of two timelines begins with the shorter one, to the bit."""
    steps, both = len(short.seconds), (arrays(long), arrays(short))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:steps], b), *both)


def versions_read(read, write, slots):
    """Version in the slot that each update reads; update t writes version t + 1."""
    table, versions = [0] * slots, []
    for t, (r, w) in enumerate(zip(read, write, strict=True)):
        versions.append(table[r])
        table[w] = t + 1
    return np.array(versions)


def check(timeline, groups, steps):
    """What every timeline must satisfy, whatever its law: replayed slot by slot."""
    for array in (timeline.worker, timeline.staleness, *timeline.plan[:3]):
        assert array.shape == (steps,) and array.dtype == np.int32 and array.min() >= 0
    assert timeline.seconds.shape == (steps,) and timeline.seconds.dtype == np.float64
    assert timeline.worker.max() < groups
    assert max(table.max() for table in timeline.plan[1:3]) < timeline.slots
    assert timeline.seconds[0] >= 0 and np.all(np.diff(timeline.seconds) >= 0)
    held = versions_read(timeline.plan.read, timeline.plan.write, timeline.slots)
    np.testing.assert_array_equal(held, np.arange(steps) - timeline.staleness)


def replica(many, i):
    """One of the replicas of a timeline."""
    return entries_at(arrays(many), i)._replace(slots=many.slots)
