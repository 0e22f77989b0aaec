"""Outer steps on a quadratic: the closed form, and what the meter reads of meetings."""

import numpy as np
import pytest

from analysis.benchmarks.outer_momentum import (
    CASES,
    after_meetings,
    config_of,
    effective_curvature,
    read,
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_without_noise_meetings_are_what_the_closed_form_says(case):
    theta = after_meetings(config_of(case, meetings=24, noise=0.0, seed=0))
    k = effective_curvature(case.period)
    before, last, *_ = again = list(theta[:2])
    for _ in range(len(theta) - 2):
        ahead = case.rate * case.momentum * k * (last - before) * case.nesterov
        step = case.momentum * (last - before) - case.rate * k * last - ahead
        before, last = last, last + step
        again.append(last)
    np.testing.assert_allclose(theta, again, atol=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if not case.nesterov], ids=str)
def test_the_meter_reads_the_outer_momentum_of_noisy_meetings(case):
    reading = read(case, meetings=300, seed=2)
    assert reading.covers(case.momentum) and reading.p > 0.01
    assert reading.width < 0.6
