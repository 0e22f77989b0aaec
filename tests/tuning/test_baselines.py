"""Other ways to choose a setting: their probes, and what they find where the best is known."""

import math

import numpy as np
import pytest

from research.tuning.automatic import Point, Setting
from research.tuning.baselines import choose
from research.tuning.rules import Rules
from tests.tuning.cluster import Cluster

GROUPS = (1, 2, 4, 8)
RULES = Rules((0.0, 0.3, 0.9), (0.1, 0.01, 0.001), 1, 10.0, 0.03, 1e3, 1e4)
SEARCHES = ("random", "tpe")


def chosen(name, cluster, seconds=400.0, seed=0):
    def probe(seconds, setting):
        return cluster.probe(Point(), seconds, setting)

    return choose(name, probe, GROUPS, RULES, seconds, seed)


@pytest.mark.parametrize(("name", "g"), [("synchronous", 1), ("asynchronous", 8)])
def test_fixed_groups_have_the_largest_momentum_and_the_best_learning_rate(name, g):
    cluster = Cluster(loss=lambda s, seconds: abs(math.log10(s.learning_rate / 0.01)))
    assert chosen(name, cluster) == Setting(g, 0.9, 0.01)
    assert set(cluster.settings) == {Setting(g, 0.9, alpha) for alpha in RULES.learning_rates}


@pytest.mark.parametrize("name", ["synchronous", "asynchronous", *SEARCHES])
@pytest.mark.parametrize("seconds", [400.0, 397.0, 1.0])
def test_probes_take_the_seconds_given(name, seconds):
    cluster = Cluster()
    chosen(name, cluster, seconds)
    each = [length for _, length, _ in cluster.probes]
    # The rounding of a few tens of additions in float64.
    assert sum(each) == pytest.approx(seconds, rel=1e-12)
    assert len(set(each)) == 1
    if name in SEARCHES:
        assert len(each) == max(round(seconds / RULES.probe_seconds), 1)


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_cover_their_space(name):
    cluster = Cluster()
    best = chosen(name, cluster)
    assert {setting.groups for setting in cluster.settings} == set(GROUPS)
    momenta, rates = zip(*(setting[1:] for setting in cluster.settings), strict=True)
    assert 0 <= min(momenta) < 0.3 and 0.6 < max(momenta) <= 0.9
    # Uniform in the logarithm: a third or so of random ones in the lowest of two decades.
    assert 0.001 <= min(rates) < 0.003 and 0.03 < max(rates) <= 0.1
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
        cluster = Cluster(best=1.2, alpha=0.03)
        for seed in range(3):
            chosen(name, cluster, seed=seed)
        losses = [cluster.efficiency(setting, 10.0) for setting in cluster.settings]
        whole = np.nan_to_num(losses, nan=1.0).reshape(3, 40)
        better[name] = np.median(whole[:, :10]) - np.median(whole[:, 20:])
    # Losses are between 0.85 and 1.
    assert better["tpe"] > 0.03 > better["random"]


@pytest.mark.parametrize("name", ["synchronous", *SEARCHES])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_diverges_is_not_chosen(name, bad):
    limit = 0.02
    cluster = Cluster(loss=lambda s, seconds: bad if s.learning_rate > limit else 5.0)
    assert chosen(name, cluster).learning_rate <= limit
    cluster = Cluster(loss=lambda s, seconds: bad)
    assert chosen(name, cluster) == cluster.settings[0]
