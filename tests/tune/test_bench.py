"""A setting run from a checkpoint: the run of `launch.train`, cut up, stopped and charged."""

import jax
import numpy as np
import pytest

from optdyn.evidence.trial import trial
from optdyn.experiment import ConfigError
from optdyn.problem import shared_data
from optdyn.train import program, trainer
from optdyn.train.checkpoints import fingerprint
from optdyn.tune import bench
from optdyn.tune.choice import Choice

CHECKPOINT_EVERY = 20

VALUES = {
    "cluster.nodes": 8,
    "steps": 60,
    "log_every": 10,
    "optimizer.momentum": 0.3,
    "optimizer.learning_rate": 0.1,
}
SETTING = Choice(4, 0.3, 0.1)


@pytest.fixture(scope="module")
def cluster(config):
    return bench.prepare(config({**VALUES, "tune.probe_seconds": 1.0}))


def attempt(cluster, setting, seconds, *more, **named):
    """From the start."""
    return bench.attempt(cluster, bench.start(cluster), setting, seconds, *more, **named)


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def near(one, other):
    # Two compilations of the same sums: some ulp (1e-7) of numbers up to 1 an update, 60 updates.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), one, other)


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_from_the_start_it_is_the_run_of_the_trainer(cluster, config, groups, tmp_path, final):
    chosen = config({**VALUES, "method.groups": groups})
    run = trainer.prepare(chosen)
    trainer.train(chosen, tmp_path)
    _, state = final(run, tmp_path)
    seconds = float(run.timeline.seconds[-1])
    setting = SETTING._replace(groups=groups)
    after, outcome = attempt(cluster, setting, seconds)
    assert (outcome.updates, outcome.seconds) == (60, seconds)
    assert int(after.updates) == 60
    near(after.state.params, state.params)
    near(after.state.opt_state, state.opt_state)
    # 60 updates of random service against many: a standard error of 0.13 at the most, and twice it.
    assert bench.seconds_per_update(cluster, groups) == pytest.approx(seconds / 60, rel=0.26)


def test_the_loss_is_that_of_the_examples_of_a_runs_log(config):
    chosen = config({**VALUES, "tune.probe_seconds": 1.0})
    chosen = chosen.with_({"data.train_evaluated": 70})
    run = trainer.prepare(chosen)
    _, (logged,), _ = shared_data.put_on_devices(run.data, run.program.layout.put_examples, chosen)
    assert len(next(iter(logged.values()))) == 70
    (evaluated,) = bench.prepare(chosen).evaluated
    same(dict(evaluated), dict(logged))


@pytest.mark.parametrize("groups", [1, 4])
def test_a_setting_goes_on_as_if_it_had_not_been_interrupted(cluster, groups):
    setting = SETTING._replace(groups=groups)
    whole, outcome = attempt(cluster, setting, 0.2)
    middle, first = attempt(cluster, setting, 0.07)
    line = bench._timeline(cluster.run, groups, 0, 1.0)
    left = line.seconds[outcome.updates - 1] - line.seconds[first.updates - 1]
    after, second = bench.attempt(cluster, middle, setting, float(left) + 1e-9)
    assert 0 < first.updates < first.updates + second.updates == outcome.updates
    same(after, whole)


def test_other_groups_start_from_the_parameters_of_the_checkpoint(cluster):
    begin, _ = attempt(cluster, SETTING, 0.05)
    groups = (1, 2, 8)
    assert SETTING.groups not in groups
    after = [bench.attempt(cluster, begin, SETTING._replace(groups=g), 1e-9)[0] for g in groups]
    assert all(int(one.updates) == int(begin.updates) + 1 for one in after)
    for one in after[1:]:
        same(one.state.params, after[0].state.params)


def test_a_probes_loss_is_that_of_its_mean_parameters(cluster):
    line = bench._timeline(cluster.run, 4, 0, 1.0)

    def after(updates):
        seconds = float(line.seconds[updates - 1])
        made, outcome = attempt(cluster, SETTING, seconds)
        assert outcome.updates == updates
        return made.state.params, outcome.loss

    moments = [after(updates)[0] for updates in range(18, 33, 2)]  # of 32 updates
    mean = jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), axis=0), *moments)
    expected = program.evaluate(cluster.run.program, mean, cluster.evaluated)["loss"]
    # Means of 8 float32 numbers in two orders.
    assert after(32)[1] == pytest.approx(expected, rel=1e-5)
    assert after(1)[1] == evaluated(cluster, attempt(cluster, SETTING, 1e-9)[0])


def test_attempts_are_pure_and_compiled_once(cluster):
    begin, _ = attempt(cluster, SETTING, 0.05)
    before = jax.device_get(begin)
    compilations = cluster.run.program.advance._cache_size()
    first = bench.attempt(cluster, begin, SETTING, 0.1)
    for setting in (Choice(1, 0.9, 0.01), Choice(8, -0.5, 0.001), Choice(2, 0.0, 1e9)):
        bench.attempt(cluster, begin, setting, 0.1)
    again = bench.attempt(cluster, begin, SETTING, 0.1)
    assert again[1] == first[1]
    same(again[0], first[0])
    same(begin, before)
    assert cluster.run.program.advance._cache_size() == compilations


def test_initializations_differ_and_the_first_is_the_trainers(config, mnist):
    network = bench.prepare(config(mnist))
    starts = [fingerprint(bench.start(network, seed).state.params) for seed in (0, 1, 1, 2)]
    assert starts[0] == fingerprint(network.run.params)
    assert starts[1] == starts[2] and len(set(starts)) == 3


def evaluated(cluster, checkpoint):
    return program.evaluate(cluster.run.program, checkpoint.state.params, cluster.evaluated)["loss"]


def test_it_ends_at_the_first_log_point_at_the_target(cluster):
    line = bench._timeline(cluster.run, 4, 0, 1.0)
    ends = [line.seconds[n - 1] for n in (10, 20, 30, 40)]
    losses = [evaluated(cluster, attempt(cluster, SETTING, float(end))[0]) for end in ends]
    # The loss falls from one log point to the next, or the target says nothing.
    assert losses == sorted(losses, reverse=True)
    target = (losses[1] + losses[2]) / 2
    after, outcome = attempt(cluster, SETTING, 10.0, target)
    assert (outcome.reached, outcome.updates, outcome.seconds) == (True, 30, ends[2])
    assert evaluated(cluster, after) == losses[2]
    assert outcome.curve == list(zip(ends[:3], losses[:3], strict=True))
    _, outcome = attempt(cluster, SETTING, float(ends[1]) + 1e-6, target)
    assert not outcome.reached and outcome.updates == 20


def test_an_epoch_that_has_gone_wrong_ends_at_once(cluster):
    begin = bench.start(cluster)
    first = bench.start_loss(cluster, begin)
    _, outcome = attempt(cluster, Choice(2, 0.0, 3.5), 10.0, 0.0, first)
    assert np.isnan(outcome.loss) and outcome.updates < 100
    bound = evaluated(cluster, attempt(cluster, SETTING, 0.2)[0]) * 1.01
    _, kept = attempt(cluster, SETTING, 0.2, 0.0, bound)
    assert kept.loss < bound and kept.seconds == 0.2


def test_it_settles_where_the_mean_of_the_latest_parameters_is_at_the_target(cluster):
    setting = Choice(1, 0.0, 1.0)
    floor = attempt(cluster, setting, 20.0)[1].loss
    _, long = attempt(cluster, setting, 20.0, 0.0)
    target = (2 * floor + min(long.loss, 3 * floor)) / 3
    after, outcome = attempt(cluster, setting, 20.0, target, settle=True)
    assert outcome.settled or outcome.reached
    assert outcome.seconds < 20.0
    if outcome.settled:
        assert outcome.loss > target and outcome.loss == evaluated(cluster, after)


def test_a_first_epoch_has_to_be_below_the_start_and_below_chance(config, mnist, cluster):
    network = bench.prepare(config(mnist))
    loss = bench.start_loss(network, bench.start(network))
    assert loss == min(evaluated(network, bench.start(network)), 0.99 * np.log(10))
    begin = bench.start(cluster)  # nothing is classified
    assert bench.start_loss(cluster, begin) == evaluated(cluster, begin)


def test_measuring_is_charged_in_synchronous_updates(config, mnist):
    """64 gradients, and of half of the examples three products with the Hessian, two each."""
    network = bench.prepare(config({**mnist, "tune.probe_seconds": 1.0}))
    found = bench.measure(network, bench.start(network))
    seconds = bench.seconds_per_update(network, 1)
    assert found["seconds"] == pytest.approx((64 + 32 * 6) / 4 * seconds)
    assert found["penalties"][0] == 1.0 and found["penalties"] == sorted(found["penalties"])
    assert found["noise_scale"] > 0 and found["sharpness"] > 0
    # The step: so much over the sharpness where noise does not limit it, less as it does.
    noise = 1 + found["noise_scale"] / 4
    momentum = max(1 - 0.1 * noise, 0)
    assert found["momentum"] == pytest.approx(momentum)
    edge = (3.5 + 2.5 * momentum / 0.9) / found["sharpness"]
    assert found["step"] == pytest.approx(edge / noise)


@pytest.mark.parametrize("groups", [3, 12])
def test_an_attempt_takes_the_seconds_of_a_trial(config, groups):
    chosen = config({**VALUES, "cluster.nodes": 12, "tune.probe_seconds": 1.0})
    curve = trial(chosen.with_({"method.groups": groups}))
    cluster, setting = bench.prepare(chosen), SETTING._replace(groups=groups)
    _, outcome = attempt(cluster, setting, curve.seconds[-1], 0.0)
    # Two compilations of the same sums.
    assert (outcome.updates, outcome.loss) == (60, pytest.approx(curve.losses[-1], rel=1e-4))


def test_divergence_ends_it_and_is_charged_until_then(cluster):
    setting = Choice(2, 0.9, 1e12)
    _, outcome = attempt(cluster, setting, 10.0)
    assert np.isnan(outcome.loss) and not outcome.reached
    line = bench._timeline(cluster.run, 2, 0, 10.0)
    assert outcome.seconds == line.seconds[outcome.updates - 1] < 1.0


def test_groups_are_all_divisors_of_the_workers(config):
    for nodes, groups in [(1, (1,)), (7, (1, 7)), (8, (1, 2, 4, 8)), (12, (1, 2, 3, 4, 6, 12))]:
        chosen = config({"cluster.nodes": nodes, "method.groups": 1})
        assert bench.prepare(chosen).groups == groups


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method.name": "sync"}, "config.method.name = 'sync'"),
        ({"optimizer.name": "adam"}, "config.optimizer.name = 'adam'"),
        ({"optimizer.schedule": "cosine"}, "config.optimizer.schedule"),
        ({"optimizer.warmup_steps": 5}, "config.optimizer.schedule"),
        ({"tune.probe_seconds": 1e-4}, "config.tune.probe_seconds = 0.0001"),
    ],
)
def test_what_cannot_be_tuned_is_refused(config, values, message):
    with pytest.raises(ConfigError) as caught:
        bench.prepare(config(values))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_step_is_positive_where_the_loss_curves_down(cluster, monkeypatch):
    """A few iterations can end in a direction of negative curvature, which limits steps as well."""

    def measured(peak):
        found = bench.GradientMoments(np.float32(1.0), np.float32(50.0))
        monkeypatch.setattr(bench, "_limits", lambda of: lambda *given: (found, np.float32(peak)))
        return bench.measure(cluster, bench.start(cluster))

    assert measured(-5.0) == measured(5.0) and measured(-5.0)["step"] > 0
