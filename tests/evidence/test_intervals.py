"""Ratios of paired seeds, and the words that follow their intervals."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.benchmarks.intervals import AIM, measure
from optdyn.evidence.claim import above, below
from optdyn.evidence.intervals import (
    CHANCES,
    chance,
    drawn_again,
    holm,
    mean_ratio,
    ratio,
    ratio_at_best,
    shown,
)

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


def test_an_estimate_is_shown_with_its_interval():
    assert shown((1.708, 1.2, math.inf)) == "1.71 [1.2, inf]"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.5, 2), min_size=5, max_size=5))
def test_a_chance_is_that_of_all_resamples(times):
    """Five seeds have 3,125 resamples: enumerated, by Python's own medians."""
    medians = [statistics.median(drawn) for drawn in itertools.product(times, repeat=5)]
    beyond = min(sum(x <= 1 for x in medians), sum(x >= 1 for x in medians)) / len(medians)
    # Four standard deviations of a share of so many draws, and the one that is added.
    away = 4 * math.sqrt(beyond * (1 - beyond) / CHANCES) + 1 / CHANCES
    assert abs(chance(times, [1.0] * 5) - min(2 * beyond, 1)) <= 2 * away


def test_a_chance_of_runs_that_all_missed_is_1_and_none_is_0():
    assert chance([math.inf] * 5, [math.inf] * 5) == 1
    assert chance([1.0] * 5, [2.0] * 5) == 2 / (CHANCES + 1)
    assert chance([math.inf] * 5, [2.0] * 5) == 2 / (CHANCES + 1)


@given(st.lists(st.floats(1e-4, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(chances):
    """A hypothesis falls if every set with it falls, whose least chance is that of its size."""
    numbers = range(len(chances))
    sets = [s for k in numbers for s in itertools.combinations(numbers, k + 1)]
    closed = [
        max(min(len(s) * min(chances[j] for j in s), 1.0) for s in sets if i in s) for i in numbers
    ]
    np.testing.assert_allclose(holm(chances), closed, rtol=1e-12)  # rounding of the products


def test_a_choice_that_no_draw_changes_leaves_the_interval_as_it_is():
    one, other = [1.0, 1.2, 0.9, 1.1, 1.0], [2.0, 1.7, 2.2, 2.1, 1.9]
    clear = [[1.0, 1.1, 0.9, 1.0], [3.0, 3.1, 2.9, 3.0]]
    assert ratio_at_best(one, other, clear, clear) == ratio(one, other)


def test_a_chosen_setting_may_be_worse_than_the_best_and_never_better():
    """The lower end gives way where it is the first side whose settings are hard to tell apart."""
    one, other = np.random.default_rng(0).lognormal(0, 0.1, (2, 40))
    clear, close = [[1.0] * 4, [3.0] * 4], [[1.0, 1.2, 1.0, 1.2], [1.2, 1.1, 1.2, 1.1]]
    _, low, high = ratio(one, other)
    a, b = ratio_at_best(one, other, close, clear), ratio_at_best(one, other, clear, close)
    assert a[1] < low and a[2] <= high
    assert b[1] >= low and b[2] > high


@pytest.mark.slow
def test_intervals_cover_the_ratio_of_the_best_settings():
    """Of 200 made-up studies; 93 to 97 % are aimed at, give or take two standard deviations."""
    rows = measure(studies=200, seed=1).set_index("interval")
    away = 2 * math.sqrt(0.05 * 0.95 / 200)
    assert AIM[0] - away <= rows.covered["at best"] <= AIM[1] + away
    assert rows.covered["at best"] >= rows.covered["plain"]


def test_a_figure_of_seeds_drawn_again_has_the_interval_of_its_mean():
    """Of 400 normal values it is the mean and 1.96 standard errors on either side."""
    values = np.random.default_rng(3).normal(5.0, 2.0, 400)
    middle, low, high = drawn_again(lambda seeds: values[seeds].mean(), len(values))
    error = values.std() / 20
    assert middle == pytest.approx(values.mean())
    ends = [middle - 1.96 * error, middle + 1.96 * error]
    # 4,000 draws know a 2.5 % quantile to about 0.04 standard errors; four times that.
    assert [low, high] == pytest.approx(ends, abs=0.16 * error)


@pytest.mark.parametrize(
    ("decide", "found", "word"),
    [
        *((below, found, "confirmed") for found in ((1.0, 0.8, 1.4), (0.5, 0.2, 0.9))),
        (below, (1.6, 1.51, 2.0), "refuted"),
        (below, (1.4, 1.2, 1.5), "open"),
        (above, (2.0, 1.6, 3.0), "confirmed"),
        (above, (2.0, 0.5, 3.0), "open"),
        (above, (0.5, 0.2, 0.9), "refuted"),
    ],
)
def test_an_estimate_decides_by_its_interval_alone(decide, found, word):
    assert decide(found, 1.5) == word


OWN = np.linspace(90.0, 110.0, 20)  # of 20 seeds, the same in both
LATE = OWN * np.linspace(0.5, 2.0, 20)[::-1]  # by a factor that differs from seed to seed


def test_the_mean_of_one_ratio_has_its_interval():
    """Of the same draws: `ratio` draws 4,000 times 20 seeds, too, from the same generator."""
    found, other = mean_ratio([LATE], [OWN]), ratio(LATE.tolist(), OWN.tolist())
    assert found == pytest.approx(other)
    assert mean_ratio([OWN, 4 * OWN], [OWN, OWN]) == pytest.approx([2.0] * 3)  # geometric
    assert mean_ratio([OWN, np.full(20, np.inf)], [OWN, OWN])[0] == np.inf
