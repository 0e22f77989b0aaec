"""The test of memoryless arrivals, on orders whose law is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock.timeline import from_arrivals
from optdyn.implicit_momentum.order_of_arrivals import Ages, ages, chance

ORDERS = st.lists(st.integers(0, 4), max_size=60)


def by_ages(worker, groups, past):
    """The same from a table of when everybody arrived last, as the equation has it."""
    score = variance = 0.0
    for t in range(past, len(worker)):
        seen = [max((s for s in range(t) if worker[s] == g), default=-1) for g in range(groups)]
        away = [g for g in range(groups) if seen[g] < 0 or t - 1 - seen[g] >= past]
        ranks = {
            g: float(
                np.mean(
                    [
                        i
                        for i, h in enumerate(sorted(away, key=lambda h: -seen[h]))
                        if seen[h] == seen[g]
                    ]
                )
            )
            for g in away
        }
        if worker[t] in away:
            score += ranks[worker[t]] - np.mean(list(ranks.values()))
            variance += np.var(list(ranks.values()))
    return Ages(score, variance)


@given(ORDERS, st.integers(5, 7), st.integers(0, 3))
def test_it_is_the_equation_with_ties_at_their_mean_rank(worker, groups, past):
    found = ages(worker, groups, past)
    assert found == pytest.approx(by_ages(worker, groups, past), abs=1e-9)  # sums of 60 floats


@pytest.mark.parametrize("past", [0, 1, 2])
@pytest.mark.parametrize("steps", [40, 400])
def test_memoryless_orders_are_rejected_as_often_as_is_said(past, steps):
    """z has mean 0 and variance 1, in windows that begin before everybody has arrived, too."""
    rng = np.random.default_rng(7)
    orders = [ages(rng.integers(6, size=steps), 6, past) for _ in range(1000)]
    z = np.array([it.score / np.sqrt(it.variance) for it in orders])
    assert abs(z.mean()) < 4 / np.sqrt(1000)  # four standard errors, here and below
    assert abs(z.var() - 1) < 4 * np.sqrt(2 / 1000)
    rejected = np.mean([chance([it]) < 0.05 for it in orders])
    assert abs(rejected - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 1000)


def test_turns_are_never_memoryless_and_a_fast_group_is_not_either():
    turns = ages(np.tile(np.arange(4), 50), 4)
    assert turns.score > 0 and chance([turns]) < 1e-20
    fast = ages(np.random.default_rng(0).choice(4, 400, p=[0.7, 0.1, 0.1, 0.1]), 4)
    assert fast.score < 0 and chance([fast]) < 1e-10


def test_a_past_gradient_excuses_the_staleness_that_it_has_a_term_for():
    """Nobody comes twice in a row, and else all are alike: one past gradient says just that."""
    rng, worker = np.random.default_rng(3), [0]
    while len(worker) < 3000:
        worker.append(int(rng.choice([g for g in range(4) if g != worker[-1]])))
    late = from_arrivals(np.array(worker), np.arange(3000.0), 4).staleness[100:]
    assert (late > 0).all()
    assert chance([ages(worker, 4)]) < 1e-10
    assert chance([ages(worker, 4, past=1)]) > 0.01


def test_windows_add_up_and_one_group_tells_nothing():
    one, other = Ages(3.0, 4.0), Ages(1.0, 12.0)
    together = chance([one, other])
    assert together == chance([Ages(4.0, 16.0)]) == pytest.approx(0.3173, abs=1e-4)  # z = 1
    assert chance([ages([0, 0, 0], 1)]) == chance([]) == 1.0
