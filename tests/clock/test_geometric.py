"""Independent geometric staleness: its law, its independence and its ring."""

import math

import numpy as np
import pytest
from scipy import stats

from optdyn.clock.arrivals import compute_groups
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import TAIL, Geometric, ring_size
from tests.clock.lines import p_of_geometric

STEPS = 200_000
P = 1e-3  # of the seeded statistical tests: one right program in a thousand would fail


@pytest.fixture(scope="module", params=[2, 5, 32])
def drawn(request):
    """g and a timeline, with the staleness of the updates that no longer reach before the start."""
    g = request.param
    values = Cluster(nodes=g, service=Geometric(), seconds_per_example=1.0)
    timeline = compute_groups(values, groups=g, steps=STEPS, batch_size=1, seed=g)
    return g, timeline, timeline.staleness[timeline.slots :]


def test_law(drawn):
    """P(tau = k) = (1/g) (1 - 1/g)^k, mean g - 1."""
    g, _, tau = drawn
    # The deviation of tau is below g: 200,000 draws give the mean to g / 450, 2 % of g is nine.
    assert tau.mean() + 1 == pytest.approx(g, rel=0.02)
    assert p_of_geometric(tau, g) > P


def test_draws_are_independent(drawn):
    """Unlike a queue's: successive staleness, and staleness and seconds, are uncorrelated."""
    _, timeline, tau = drawn
    bound = 4 / math.sqrt(len(tau))  # four deviations of the correlation of independent draws
    assert abs(np.corrcoef(tau[1:], tau[:-1])[0, 1]) < bound
    gaps = np.diff(timeline.seconds)[timeline.slots - 1 :]
    assert abs(np.corrcoef(tau, gaps)[0, 1]) < bound


def test_seconds_are_those_of_g_memoryless_groups(drawn):
    g, timeline, _ = drawn
    gaps = np.diff(timeline.seconds, prepend=0.0)
    assert stats.kstest(gaps * g, "expon").pvalue > P


def test_rates_of_unequal_groups_add_up():
    values = Cluster(nodes=3, speeds=(1, 2, 5), service=Geometric(), seconds_per_example=1.0)
    timeline = compute_groups(values, groups=3, steps=STEPS, batch_size=1)
    # 8 updates a second; the mean of 200,000 exponentials is good to 0.22 %, 1 % is four of that.
    assert timeline.seconds[-1] / STEPS == pytest.approx(1 / 8, rel=0.01)


def test_the_ring_is_the_shortest_power_of_two_that_holds_the_law():
    for g in range(1, 200):
        size = ring_size(g)
        assert size & (size - 1) == 0, g
        assert (1 - 1 / g) ** size <= TAIL, g  # P(tau >= size)
        assert size == 1 or (1 - 1 / g) ** (size / 2) > TAIL, g


def test_one_group_is_never_stale():
    timeline = compute_groups(Cluster(service=Geometric()), groups=1, steps=100, batch_size=1)
    assert timeline.slots == 1 and not timeline.staleness.any()
