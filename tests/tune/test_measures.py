"""What the planner makes of measurements: the mini-batch that fits, and intervals of seconds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.plan import planner
from optdyn.plan.planner import PlanError


def counted(bytes_of):
    """The function, and the mini-batches that it was called with."""
    calls = []
    return lambda b: calls.append(b) or bytes_of(b), calls


@settings(max_examples=50)
@given(
    st.integers(1, 10**6),
    st.integers(1, 10**4),
    st.lists(st.tuples(st.integers(2, 10**5), st.integers(0, 10**8)), max_size=3),
    st.integers(2, 10**5),
    st.floats(0, 1),
)
def test_largest(fixed, slope, steps, most, part):
    """Bytes along a line and with steps up: it fits, and 1 in 64 more, rounded, does not."""

    def bytes_of(b):
        return fixed + slope * b + sum(height for at, height in steps if b >= at)

    bound = bytes_of(1) + part * (bytes_of(most) - bytes_of(1))
    function, calls = counted(bytes_of)
    fits, over = planner.largest(function, bound, most)
    assert bytes_of(fits) <= bound
    assert over == most + 1 if fits == most else bytes_of(over) > bound
    # Brent's bracket is 1 + x / 64 wide at the end, and both of its ends were rounded.
    assert over - fits <= 3 + over / 64
    assert len(set(calls)) == len(calls)
    if not steps:
        # The ends, what the line says, and a verification, which rounding may repeat.
        assert len(calls) <= 5


def test_largest_of_what_just_fits():
    assert planner.largest(lambda b: 100 + b, 101, 50) == (1, 2)
    assert planner.largest(lambda b: 100 + b, 150, 50) == (50, 51)
    assert planner.largest(lambda b: 100 + b, 1e9, 1) == (1, 2)
    with pytest.raises(PlanError, match="an update of one example takes 101 bytes"):
        planner.largest(lambda b: 100 + b, 100, 50)


@pytest.mark.parametrize("n", [2, 3, 7])
def test_interval_holds_the_next_sample(n):
    """Lognormal samples: the next is outside at either end with 5 %, and half of all are below."""
    rng = np.random.default_rng(n)
    drawn = np.exp(1 + 0.3 * rng.standard_normal((20_000, n + 1)))
    made = np.array([planner.interval(row[:n]) for row in drawn])
    shares = (drawn[:, -1:] < made).mean(axis=0)
    # Shares of so many have standard errors of at most 0.0036: four of them.
    np.testing.assert_allclose(shares, [0.5, 0.05, 0.95], rtol=0, atol=0.015)


def test_interval_of_equal_samples():
    assert planner.interval([3.0, 3.0, 3.0]) == pytest.approx((3, 3, 3), rel=1e-15)
