"""Claim 23: what fading errors do, the fit of a momentum, and the rule as written."""

import numpy as np
import pytest

from optdyn.configs.papers import error_feedback
from optdyn.configs.papers.error_feedback import (
    DECAY,
    KINDS,
    SHARES,
    arm_of,
    moves,
    part,
    verdict,
)
from optdyn.dynamics.moments import fit
from optdyn.evidence.arms import point
from optdyn.training.checks import check


def meetings(share, beta, rate=0.8, nodes=3, count=400, size=200):
    """(T + 1, n) parameters and mean errors of meetings that send numbers drawn at random.

    Differences are noise, each node's own, and what all have in common, which lasts.
    """
    rng = np.random.default_rng(0)
    theta, e = [np.zeros(size)], np.zeros((nodes, size))
    errors = [e.mean(axis=0)]
    drift = np.zeros(size)
    for _ in range(count):
        drift = 0.9 * drift + rng.normal(size=size)
        e = beta * e + rng.normal(size=(nodes, size)) + drift
        chosen = rng.random((nodes, size)) < share
        sent = np.where(chosen, e, 0.0)
        e = e - sent
        theta.append(theta[-1] - rate * sent.mean(axis=0))
        errors.append(e.mean(axis=0))
    return np.array(theta), np.array(errors)


@pytest.mark.parametrize(("share", "beta"), [(0.1, 0.9), (0.3, 0.5), (0.5, 1.0)])
def test_of_numbers_drawn_at_random_the_momentum_is_beta_times_one_less_the_share(share, beta):
    """E s_t = k sum_j (beta (1 - k))^j D_{t-j}, as of memoryless groups."""
    read = fit([moves(*meetings(share, beta), 0.8, beta)])
    assert read.momentum == pytest.approx(beta * (1 - share), abs=4 * read.momentum_error)
    assert read.momentum_error < 0.03


def test_where_all_numbers_are_sent_steps_are_the_gaps():
    steps, gaps = moves(*meetings(1.0, 0.9), 0.8, 0.9)
    np.testing.assert_allclose(steps, -0.8 * gaps)


def test_a_reading_of_a_run_is_of_its_own_meetings(monkeypatch):
    """With all numbers sent, whatever the decay, a run has no momentum."""
    monkeypatch.setattr(error_feedback, "MEETINGS", 60)
    arm = arm_of("faded", 1.0)
    config = arm.config.with_({DECAY: 0.5, "optimizer.learning_rate": 0.05}, batch_size=16)
    assert error_feedback.reading(config) == pytest.approx(0.0, abs=1e-4)  # of float32 steps


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_arm_can_run(kind, share):
    arm = arm_of(kind, share)
    check(arm.config.with_(point(arm, tuple(arm.start[key] for key in arm.ladders))))


def result(faded):
    """Momentum takes half of kept's updates at every share, fading `faded` of them."""
    own = np.linspace(90.0, 110.0, 20)
    factors = {"kept": 1.0, "faded": faded, "momentum": 0.5}
    rows = [
        {"kind": kind, "share": share, "updates": (factors[kind] * own).tolist(), "interior": True}
        | ({"read": [0.5], "point": {DECAY: 0.9}} if kind == "faded" else {})
        for share in SHARES
        for kind in KINDS
    ]
    return {"rows": rows}


@pytest.mark.parametrize(
    ("faded", "word", "by"),
    [(0.5, "confirmed", 1.0), (0.6, "confirmed", 0.737), (0.9, "refuted", 0.152)],
)
def test_the_rule(faded, word, by):
    assert part(result(faded)) == pytest.approx([by] * 3, abs=1e-3)  # the same seeds in all
    assert verdict(result(faded)).word == word


def test_without_a_gain_of_momentum_nothing_is_decided():
    rows = result(0.9)["rows"]
    for row in rows:
        row["updates"] = np.linspace(90.0, 110.0, 20).tolist()
    assert verdict({"rows": rows}).word == "open"
