"""Omnivore's decisions, on clusters whose best setting is known.

`Cluster` has a best total momentum, and seconds an update that fall until a server is saturated.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.experiment import ConfigError
from optdyn.methods.setup import Tune
from optdyn.tune.choice import Choice, EpochPoint, Outcome
from optdyn.tune.omnivore import cold_start, halved, omnivore, search, settings, size, steady_state
from tests.tune.cluster import FakeBench

MOMENTA = (0.0, 0.3, 0.6, 0.9)
RATES = (0.1, 0.01, 0.001, 0.0001)
RULES = Tune(
    momenta=MOMENTA,
    learning_rates=RATES,
    probe_seconds=60,
    probe_share=0.02,
    epoch_seconds=1e4,
    seconds=4e4,
)
GROUPS = (1, 2, 4, 8, 16, 32)


def listed(losses, otherwise=2.0):
    """A cluster with these losses, and another wherever there is none."""
    return FakeBench(loss=lambda setting, seconds: losses.get(setting, otherwise))


def near(best):
    """Losses by how near total momentum is, however many updates there are."""
    return FakeBench(loss=lambda s, seconds: 1 + abs(s.momentum + 1 - 1 / s.groups - best))


def of(settings, g):
    return [s[1:] for s in settings if s.groups == g]


def test_one_group_tries_every_rate_upwards_and_finer_momenta_at_the_best():
    cluster = FakeBench(best=0.75)
    cold_start(cluster, (1,), RULES)
    assert cluster.settings == [
        *(Choice(1, 0.9, alpha) for alpha in RATES[::-1]),
        *(Choice(1, mu, 0.01) for mu in (0.7, 0.8)),
        cluster.settings[-1],
    ]
    assert [seconds for _, seconds, _ in cluster.probes] == 6 * [60] + [300]
    # 0.7 and 0.8 are equally near 0.75.
    assert cluster.settings[-1].learning_rate == 0.01
    assert cluster.settings[-1].momentum in (0.7, 0.8)


def test_more_groups_leave_out_what_is_larger_or_smaller_than_fewer_liked_best():
    """Best total 1: 0.9 for one group, 0.5 for two, found by the finer grid."""
    cluster = near(1.0)
    cold_start(cluster, (1, 2, 4), RULES)
    low = pytest.approx(0.01)
    two = [(0.9, low), *((mu, 0.1) for mu in MOMENTA), *((mu, 0.1) for mu in (0.4, 0.5, 0.7, 0.8))]
    assert of(cluster.settings, 2)[:-1] == two
    # After (0.5, 0.1) all of 0.6 and more at 0.1 is larger, all of 0.3 and less at 0.01 smaller.
    assert of(cluster.settings, 4)[:4] == [(0.6, low), (0.9, low), (0.0, 0.1), (0.3, 0.1)]


def test_longer_runs_of_every_group_count_choose_among_them():
    """A short probe likes 8 groups best; the third phase, 5 times as long, 2."""
    short = {1: 1.9, 2: 1.8, 4: 1.7, 8: 1.6}
    longer = {8: math.nan, 4: 1.1, 2: 1.0, 1: 1.2}

    def loss(setting, seconds):
        losses = longer if seconds > RULES.probe_seconds else short
        return losses[setting.groups] + 0.9 - setting.momentum - setting.learning_rate

    cluster = FakeBench(loss=loss, served=1e-9)
    _, best, most = cold_start(cluster, (1, 2, 4, 8), RULES)
    assert best == Choice(2, 0.9, 0.1) and most == 8
    assert [s.groups for _, seconds, s in cluster.probes if seconds == 300] == [1, 2, 4, 8]


@pytest.mark.parametrize(("gain", "most"), [(1.09, 1), (1.11, 2)])
def test_more_groups_must_make_updates_a_tenth_faster(gain, most):
    cluster = FakeBench(served=1 / gain)
    assert cold_start(cluster, (1, 2), RULES)[2] == most
    assert ("saturated" in {what for what, _ in cluster.notes}) == (most == 1)


def test_the_best_of_several_initializations_is_kept():
    cluster = FakeBench()
    losses = {EpochPoint(0): 2.0, EpochPoint(1): 1.0, EpochPoint(2): 3.0}
    inner = cluster.probe

    def probe(point, seconds, setting):
        outcome = inner(point, seconds, setting)
        return outcome._replace(loss=losses[point] * outcome.loss)

    cluster.probe = probe
    point, _, _ = cold_start(cluster, GROUPS, RULES.with_(seeds=3))
    assert point == EpochPoint(1)
    assert all(at == point for at, _, setting in cluster.probes if setting.groups > 1)
    assert {at for at, _, setting in cluster.probes if setting.groups == 1} == set(losses)


@pytest.mark.parametrize(("loss", "taken"), [(1.009, True), (1.011, False)])
def test_of_settings_within_a_hundredth_the_largest_is_taken_in_steady_state(loss, taken):
    """Largest learning rate first, then momentum; the cold start takes the least loss."""
    least, larger = Choice(2, 0.9, 0.01), Choice(2, 0.3, 0.1)
    losses = {least: 1.0, larger: loss, Choice(2, 0.0, 0.1): loss}
    grid, last = settings(2, 0.1, MOMENTA), Choice(2, 0.9, 0.1)
    found, _ = search(listed(losses).tried, grid, MOMENTA, last, 1.01)
    assert found == (larger if taken else least)
    assert search(listed(losses).tried, grid, MOMENTA, last)[0] == least


def test_the_finer_grid_is_a_tenth_and_a_fifth_around_the_best():
    cluster = listed({Choice(2, 0.3, 0.1): 1.0, Choice(2, 0.4, 0.1): 0.9})
    found, _ = search(cluster.tried, settings(2, 0.1, MOMENTA), MOMENTA)
    assert found == Choice(2, 0.4, 0.1)
    assert of(cluster.settings, 2)[-4:] == [(mu, 0.1) for mu in (0.1, 0.2, 0.4, 0.5)]


def test_what_is_larger_in_both_than_one_that_diverged_is_not_tried():
    cluster = FakeBench(loss=lambda s, seconds: math.nan if s.learning_rate >= 0.1 else s.momentum)
    search(cluster.tried, settings(2, 0.1, MOMENTA), MOMENTA)
    assert of(cluster.settings, 2)[:5] == [*((mu, pytest.approx(0.01)) for mu in MOMENTA), (0, 0.1)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_where_all_diverge_the_learning_rate_falls(bad):
    cluster = FakeBench(loss=lambda s, seconds: 1.0 if s.learning_rate < 5e-4 else bad)
    best, _ = search(cluster.tried, [Choice(4, mu, 0.1) for mu in MOMENTA], MOMENTA)
    assert best.learning_rate == pytest.approx(1e-4)


def test_a_loss_that_never_is_finite_is_said():
    cluster = FakeBench(loss=lambda setting, seconds: math.nan)
    with pytest.raises(ConfigError, match="must have one at which the loss is finite"):
        search(cluster.tried, [Choice(1, 0.9, alpha) for alpha in RATES], MOMENTA)


def test_groups_are_halved_while_no_momentum_is_best():
    """Best total 0.6: of 32 to 4 groups no momentum is; of 2 groups 0.1, which phase two finds."""
    cluster = near(0.6)
    best, most = steady_state(cluster.tried, Choice(32, 0.9, 0.01), 32, MOMENTA, GROUPS)
    assert (best, most) == (Choice(2, pytest.approx(0.1), 0.01), 2)
    assert list(dict.fromkeys(s.groups for s in cluster.settings)) == [32, 16, 8, 4, 2]
    # Searched again as if 0.6 had been the best: nothing larger.
    assert max(mu for mu, alpha in of(cluster.settings, 16) if alpha > 0.005) == 0.6


def test_groups_are_kept_where_negative_momentum_is_tried():
    """The authors' open question: at 32 groups 0.75 - 31/32 = -0.22 is best, of these -0.2."""
    last = Choice(32, 0.9, 0.01)
    momenta = (-0.6, -0.3, *MOMENTA)
    best, most = steady_state(near(0.75).tried, last, 32, momenta, GROUPS)
    assert (best.groups, best.momentum, most) == (32, pytest.approx(-0.2), 32)
    assert steady_state(near(0.75).tried, last, 32, MOMENTA, GROUPS)[1] < 32


def test_one_group_may_have_no_momentum():
    assert steady_state(near(0.0).tried, Choice(4, 0.9, 0.01), 4, MOMENTA, GROUPS) == (
        Choice(1, 0.0, 0.01),
        1,
    )


def test_epochs_are_equally_long_and_go_on_from_one_another():
    cluster = near(0.75)
    omnivore(cluster, GROUPS, RULES)
    assert [seconds for _, seconds, _ in cluster.epochs] == 4 * [1e4]
    assert [point for point, _, _ in cluster.epochs] == [EpochPoint(0, epoch) for epoch in range(4)]
    assert cluster.asked == [
        100.0,
        *(cluster.outcome(s, 0).loss / (n + 1) for n, (_, _, s) in enumerate(cluster.epochs[:3])),
    ]
    lengths = {(point.epoch, seconds) for point, seconds, _ in cluster.probes if point.epoch}
    assert lengths == {(epoch, 200) for epoch in (1, 2, 3)}


def test_the_target_ends_it():
    done = Outcome(0.1, 5, 7e3, reached=True)
    cluster = FakeBench(losses=[0.5, done])
    omnivore(cluster, GROUPS, RULES)
    assert len(cluster.epochs) == 2


@pytest.mark.parametrize("bad", [math.nan, 100.0, 150.0])
def test_a_first_epoch_that_does_not_lower_the_loss_is_refused_too(bad):
    """100 is the loss at the start: half the groups, then a tenth of the learning rate."""
    cluster = near(1.4)
    cluster.losses = iter([bad, bad, bad, 1.0])
    omnivore(cluster, (1, 2, 4), RULES.with_(momenta=(0.6,)))
    epochs = [(point.epoch, s.groups, s.learning_rate) for point, _, s in cluster.epochs]
    g = epochs[0][1]
    assert cluster.asked == 4 * [100.0]
    assert [epoch for epoch, _, _ in epochs] == [0, 0, 0, 0]
    expected = {1: [1, 1, 1, 1], 2: [2, 1, 1, 1], 4: [4, 2, 1, 1]}[g]
    assert [groups for _, groups, _ in epochs] == expected
    assert epochs[-1][2] == pytest.approx(0.1 * 0.1 ** (3 - int(math.log2(g))))


momenta_of = st.sets(st.sampled_from([-0.9, -0.3, 0.0, 0.2, 0.5, 0.8, 0.95]), min_size=1)


@given(momenta_of, st.floats(1e-6, 1), st.integers(1, 64))
def test_settings_are_all_momenta_at_two_learning_rates(momenta, alpha, g):
    made = settings(g, alpha, tuple(momenta))
    assert len(made) == len(set(made)) == 2 * len(momenta)
    assert made == sorted(made, key=size)
    assert made[-1] == Choice(g, max(momenta), alpha)


@given(momenta_of, st.floats(-0.5, 1.5), st.sampled_from(GROUPS))
def test_a_search_finds_a_loss_no_worse_than_any_of_its_grid(momenta, best, g):
    cluster = near(best)
    grid = [Choice(g, mu, 0.01) for mu in momenta]
    _, loss = search(cluster.tried, grid, tuple(momenta))
    assert loss <= min(cluster.outcome(one, 200).loss for one in grid)
    assert loss == min(cluster.outcome(one, 200).loss for one in cluster.settings)


def test_where_nothing_is_half_of_the_groups_it_is_the_next_fewer():
    assert [halved((1, 2, 3, 4, 6, 12), g) for g in (12, 6, 4, 3, 2, 1)] == [6, 3, 2, 1, 1, 1]
    assert [halved((1, 3, 9), g) for g in (9, 3)] == [3, 1]
    best, most = steady_state(near(0.6).tried, Choice(9, 0.9, 0.01), 9, MOMENTA, (1, 3, 9))
    assert (best.groups, most) == (1, 1)
