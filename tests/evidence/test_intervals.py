"""Ratios of paired seeds, and the words that follow their intervals."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optdyn.evidence.intervals import ratio, shown, words

TIMES = st.lists(st.floats(1, 1e4), min_size=5, max_size=9)


@given(TIMES, st.floats(0.2, 5))
def test_a_fixed_factor_has_an_interval_of_no_width(times, factor):
    found = ratio([factor * t for t in times], times)
    np.testing.assert_allclose(found, factor, rtol=1e-9)  # rounding of the products


@given(TIMES, st.floats(0.2, 5))
def test_the_interval_holds_the_ratio_and_scales_with_it(times, factor):
    other = list(reversed(times))
    value, low, high = ratio(times, other)
    assert low <= value <= high
    scaled = ratio([factor * t for t in times], other)
    np.testing.assert_allclose(scaled, [factor * x for x in (value, low, high)], rtol=1e-9)


def test_misses_are_infinite_and_open_the_interval():
    value, low, high = ratio([1.0, 1.0, math.inf, 1.0, 1.0], [1.0] * 5)
    assert (value, low) == (1.0, 1.0) and math.isinf(high)
    both = ratio([math.inf] * 5, [math.inf] * 5)
    assert math.isnan(both[0]) and both[1:] == (0.0, math.inf)


def test_words_follow_the_interval():
    assert words((1.2, 1.1, 1.3)) == "more"
    assert words((0.8, 0.7, 0.9)) == "less"
    assert words((1.2, 0.9, 1.5)) == "no difference seen"
    assert shown((1.708, 1.2, math.inf)) == "1.71 [1.2, inf]"
