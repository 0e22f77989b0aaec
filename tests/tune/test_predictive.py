"""The predictive mode's decisions, on clusters whose best setting is known."""

import math
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.implicit_momentum.probes import moments
from optdyn.methods.setup import Tune
from optdyn.train import trainer
from optdyn.tune.choice import Choice, EpochPoint, Measures, Outcome
from optdyn.tune.prediction import KAPPA, SMALL, MeasuredLoss, measure, penalty, stability
from optdyn.tune.predictive import SETTLE, better, guarded, of_step, planned, predictive, step
from tests.tune.cluster import FakeBench

MOMENTA = (0.0, 0.3, 0.6, 0.9)
RULES = Tune(
    momenta=MOMENTA,
    learning_rates=(0.1,),
    probe_seconds=60,
    probe_share=0.05,
    epoch_seconds=100,
    seconds=3100,
)
GROUPS = (1, 2, 4, 8)
FREE = dict.fromkeys(GROUPS, 1.0)
DEAR = {1: 1.0, 2: 3.0, 4: 9.0, 8: 27.0}


def plan(measured, served=1e-9):
    return planned(FakeBench(measured=measured, served=served), EpochPoint(), GROUPS)


def test_groups_are_those_of_the_least_predicted_time():
    """Free staleness: as many as make updates faster; dear, one; between, HE(g) P_SE(g) decides."""
    assert plan(Measures(0.1, 0.0, FREE))[0] == Choice(8, 0.0, 0.1)
    assert plan(Measures(0.1, 0.0, FREE), served=0.25)[0].groups == 4
    assert plan(Measures(0.1, 0.0, DEAR))[0] == Choice(1, 0.0, 0.1)
    between = {1: 1.0, 2: 1.2, 4: 2.0, 8: 8.1}  # over 1, 2, 4, 8: 1, 0.6, 0.5, 1.01
    assert plan(Measures(0.1, 0.0, between))[0] == Choice(4, 0.0, 0.05)


def test_explicit_momentum_is_what_the_groups_leave_of_the_total():
    """Explicit 0.9 - 1/2 at 2 groups, none at 8; the step is the same in the long run."""
    many, one = plan(Measures(0.1, 0.9, {1: 1.0, 2: 0.5, 4: 9.0, 8: 9.0}))
    assert one == Choice(1, 0.9, pytest.approx(0.01))
    assert many == Choice(2, pytest.approx(0.4), pytest.approx(0.2 * 0.6))
    assert plan(Measures(0.1, 0.9, FREE))[0] == Choice(
        8, pytest.approx(0.025), pytest.approx(0.0975)
    )


def run(cluster, rules=RULES):
    predictive(cluster, GROUPS, rules)
    return cluster


def dear(losses, seconds):
    """A cluster of dear staleness after epochs of those losses, and what they were."""
    measured = Measures(0.1, 0.0, DEAR)
    cluster = FakeBench(measured=measured, loss=lambda s, seconds: 1.0, losses=losses)
    run(cluster, RULES.with_(seconds=seconds))
    return cluster, [(point.epoch, length, s.learning_rate) for point, length, s in cluster.epochs]


def test_epochs_double_and_probes_are_a_share_of_them():
    cluster = run(FakeBench(measured=Measures(0.1, 0.0, DEAR), loss=lambda s, seconds: 1.0))
    assert [seconds for _, seconds, _ in cluster.epochs] == [100, 200, 400, 800, 1600]
    assert cluster.epochs[0][2] == Choice(1, 0.0, 0.1)  # nothing is probed before
    by_epoch = {}
    for point, seconds, setting in cluster.probes:
        by_epoch.setdefault(point.epoch, []).append((seconds, setting))
    # The setting itself, which goes on, and one challenger: 5 % of what is trained.
    assert {epoch: [s for s, _ in tried] for epoch, tried in by_epoch.items()} == {
        epoch: 2 * [5.0 * 2**epoch] for epoch in (1, 2, 3, 4)
    }
    challengers = [tried[1][1] for tried in by_epoch.values()]
    same = pytest.approx(0.1)
    assert [(s.momentum, step(s)) for s in challengers] == [
        (0.0, 0.2),
        (0.3, same),
        (0.0, 0.2),  # there is no momentum below: the next move
        (0.3, same),
    ]


def test_a_challenger_that_wins_trains_and_is_followed():
    """The best long-run step is 0.8, three doublings up; ties are kept."""
    cluster = FakeBench(
        measured=Measures(0.1, 0.0, DEAR),
        loss=lambda s, seconds: 1 + abs(math.log2(step(s) / 0.8)),
    )
    run(cluster, RULES.with_(seconds=12700))
    assert [round(step(s), 3) for _, _, s in cluster.epochs] == [0.1, 0.2, 0.4, *4 * [0.8]]


@pytest.mark.parametrize(("loss", "wins"), [(0.88, False), (0.86, True)])
def test_a_shorter_step_has_to_win_by_more(loss, wins):
    last, shorter, longer = (Choice(1, 0.0, alpha) for alpha in (0.1, 0.05, 0.2))
    cluster = FakeBench(loss=lambda s, seconds: {last: 1.0, shorter: loss, longer: 1.0}[s])
    assert better(cluster.tried, last, shorter) == (shorter if wins else last)
    assert better(cluster.tried, last, longer) == last


@pytest.mark.parametrize(
    ("mu", "loss", "wins"),
    [(0.3, 0.88, False), (0.3, 0.86, True), (0.9, 0.97, True), (0.9, 0.99, False)],
)
def test_so_has_less_momentum_and_more_by_less(mu, loss, wins):
    last, other = of_step(1, 0.6, 0.1), of_step(1, mu, 0.1)
    cluster = FakeBench(loss=lambda s, seconds: 1.0 if s == last else loss)
    assert better(cluster.tried, last, other) == (other if wins else last)


def test_what_diverges_loses():
    last, other = Choice(1, 0.0, 0.1), Choice(1, 0.0, 0.05)
    cluster = FakeBench(loss=lambda s, seconds: math.nan if s == last else 7.0)
    assert better(cluster.tried, last, other) == other


@pytest.mark.parametrize("one", [0.5, 1.5])
def test_synchronous_training_stands_against_the_groups(one):
    """A wrong prediction costs two epochs and a probe: after it, one group trains if better."""
    cluster = run(
        FakeBench(
            measured=Measures(0.1, 0.0, FREE),
            served=1e-9,
            loss=lambda s, seconds: one if s.groups == 1 else 1.0,
        )
    )
    assert [s.groups for _, _, s in cluster.epochs] == [8, 8, *3 * [1 if one < 1 else 8]]
    guarded = [(seconds, s) for point, seconds, s in cluster.probes if point.epoch == 2]
    assert guarded == [
        (40.0, Choice(8, 0.0, 0.1)),
        (40.0, Choice(8, 0.0, 0.05)),
        (40.0, Choice(1, 0.0, 0.1)),
    ]


@pytest.mark.parametrize(
    ("half", "g", "step_kept"), [(0.85, 8, False), (0.95, 1, True), (0.9, 8, True)]
)
def test_groups_are_not_judged_by_a_step_that_has_more_noise(half, g, step_kept):
    """One group at 0.8 is 15 % better than 8 at 1.0, but not than 8 with half the step at 0.9."""
    many, one = Choice(8, 0.0, 0.1), Choice(1, 0.0, 0.1)
    losses = {many: 1.0, one: 0.8, Choice(8, 0.0, 0.05): half}
    cluster = FakeBench(loss=lambda s, seconds: losses[s])
    found = guarded(cluster, EpochPoint(), 5.0, many, one)
    assert (found.groups, found.learning_rate == 0.1) == (g, step_kept)
    assert len(cluster.probes) == 3


@pytest.mark.parametrize("bad", [math.nan, 100.0, 150.0])
def test_an_epoch_that_does_not_lower_the_loss_is_repeated_with_half_the_step(bad):
    losses = [bad, 1.0, math.nan, 0.9]
    cluster, made = dear(losses, 600)
    assert made == [(0, 100, 0.1), (0, 100, 0.05), (1, 200, 0.05), (1, 200, 0.025)]
    assert cluster.asked == [100.0, 100.0, 1.0, 1.0]


def test_an_epoch_that_half_the_step_makes_no_better_was_too_short():
    losses = [100.0, 101.0, 1.0, 0.5]
    _, made = dear(losses, 800)
    assert made == [(0, 100, 0.1), (0, 100, 0.05), (0, 200, 0.1), (1, 400, 0.1)]


def test_an_epoch_that_hardly_lowers_the_loss_is_gone_on_from_with_half_the_step():
    """0.9 of the loss before is held up, 0.8 is not; nothing is probed for the epoch after."""
    losses = [1.0, 0.8, 0.72, 0.5]
    cluster, made = dear(losses, 1500)
    assert made == [(0, 100, 0.1), (1, 200, 0.1), (2, 400, 0.1), (3, 800, 0.05)]
    assert {point.epoch for point, _, _ in cluster.probes} == {1, 2}


def test_groups_are_guarded_even_if_the_second_epoch_is_held_up():
    losses = [1.0, 0.9, 0.4, 0.2]
    cluster = FakeBench(measured=Measures(0.1, 0.0, FREE), served=1e-9, losses=losses)
    cluster.loss = lambda s, seconds: 0.5 if s.groups == 1 else 1.0
    run(cluster, RULES.with_(seconds=1500))
    assert [s.groups for _, _, s in cluster.epochs] == [8, 8, 8, 1]


def test_where_only_noise_is_left_the_step_falls_and_nothing_is_probed():
    settled = Outcome(0.5, 9, 60.0, settled=True)
    losses = [settled, Outcome(0.1, 5, 7.0, reached=True)]
    cluster = run(FakeBench(measured=Measures(0.1, 0.0, DEAR), losses=losses))
    (_, _, first), (point, seconds, then) = cluster.epochs
    assert then.learning_rate == first.learning_rate / SETTLE
    assert point.epoch == 1 and seconds == 100 and not cluster.probes


@given(st.floats(0.01, 1), st.floats(1, 30), st.sampled_from(GROUPS), st.floats(0, 0.9))
def test_probes_stay_a_small_share(measured, penalty, g, momentum):
    """Of the whole training, whatever is chosen: 2 challengers of 10 % once, one of 5 % else."""
    penalties = {n: 1.0 if n == g else penalty for n in GROUPS}
    cluster = FakeBench(
        measured=Measures(measured, momentum, penalties), loss=lambda s, seconds: 1.0
    )
    run(cluster)
    trained = sum(seconds for _, seconds, _ in cluster.epochs)
    longest = {}
    for point, seconds, setting in (*cluster.probes, *cluster.epochs):
        longest[point, setting] = max(longest.get((point, setting), 0), seconds)
    assert trained == RULES.seconds
    assert sum(longest.values()) - trained <= 0.08 * trained


# The predicted penalty: its limits, and what is measured for it where it is known.


positive = st.floats(1e-2, 1e2)
measurements = st.builds(MeasuredLoss, positive, positive, positive)


@given(measurements, positive, positive)
def test_limits(found, batch, limit):
    whole = 1 + KAPPA * found.sharpness * found.step / limit
    assert 1 <= penalty(found, batch, limit) <= whole  # noise hides staleness, never the reverse
    np.testing.assert_allclose(penalty(found, 1e12, limit), whole, rtol=1e-6)
    np.testing.assert_allclose(penalty(found, 1e-15, limit), 1, atol=1e-6)
    assert penalty(found, batch, np.inf) == 1
    # At the noise scale half of the penalty is left.
    half = penalty(found, found.noise_scale, limit) - 1
    np.testing.assert_allclose(half, (whole - 1) / 2, rtol=1e-6)


@pytest.mark.parametrize("service", ["constant", "exponential", "lognormal", "gamma"])
def test_more_groups_allow_smaller_steps(config, service):
    cluster = config({"cluster.nodes": 16, "cluster.service.name": service})
    limits = [stability(cluster, groups) for groups in (1, 2, 4, 16)]
    assert limits[0] == np.inf
    assert all(many < few for few, many in pairwise(limits))


def test_what_is_measured_of_a_quadratic(config):
    """With steps that lead nowhere: the moments at x_0, the largest curvature 1, and the step."""
    values = {"model.noise": 2.0, "optimizer.learning_rate": 1e-6, "optimizer.momentum": 0.5}
    found = measure(config(values), updates=9)
    run = trainer.prepare(config(values))
    examples = {name: jnp.asarray(leaf) for name, leaf in run.data.train.items()}
    exact = moments(run.program.problem, SMALL, run.params, examples)
    np.testing.assert_allclose(found.noise_scale, exact.trace / exact.square, rtol=1e-3)
    np.testing.assert_allclose(found.sharpness, 1, rtol=1e-3)
    batch = run.config.batch_size
    np.testing.assert_allclose(found.step, 2e-6 * (1 + found.noise_scale / batch), rtol=1e-6)
