"""Omnivore's decisions, on clusters whose best setting is known.

`Cluster` has a best total momentum, and seconds an update that fall until a server is saturated.
"""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from research.config import ConfigError
from research.tuning.automatic import (
    Point,
    Setting,
    automatic,
    cold_start,
    search,
    size,
    steady_state,
    successors,
)
from research.tuning.rules import Rules
from tests.tuning.cluster import Cluster

MOMENTA = (0.0, 0.3, 0.6, 0.9)
RATES = (0.1, 0.01, 0.001, 0.0001)
RULES = Rules(
    MOMENTA, RATES, 1, cold_seconds=60, steady_seconds=200, epoch_seconds=1e4, seconds=4e4
)
GROUPS = (1, 2, 4, 8, 16, 32)


def listed(losses):
    """A cluster with these losses, and 1 wherever there is none."""
    return Cluster(loss=lambda setting, seconds: losses.get(setting, 1.0))


def run(cluster, groups=GROUPS, rules=RULES):
    automatic(cluster.probe, cluster.train, cluster.note, groups, rules)
    return cluster


def test_cold_start_probes_what_the_authors_program_probes():
    """Best total momentum 1.4: that is 0.9 for g = 2 and 0.6 for g = 4; saturated at 4 groups.

    0.01 is the best learning rate of one group, 0.1 diverges, so that 2 and 4 groups are tried with
    the five successors of (0.9, 0.01), and 8 groups once: that is enough to see no gain.
    """
    cluster = Cluster(best=1.4, served=0.25)
    point, best, most = cold_start(cluster.probe, cluster.note, GROUPS, RULES)
    assert cluster.settings == [
        *(Setting(1, 0.9, alpha) for alpha in sorted(RATES)),
        *(Setting(2, 0.9, 0.001), *(Setting(2, mu, 0.01) for mu in MOMENTA)),
        *(Setting(4, 0.9, 0.001), *(Setting(4, mu, 0.01) for mu in MOMENTA)),
        Setting(8, 0.6, 0.001),
    ]
    assert {(point, seconds) for point, seconds, _ in cluster.probes} == {(Point(), 60)}
    assert (point, best, most) == (Point(), Setting(4, 0.6, 0.01), 4)
    assert cluster.notes == [("saturated", Setting(8, 0.6, 0.001)), ("cold start", best)]


@pytest.mark.parametrize(("gain", "most"), [(1.09, 1), (1.11, 2)])
def test_more_groups_must_make_updates_a_tenth_faster(gain, most):
    cluster = Cluster(served=1 / gain)
    assert cold_start(cluster.probe, cluster.note, (1, 2), RULES)[2] == most


def test_the_best_of_several_initializations_is_kept():
    cluster = Cluster()
    losses = {Point(0): 2.0, Point(1): 1.0, Point(2): 3.0}

    def probe(point, seconds, setting):
        outcome = cluster.probe(point, seconds, setting)
        return outcome._replace(loss=losses[point] * outcome.loss)

    point, _, _ = cold_start(probe, cluster.note, GROUPS, RULES._replace(seeds=3))
    assert point == Point(1)
    assert all(at == point for at, _, setting in cluster.probes if setting.groups > 1)
    assert {at for at, _, setting in cluster.probes if setting.groups == 1} == set(losses)


def test_groups_are_halved_while_no_momentum_is_best():
    """Best total 0.95: explicit -0.02, 0.01, 0.08 for 32, 16, 8 groups, of which 0 is nearest.

    For 4 it is 0.2, nearest to 0.3. After each halving the momenta up to 0.6 are searched.
    """
    cluster = Cluster(best=0.95)
    chosen = steady_state(cluster.tried, cluster.note, Setting(32, 0.3, 0.01), 32, MOMENTA)
    assert chosen == Setting(4, 0.3, 0.01)
    fewer = [setting for what, setting in cluster.notes if what == "fewer groups"]
    assert fewer == [Setting(g, 0.0, 0.01) for g in (32, 16, 8)]
    tried = [setting for setting in cluster.settings if setting.groups == 16]
    here = [(mu, 0.01) for mu in (0.0, 0.3, 0.6)]
    assert [setting[1:] for setting in tried] == [(0.6, 0.001), (0.9, 0.001), *here]


def test_groups_are_kept_where_negative_momentum_is_tried():
    """The authors' open question: at 32 groups 0.81 - 31/32 = -0.16 is best, of these -0.3 or 0.

    With -0.6 beside them neither is the least, so nothing is halved.
    """
    cluster = Cluster(best=0.8)
    momenta = (-0.6, -0.3, *MOMENTA)
    chosen = steady_state(cluster.tried, cluster.note, Setting(32, 0.3, 0.01), 32, momenta)
    assert chosen == Setting(32, -0.3, 0.01)
    last = Setting(32, 0.3, 0.01)
    assert steady_state(cluster.tried, cluster.note, last, 32, MOMENTA).groups < 32


def test_one_group_may_have_no_momentum():
    cluster = Cluster(best=0.0)
    chosen = steady_state(cluster.tried, cluster.note, Setting(4, 0.9, 0.01), 4, MOMENTA)
    assert chosen == Setting(1, 0.0, 0.01)


@pytest.mark.parametrize(("loss", "wins"), [(0.995, False), (0.991, False), (0.989, True)])
def test_another_setting_must_win_by_a_hundredth(loss, wins):
    """In steady state only: 1.01 x 0.991 > 1 > 1.01 x 0.989. The cold start takes the least."""
    incumbent, other = Setting(2, 0.9, 0.1), Setting(2, 0.3, 0.1)
    cluster = listed({incumbent: 1.0, other: loss, Setting(2, 0.9, 0.01): 1.5})
    chosen = steady_state(cluster.tried, cluster.note, incumbent, 2, MOMENTA)
    assert chosen == (other if wins else incumbent)
    assert search(cluster.tried, successors(incumbent, MOMENTA))[0] == other


@pytest.mark.parametrize(("loss", "wins"), [(0.991, False), (0.989, True)])
def test_more_groups_must_win_by_a_hundredth_too(loss, wins):
    """The cold start chose 2 of up to 8 groups: they go on unless others are better."""
    last, other = Setting(2, 0.9, 0.01), Setting(8, 0.6, 0.01)
    cluster = listed({last: 1.0, other: loss})
    chosen = steady_state(cluster.tried, cluster.note, last, 8, MOMENTA)
    assert chosen == (other if wins else last)
    assert cluster.settings.count(last) == 1


def test_fewer_groups_are_tried_beside_more_that_diverge():
    last = Setting(2, 0.9, 0.01)
    cluster = Cluster(loss=lambda s, seconds: math.nan if s.groups == 8 else 1.0)
    assert steady_state(cluster.tried, cluster.note, last, 8, MOMENTA) == last


def test_what_diverges_is_dropped_and_nothing_as_large_is_tried():
    def loss(setting, seconds):
        return math.nan if setting.learning_rate * setting.momentum >= 0.03 else setting.momentum

    cluster = Cluster(loss=loss)
    grid = [Setting(2, mu, alpha) for alpha in (0.1, 0.01) for mu in MOMENTA]
    best, outcome = search(cluster.tried, grid)
    assert math.isfinite(outcome.loss) and best == Setting(2, 0.0, 0.1)
    assert cluster.settings == [*(Setting(2, mu, 0.01) for mu in MOMENTA), *grid[:2]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_where_all_diverge_the_learning_rate_falls(bad):
    cluster = Cluster(loss=lambda s, seconds: 1.0 if s.learning_rate < 5e-4 else bad)
    best, _ = search(cluster.tried, successors(Setting(4, 0.9, 0.1), MOMENTA))
    # The least momentum at the one learning rate diverges, too, so that no more is tried there.
    rounds = [[(0.9, alpha / 10), (0.0, alpha)] for alpha in (0.1, 0.01, 0.001)]
    assert [s[1:] for s in cluster.settings] == [
        (mu, pytest.approx(alpha)) for tried in rounds for mu, alpha in tried
    ]
    assert best == cluster.settings[-2]


def test_a_loss_that_never_is_finite_is_said():
    cluster = Cluster(loss=lambda setting, seconds: math.nan)
    with pytest.raises(ConfigError, match="finite at none"):
        search(cluster.tried, [Setting(1, 0.9, alpha) for alpha in RATES])


def test_epochs_go_on_from_one_another_until_the_seconds_are_over():
    cluster = run(Cluster(served=1e-9), rules=RULES._replace(seconds=3.5e4))
    assert [seconds for _, seconds, _ in cluster.epochs] == [1e4, 1e4, 1e4, 5e3]
    assert [point for point, _, _ in cluster.epochs] == [Point(0, epoch) for epoch in range(4)]
    # Each epoch is searched for at its own start, after the cold start at the first.
    steady = [(point, seconds) for point, seconds, _ in cluster.probes if point.epoch]
    assert dict.fromkeys(steady) == dict.fromkeys((Point(0, epoch), 200) for epoch in (1, 2, 3))
    # Halved groups stay so: the second search begins where the first one ended.
    groups = [setting.groups for point, _, setting in cluster.probes if point.epoch]
    assert groups[0] == 32 and groups == sorted(groups, reverse=True)
    assert [setting.groups for _, _, setting in cluster.epochs[1:]] == [4, 4, 4]


def test_the_target_ends_it():
    cluster = Cluster()
    reached = iter([False, True])
    automatic(
        cluster.probe,
        lambda *run: cluster.train(*run)._replace(reached=next(reached), seconds=7e3),
        cluster.note,
        GROUPS,
        RULES,
    )
    assert len(cluster.epochs) == 2


def test_an_epoch_that_diverges_is_repeated_with_a_tenth_of_the_learning_rate():
    cluster = Cluster()
    losses = iter([math.nan, 1.0, 1.0, 1.0, 1.0])
    automatic(
        cluster.probe,
        lambda *run: cluster.train(*run)._replace(loss=next(losses)),
        cluster.note,
        (1,),
        RULES,
    )
    assert [point.epoch for point, _, _ in cluster.epochs] == [0, 0, 1, 2]
    rates = [setting.learning_rate for _, _, setting in cluster.epochs]
    assert rates == pytest.approx([0.01, 0.001, 0.001, 0.001])


def test_one_worker_has_but_a_learning_rate_and_momentum_to_tune():
    """Synchronous SGD with the best momentum of the grid, from the second epoch on."""
    cluster = run(Cluster(best=0.65), groups=(1,))
    assert cluster.settings[:4] == [Setting(1, 0.9, alpha) for alpha in sorted(RATES)]
    assert {setting.groups for setting in cluster.settings} == {1}
    assert [s for _, _, s in cluster.epochs] == [
        Setting(1, 0.9, 0.01),
        *3 * [Setting(1, 0.6, 0.01)],
    ]


def test_overhead_of_the_authors_steady_state():
    """Five probes of 200 s an epoch of 10,000 s: a tenth, where groups are not halved."""
    cluster = run(Cluster(best=1.9, served=1.0), rules=RULES._replace(seconds=1e5))
    steady = sum(seconds for point, seconds, _ in cluster.probes if point.epoch)
    assert steady / sum(seconds for point, seconds, _ in cluster.epochs if point.epoch) == 0.1


momenta_of = st.sets(st.sampled_from([-0.9, -0.3, 0.0, 0.2, 0.5, 0.8, 0.95]), min_size=1)


@given(st.sampled_from(MOMENTA), st.floats(1e-6, 1), st.integers(1, 64))
def test_successors_are_five_and_the_last_setting_is_the_largest(mu, alpha, g):
    last = Setting(g, mu, alpha)
    made = successors(last, MOMENTA)
    assert len(made) == len(set(made)) == 5
    assert max(made, key=size) == made[-1] == last
    assert not any(s.momentum < mu and s.learning_rate < alpha for s in made)


@given(momenta_of, st.floats(-0.5, 1.5), st.sampled_from(GROUPS))
def test_a_search_finds_the_least_loss(momenta, best, g):
    cluster = Cluster(best=best)
    stable = [mu for mu in momenta if mu + 1 - 1 / g <= 1.7]
    assume(stable)
    chosen, outcome = search(cluster.tried, [Setting(g, mu, 0.01) for mu in momenta])
    assert outcome == cluster.outcome(chosen, 200)
    total = chosen.momentum + 1 - 1 / g
    # Distances are no farther apart than they can be told in float64 losses.
    nearest = min(abs(mu + 1 - 1 / g - best) for mu in stable)
    assert abs(total - best) == pytest.approx(nearest, abs=1e-6)
