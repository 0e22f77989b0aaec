"""Other ways to choose a setting: their probes, and what they find where the best is known."""

import math

import numpy as np
import pytest

from optdyn.tuning.baselines import MOMENTA, RATES, choose
from optdyn.tuning.choice import Point
from tests.tuning.cluster import Cluster

GROUPS = (1, 2, 4, 8)
EACH = 10.0
FIXED = {"synchronous": 1, "asynchronous": 8}
SEARCHES = ("random", "tpe")


def chosen(name, cluster, seconds=400.0, seed=0):
    def probe(seconds, setting):
        return cluster.probe(Point(), seconds, setting)

    return choose(name, probe, GROUPS, seconds, EACH, seed)


@pytest.mark.parametrize(("name", "g"), FIXED.items())
def test_fixed_groups_have_both_momentum_and_learning_rate_tuned(name, g):
    """The nearer to a momentum of 0.5 and a rate of 0.02 the better: found by 40 probes."""
    cluster = Cluster(
        loss=lambda s, seconds: abs(s.momentum - 0.5) + abs(math.log10(s.learning_rate / 0.02))
    )
    found = chosen(name, cluster)
    assert {setting.groups for setting in cluster.settings} == {g}
    assert found.momentum == pytest.approx(0.5, abs=0.25)
    assert found.learning_rate == pytest.approx(0.02, rel=0.6)


@pytest.mark.parametrize("name", [*FIXED, *SEARCHES])
@pytest.mark.parametrize("seconds", [400.0, 397.0, 1.0])
def test_probes_take_the_seconds_given(name, seconds):
    cluster = Cluster()
    chosen(name, cluster, seconds)
    each = [length for _, length, _ in cluster.probes]
    # The rounding of a few tens of additions in float64.
    assert sum(each) == pytest.approx(seconds, rel=1e-12)
    assert len(set(each)) == 1
    assert len(each) == max(round(seconds / EACH), 1)


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_cover_their_space(name):
    cluster = Cluster()
    best = chosen(name, cluster)
    assert {setting.groups for setting in cluster.settings} == set(GROUPS)
    momenta, rates = zip(*(setting[1:] for setting in cluster.settings), strict=True)
    assert MOMENTA[0] <= min(momenta) < 0 and 0.6 < max(momenta) <= MOMENTA[1]
    # Uniform in the logarithm: a quarter or so of random ones in the lowest of four decades.
    assert RATES[0] <= min(rates) < 1e-3 and 0.03 < max(rates) <= RATES[1]
    losses = [cluster.efficiency(setting, 10.0) for setting in cluster.settings]
    assert best == cluster.settings[int(np.nanargmin(losses))]


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_depend_on_their_seed_only(name):
    clusters = [Cluster() for _ in range(3)]
    for cluster, seed in zip(clusters, (0, 0, 1), strict=True):
        chosen(name, cluster, seed=seed)
    assert clusters[0].settings == clusters[1].settings != clusters[2].settings


def test_tpe_learns_from_its_probes():
    """Its later probes are better than its first ten, which are random; random ones are not."""
    better = {}
    for name in SEARCHES:
        cluster = Cluster(best=0.6, alpha=0.1)
        for seed in range(3):
            chosen(name, cluster, seed=seed)
        losses = [cluster.efficiency(setting, 10.0) for setting in cluster.settings]
        whole = np.nan_to_num(losses, nan=1.0).reshape(3, 40)
        better[name] = np.median(whole[:, :10]) - np.median(whole[:, 20:])
    # Losses are between 0.68 and 1.
    assert better["tpe"] > 0.03 > better["random"]


@pytest.mark.parametrize("name", ["synchronous", *SEARCHES])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_diverges_is_not_chosen(name, bad):
    limit = 0.02
    cluster = Cluster(loss=lambda s, seconds: bad if s.learning_rate > limit else 5.0)
    assert chosen(name, cluster).learning_rate <= limit
    cluster = Cluster(loss=lambda s, seconds: bad)
    assert chosen(name, cluster) == cluster.settings[0]
