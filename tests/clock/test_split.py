"""A batch split over unequal workers: `config.cluster.split`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock.cluster import Cluster
from optdyn.clock.meetings import compute_means
from optdyn.clock.timeline import TimelineError

speeds_of = st.lists(st.floats(0.05, 20), min_size=1, max_size=8)


def seconds(split, speeds, batch, groups=1):
    """(groups, k) seconds of the workers' shares, at a second an example on one of speed 1."""
    speeds = tuple(speeds)
    cluster = Cluster(nodes=len(speeds), speeds=speeds, split=split, seconds_per_example=1.0)
    return compute_means(cluster, groups, batch)


@given(st.integers(1, 8), st.integers(1, 50), st.floats(0.1, 10))
def test_equal_speeds_make_equal_shares(workers, each, speed):
    both = [
        seconds(split, [speed] * workers, each * workers) for split in ("equal", "proportional")
    ]
    # The same quotient but for the order of two float64 operations.
    np.testing.assert_allclose(*both, rtol=1e-15)


@given(speeds_of, st.integers(1, 40))
def test_proportional_shares_are_never_slower_than_equal_ones(speeds, each):
    """Where equal shares are whole, m = B / k on the slowest worker, of speed s.

    A share of n > m s_i / s for a worker i would mean that its quota was rounded up; then the
    quotas of all others below m have larger remainders, everybody has m or more, and the sum is
    above B.
    """
    batch = each * len(speeds)
    slowest = [seconds(s, speeds, batch).max() for s in ("proportional", "equal")]
    # Rounding of a few float64 operations where the two are equal.
    assert slowest[0] <= slowest[1] * (1 + 1e-14)


@given(speeds_of, st.integers(8, 400))
def test_all_end_within_an_example_of_the_ideal(speeds, batch):
    """B / (sum of speeds) if examples could be divided; a worker has one more or less than that."""
    found = seconds("proportional", speeds, batch)[0] * speeds
    quota = batch * np.array(speeds) / np.sum(speeds)
    # A worker that was lifted to one example takes it from the others, which only lowers theirs.
    assert np.all(found < np.maximum(quota, 1) + 1)
    # Products of at most 8,000: whole numbers but for rounding.
    assert found.sum() == pytest.approx(batch, rel=1e-12)
    np.testing.assert_allclose(found, np.round(found), rtol=1e-12)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 20))
def test_whole_shares_end_together(speeds, each):
    """Speeds 1, 2, 5 and a batch of 8 n: n, 2 n and 5 n examples, n seconds each."""
    found = seconds("proportional", speeds, each * sum(speeds))
    # One product and one quotient, of numbers that float64 holds.
    np.testing.assert_allclose(found, each, rtol=1e-14)


def test_a_worker_without_an_example_is_refused():
    with pytest.raises(TimelineError, match="batch of 3 examples: must be at least 4"):
        seconds("proportional", [1, 1, 1, 9], 3)
