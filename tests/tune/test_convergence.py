"""Updates by the mini-batch: the law from exact and noisy runs, its limits, what they choose."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.plan import convergence, planner
from optdyn.plan.planner import Candidate, Interval

SIZES = (4, 16, 64, 256)
# Every example takes 1 ms and an update 16 ms besides.
ROWS = [Candidate(b, True, 0.016 + 0.001 * b) for b in SIZES]


@given(st.floats(1, 1e5), st.floats(0.1, 1e4))
def test_fit_of_exact_runs(least, noise):
    law = convergence.fit(SIZES, [least * (1 + noise / b) for b in SIZES])
    assert law.least == pytest.approx(least, rel=1e-5)
    assert law.noise == pytest.approx(noise, rel=1e-5)


def test_fit_at_its_bounds():
    flat = convergence.fit((8, 64), (100, 110))
    steep = convergence.fit((8, 64), (1000, 100))
    assert flat.noise == pytest.approx(0, abs=1e-4)
    assert flat.least == pytest.approx(math.sqrt(100 * 110), rel=1e-4)
    assert steep.noise > 1e6
    assert steep.examples == pytest.approx(math.sqrt(8000 * 6400), rel=1e-4)


def test_interval_of_runs_holds_the_next_run():
    rng, draws = np.random.default_rng(0), 300
    batches = np.repeat([8, 32, 128], 2)
    inside = np.zeros((draws, 2))
    for i in range(draws):
        taken = 100 * (1 + 40 / batches) * np.exp(0.1 * rng.standard_normal(6))
        of = convergence.from_runs(batches, taken)
        for j, b in enumerate((20, 400)):
            _, low, high = of(b)
            inside[i, j] = low <= 100 * (1 + 40 / b) * math.exp(0.1 * rng.standard_normal()) <= high
    # Shares of 300 have standard errors of 0.017: four of them.
    np.testing.assert_allclose(inside.mean(axis=0), 0.9, atol=0.07)


def test_exact_runs_leave_no_doubt():
    median, low, high = convergence.from_runs((8, 32, 128), (600, 225, 131.25))(64)
    assert (median, low, high) == pytest.approx((100 * (1 + 40 / 64),) * 3, rel=1e-5)


@pytest.mark.parametrize("noise", [0.0, 40.0, math.inf])
def test_a_given_noise_scale(noise):
    """Against the law itself, whose two ends take as many updates and as many examples."""
    known = Interval(500, 400, 600)
    for b in SIZES:
        factor = 32 / b if math.isinf(noise) else (1 + noise / b) / (1 + noise / 32)
        expected = [factor * u for u in known]
        assert convergence.from_noise_scale(known, 32, noise)(b) == pytest.approx(
            expected, rel=1e-12
        )


@given(st.floats(0, 1e9), st.integers(1, 10**5), st.integers(1, 10**5))
def test_the_unknown_holds_every_noise_scale(noise, batch, other):
    known = Interval(500, 400, 600)
    median, low, high = convergence.from_noise_scale(known, batch, noise)(other)
    worst, least, most = convergence.from_all_noise_scales(known, batch)(other)
    slack = 1 + 1e-12  # of rounding
    assert least <= low * slack and median <= worst * slack and high <= most * slack


def chosen(updates):
    return planner.soonest(ROWS, lambda b: updates(b).median).batch


def test_the_choice_of_the_mini_batch():
    """Noise scale 0: the fastest update. Infinite: most examples a second. Between them: between.

    Of seconds (16 + b) (1 + N / b) ms the least is at b = sqrt(16 N), on these rows.
    """
    known = Interval(500, 400, 600)
    found = [
        chosen(convergence.from_noise_scale(known, 16, n)) for n in (0, 16, 256, 4096, math.inf)
    ]
    assert found == [4, 16, 64, 256, 256]


def test_nothing_larger_is_chosen_on_hope():
    known = Interval(500, 400, 600)
    assert chosen(convergence.from_all_noise_scales(known, 16)) == 16
    # A smaller one takes more updates by the worst case, here no fewer examples, and is no faster.
    assert chosen(convergence.from_all_noise_scales(known, 100)) == 64
