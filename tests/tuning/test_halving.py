"""Successive halving on clusters whose best setting is known."""

import math

import pytest

from optdyn.tuning.choice import Choice, Measures, Point
from optdyn.tuning.halving import STEPS, UPDATES, candidates, raced
from optdyn.tuning.predictive import of_step
from tests.tuning.cluster import Cluster

GROUPS = (1, 2, 4, 8)
MEASURED = Measures(0.1, 0.9, dict.fromkeys(GROUPS, 1.0))


def test_candidates_are_steps_of_groups_that_are_faster():
    """Eight groups wait for the server as four do; explicit momentum is 0.9 less 1 - 1/g."""
    cluster = Cluster(measured=MEASURED, served=0.25)
    found = list(candidates(cluster, Point(), GROUPS))
    assert found == [
        of_step(g, m, by * 0.1) for g, m in ((1, 0.9), (2, 0.4), (4, 0.9 - 0.75)) for by in STEPS
    ]


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("by", STEPS)
def test_the_best_is_left_whichever_it_is(groups, by):
    """And of one group the one that was left last, for synchronous training to stand against."""

    def loss(setting, seconds):
        step = setting.learning_rate / (1 - setting.momentum)
        return abs(math.log2(step / (by * 0.1))) + (setting.groups != groups)

    cluster = Cluster(measured=MEASURED, served=1e-9, loss=loss)
    best, synchronous = raced(cluster, Point(), GROUPS)
    assert best.groups == groups and synchronous.groups == 1
    assert best.learning_rate == pytest.approx(by * 0.1 * (1 - best.momentum))


def test_a_half_goes_on_twice_as_long():
    """Of 16 candidates: 16, 8, 4 and 2 probes, all of a rung equally long."""
    cluster = Cluster(measured=MEASURED, served=1e-9)
    raced(cluster, Point(), GROUPS)
    lengths = [seconds for _, seconds, _ in cluster.probes]
    assert lengths == [UPDATES * k for k in (1, 2, 4, 8) for _ in range(16 // k)]


def test_what_diverges_is_out_first():
    """All but the smallest step of one group; whatever diverges is worse than any loss."""

    def loss(setting, seconds):
        least = setting == of_step(1, 0.9, STEPS[0] * 0.1)
        return 100.0 if least else math.nan

    cluster = Cluster(measured=MEASURED, served=1e-9, loss=loss)
    assert raced(cluster, Point(), GROUPS)[0] == Choice(1, 0.9, pytest.approx(0.0025))
