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
    settings,
    size,
    steady_state,
)
from research.tuning.rules import Rules
from tests.tuning.cluster import Cluster

MOMENTA = (0.0, 0.3, 0.6, 0.9)
RATES = (0.1, 0.01, 0.001, 0.0001)
RULES = Rules(
    MOMENTA, RATES, 1, probe_seconds=60, probe_share=0.02, epoch_seconds=1e4, seconds=1.5e5
)
GROUPS = (1, 2, 4, 8, 16, 32)


def listed(losses):
    """A cluster with these losses, and 1 wherever there is none."""
    return Cluster(loss=lambda setting, seconds: losses.get(setting, 1.0))


def run(cluster, groups=GROUPS, rules=RULES):
    automatic(cluster.probe, cluster.train, cluster.note, cluster.seconds_per_update, groups, rules)
    return cluster


def cold(cluster, groups=GROUPS, rules=RULES):
    return cold_start(cluster.probe, cluster.note, cluster.seconds_per_update, groups, rules)


def test_cold_start_probes_from_the_largest_down():
    """Best total momentum 1.4: that is 0.9 for g = 2 and 0.6 for g = 4; saturated at 4 groups.

    0.1 diverges, 0.01 is the best learning rate of one group and 0.001 worse. Every search goes on
    until one is no better. Then longer probes of the best and of half as many groups.
    """
    cluster = Cluster(best=1.4, served=0.25)
    point, best, most = cold(cluster)
    longer = [Setting(4, 0.6, 0.01), *(Setting(2, mu, 0.01) for mu in (0.9, 0.6))]
    assert cluster.settings == [
        *(Setting(1, 0.9, alpha) for alpha in (0.1, 0.01, 0.001)),
        *(Setting(2, mu, 0.01) for mu in (0.9, 0.6)),
        *(Setting(4, mu, 0.01) for mu in (0.9, 0.6, 0.3)),
        *longer,
    ]
    assert {point for point, _, _ in cluster.probes} == {Point()}
    assert [seconds for _, seconds, _ in cluster.probes] == 8 * [60] + 3 * [240]
    assert (point, best, most) == (Point(), Setting(4, 0.6, 0.01), 4)
    assert cluster.notes == [("saturated", Setting(8, 0.9, 0.01)), ("cold start", best)]


def test_cold_start_keeps_no_more_groups_than_are_better_for_longer():
    """A short probe likes 8 groups best, but for longer they are worse than 4, and as good as 2."""
    short = {1: 1.9, 2: 1.8, 4: 1.7, 8: 1.6, 16: 2.0, 32: 2.0}
    longer = {8: math.nan, 4: 1.00, 2: 1.005, 1: 1.2}

    def loss(setting, seconds):
        losses = longer if seconds > RULES.probe_seconds else short
        return losses[setting.groups] + 0.9 - setting.momentum

    cluster = Cluster(loss=loss, served=1e-9)
    _, best, _ = cold(cluster)
    assert best == Setting(2, 0.9, 0.1)
    assert [what for what, _ in cluster.notes] == ["fewer groups", "fewer groups", "cold start"]


@pytest.mark.parametrize(("gain", "most"), [(1.09, 1), (1.11, 2)])
def test_more_groups_must_make_updates_a_tenth_faster(gain, most):
    assert cold(Cluster(served=1 / gain), (1, 2))[2] == most


def test_the_best_of_several_initializations_is_kept():
    cluster = Cluster()
    losses = {Point(0): 2.0, Point(1): 1.0, Point(2): 3.0}

    def probe(point, seconds, setting):
        outcome = cluster.probe(point, seconds, setting)
        return outcome._replace(loss=losses[point] * outcome.loss)

    pace, rules = cluster.seconds_per_update, RULES._replace(seeds=3)
    point, _, _ = cold_start(probe, cluster.note, pace, GROUPS, rules)
    assert point == Point(1)
    assert all(at == point for at, _, setting in cluster.probes if setting.groups > 1)
    assert {at for at, _, setting in cluster.probes if setting.groups == 1} == set(losses)


def steady(cluster, last, most, momenta=MOMENTA):
    return steady_state(cluster.tried, cluster.note, last, most, momenta)


def near(best):
    """Losses by how near total momentum is, however many updates there are."""
    return Cluster(loss=lambda s, seconds: 1 + abs(s.momentum + 1 - 1 / s.groups - best))


def test_groups_are_halved_where_no_momentum_is_best():
    """Best total 0.75, that of 4 groups without momentum; of 2 groups 0.8 is nearest, but worse.

    After each halving all momenta are searched again.
    """
    cluster = near(0.75)
    assert steady(cluster, Setting(32, 0.9, 0.01), 32) == (Setting(4, 0.0, 0.01), 4)
    fewer = [setting for what, setting in cluster.notes if what == "fewer groups"]
    assert fewer == [Setting(g, 0.0, 0.01) for g in (16, 8, 4)]
    tried = [setting[1:] for setting in cluster.settings if setting.groups == 16]
    assert tried == [(mu, 0.01) for mu in MOMENTA[::-1]]


def test_groups_are_halved_while_half_as_many_are_no_worse():
    """Best total 1.4: 0.6 for 4 groups, 0.9 for 2. Momenta at least as large are searched."""
    cluster = near(1.4)
    assert steady(cluster, Setting(4, 0.3, 0.01), 4) == (Setting(2, 0.9, 0.01), 2)
    assert [s[1:] for s in cluster.settings if s.groups == 2] == [(0.9, 0.01), (0.6, 0.01)]
    assert [s[1:] for s in cluster.settings if s.groups == 1] == [(0.9, 0.01)]


def test_groups_are_kept_where_negative_momentum_is_tried():
    """The authors' open question: at 32 groups 0.75 - 31/32 = -0.22 is best, of these -0.3."""
    last = Setting(32, 0.9, 0.01)
    assert steady(near(0.75), last, 32, (-0.6, -0.3, *MOMENTA)) == (Setting(32, -0.3, 0.01), 32)
    assert steady(near(0.75), last, 32)[0].groups < 32


def test_one_group_may_have_no_momentum():
    assert steady(near(0.0), Setting(4, 0.9, 0.01), 4) == (Setting(1, 0.0, 0.01), 1)


def test_fewer_groups_must_not_be_worse():
    """Here the more the better: 32 groups without momentum are as good as it gets."""
    cluster, last = Cluster(best=0.95, served=1e-9), Setting(32, 0.9, 0.01)
    assert steady(cluster, last, 32) == (Setting(32, 0.0, 0.01), 32)
    assert {setting.groups for setting in cluster.settings} == {32, 16}


@pytest.mark.parametrize(("loss", "wins"), [(0.995, False), (0.991, False), (0.989, True)])
def test_another_setting_must_win_by_a_hundredth(loss, wins):
    """In steady state only: 1.01 x 0.991 > 1 > 1.01 x 0.989. A search takes the least."""
    last, other = Setting(2, 0.9, 0.1), Setting(2, 0.6, 0.1)
    cluster = listed({last: 1.0, other: loss, Setting(2, 0.3, 0.1): 1.5})
    assert steady(cluster, last, 2) == (other if wins else last, 2)
    assert search(cluster.tried, settings(2, 0.1, MOMENTA))[0] == other


@pytest.mark.parametrize(("loss", "wins"), [(0.991, False), (0.989, True)])
def test_more_groups_must_win_by_a_hundredth_too(loss, wins):
    """The cold start chose 2 of up to 8 groups: they go on unless others are better."""
    last, other = Setting(2, 0.9, 0.01), Setting(8, 0.9, 0.01)
    cluster = listed({last: 1.0, other: loss, Setting(4, 0.9, 0.01): 1.5})
    assert steady(cluster, last, 8) == (other if wins else last, 8)
    assert cluster.settings.count(last) == 1


def test_what_was_before_stays_if_fewer_groups_are_as_good():
    last, other = Setting(8, 0.9, 0.01), Setting(4, 0.0, 0.01)
    losses = {last: 1.0, last._replace(momentum=0.0): 0.998, other: 0.995}
    cluster = Cluster(loss=lambda s, seconds: losses.get(s, 2 - s.momentum / 10))
    momenta = (0.0, 0.9)
    assert steady(cluster, last, 8, momenta) == (last, 8)
    assert ("steady state", last) in cluster.notes


def test_fewer_groups_are_tried_beside_more_that_diverge():
    last = Setting(2, 0.9, 0.01)
    cluster = Cluster(loss=lambda s, seconds: math.nan if s[1:] == (8, 0.9) else 2 - s.momentum)
    assert steady(cluster, last, 8)[0] == last


def test_the_last_setting_is_left_where_it_diverges():
    last = Setting(8, 0.9, 0.01)
    cluster = Cluster(loss=lambda s, seconds: math.nan if s == last else 9 - s.groups)
    assert steady(cluster, last, 8)[0] == Setting(8, 0.6, 0.01)


def test_what_diverges_is_passed_over():
    def loss(setting, seconds):
        return math.nan if setting.learning_rate * setting.momentum >= 0.03 else setting.momentum

    cluster, grid = Cluster(loss=loss), settings(2, 0.1, MOMENTA)
    best, outcome = search(cluster.tried, grid)
    assert math.isfinite(outcome.loss) and best == Setting(2, 0.0, 0.1)
    # What is no better ends it.
    assert cluster.settings == grid[:5]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_divergence_of_a_smaller_setting_ends_it(bad):
    """Which is the luck of one probe: what is smaller still is not tried."""
    grid = settings(2, 0.1, MOMENTA)
    cluster = listed({grid[0]: 2.0, grid[1]: 1.5, grid[2]: bad, grid[3]: 0.1})
    assert search(cluster.tried, grid)[0] == grid[1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_where_all_diverge_the_learning_rate_falls(bad):
    cluster = Cluster(loss=lambda s, seconds: 1.0 if s.learning_rate < 5e-4 else bad)
    best, _ = search(cluster.tried, [Setting(4, mu, 0.1) for mu in MOMENTA])
    rounds = [(alpha, mu) for alpha in (0.1, 0.01, 0.001) for mu in MOMENTA[::-1]]
    assert [(s.learning_rate, s.momentum) for s in cluster.settings] == [
        *((pytest.approx(alpha), mu) for alpha, mu in rounds),
        *((pytest.approx(0.0001), mu) for mu in (0.9, 0.6)),
    ]
    assert best == cluster.settings[-2]


def test_a_loss_that_never_is_finite_is_said():
    cluster = Cluster(loss=lambda setting, seconds: math.nan)
    with pytest.raises(ConfigError, match="finite at none"):
        search(cluster.tried, [Setting(1, 0.9, alpha) for alpha in RATES])


def test_epochs_go_on_from_one_another_until_the_seconds_are_over():
    cluster = near(0.75)
    cluster.served = 1e-9
    run(cluster, rules=RULES._replace(seconds=1.2e5))
    assert [seconds for _, seconds, _ in cluster.epochs] == [1e4, 2e4, 4e4, 5e4]
    assert [point for point, _, _ in cluster.epochs] == [Point(0, epoch) for epoch in range(4)]
    # Each epoch is searched for at its own start, after the cold start at the first.
    tried = [(point, seconds) for point, seconds, _ in cluster.probes if point.epoch]
    lengths = enumerate((400, 800, 1600), start=1)
    assert dict.fromkeys(tried) == {(Point(0, epoch), seconds): None for epoch, seconds in lengths}
    # Halved groups stay so: the second search begins where the first one ended, and tries half.
    groups = {
        epoch: [setting.groups for point, _, setting in cluster.probes if point.epoch == epoch]
        for epoch in (1, 2, 3)
    }
    assert groups[1][0] == 32 and set(groups[2]) == set(groups[3]) == {4, 2}
    assert [setting.groups for _, _, setting in cluster.epochs[1:]] == [4, 4, 4]


def test_the_target_ends_it():
    cluster = Cluster()
    reached = iter([False, True])
    automatic(
        cluster.probe,
        lambda *run: cluster.train(*run)._replace(reached=next(reached), seconds=7e3),
        cluster.note,
        cluster.seconds_per_update,
        GROUPS,
        RULES,
    )
    assert len(cluster.epochs) == 2


@pytest.mark.parametrize("bad", [math.nan, 1.0, 1.5])
def test_an_epoch_that_does_not_lower_the_loss_is_repeated_with_half_the_groups(bad):
    """As long as before, and no more groups are tried again."""
    cluster = near(1.4)
    losses, asked = iter([1.0, bad, 0.9, 0.8, 0.7]), []

    def train(point, seconds, setting, loss):
        asked.append(loss)
        return cluster.train(point, seconds, setting, loss)._replace(loss=next(losses))

    pace, rules = cluster.seconds_per_update, RULES._replace(momenta=(0.6,))
    automatic(cluster.probe, train, cluster.note, pace, (1, 2, 4), rules)
    epochs = [(point.epoch, seconds, setting.groups) for point, seconds, setting in cluster.epochs]
    assert epochs[:4] == [(0, 1e4, 4), (1, 2e4, 4), (1, 2e4, 2), (2, 4e4, 2)]
    assert asked == [math.inf, 1.0, 1.0, 0.9, 0.8]
    assert {setting.learning_rate for _, _, setting in cluster.epochs} == {0.1}


def test_one_group_is_repeated_with_a_tenth_of_the_learning_rate():
    cluster = Cluster()
    losses = iter([math.nan, 1.0, 0.9, 0.8, 0.7])
    automatic(
        cluster.probe,
        lambda *run: cluster.train(*run)._replace(loss=next(losses)),
        cluster.note,
        cluster.seconds_per_update,
        (1,),
        RULES,
    )
    assert [point.epoch for point, _, _ in cluster.epochs] == [0, 0, 1, 2, 3]
    rates = [setting.learning_rate for _, _, setting in cluster.epochs]
    assert rates == pytest.approx([0.01, *4 * [0.001]])


def test_one_worker_has_but_a_learning_rate_and_momentum_to_tune():
    """Synchronous SGD with the best momentum of the grid, from the second epoch on."""
    cluster = run(Cluster(best=0.65), groups=(1,))
    assert cluster.settings[:3] == [Setting(1, 0.9, alpha) for alpha in (0.1, 0.01, 0.001)]
    assert {setting.groups for setting in cluster.settings} == {1}
    assert [s for _, _, s in cluster.epochs] == [
        Setting(1, 0.9, 0.01),
        *3 * [Setting(1, 0.6, 0.01)],
    ]


def test_overhead_of_steady_state():
    """A setting that is kept is tried with the next one: two probes of 2 % an epoch."""
    cluster = run(Cluster(best=1.9, served=1.0))
    probed = sum(seconds for point, seconds, _ in cluster.probes if point.epoch)
    trained = sum(seconds for point, seconds, _ in cluster.epochs if point.epoch)
    assert probed / trained == pytest.approx(0.04)


momenta_of = st.sets(st.sampled_from([-0.9, -0.3, 0.0, 0.2, 0.5, 0.8, 0.95]), min_size=1)


@given(momenta_of, st.floats(1e-6, 1), st.integers(1, 64))
def test_settings_are_all_momenta_at_two_learning_rates(momenta, alpha, g):
    made = settings(g, alpha, tuple(momenta))
    assert len(made) == len(set(made)) == 2 * len(momenta)
    assert made == sorted(made, key=size, reverse=True)
    assert made[0] == Setting(g, max(momenta), alpha)


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
