"""A trial is the run of `launch.train`, and a crossing of its curve lies where the loss has it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn import trainer
from optdyn.config import ConfigError
from optdyn.configs import problems
from optdyn.evidence.trial import Curve, to_loss, trial
from tests.values import as_experiment


def small(groups=2):
    config = problems.quadratic(groups)
    config.steps = 40
    config.log_every = config.checkpoint_every = 40
    config.optimizer.learning_rate = 0.1
    return config


def test_a_trial_has_the_losses_and_seconds_of_the_trainers_run(tmp_path):
    config = small()
    curve, summary = trial(as_experiment(config)), trainer.train(as_experiment(config), tmp_path)
    assert curve.status == "ended" and curve.updates[0] == 0 and curve.updates[-1] == 40
    assert curve.losses[-1] == pytest.approx(summary["train_loss"], rel=1e-6)  # summed in one part
    assert curve.seconds[-1] == summary["simulated_seconds"]
    assert curve.test["loss"] == pytest.approx(summary["test_loss"], rel=1e-6)


def test_it_ends_at_the_target_or_when_too_much_has_passed():
    config = small()
    whole = trial(as_experiment(config))
    target = whole.losses[3]
    reached = trial(as_experiment(config), target)
    assert reached.status == "reached" and reached.losses == whole.losses[:4]
    capped = trial(as_experiment(config), -math.inf, most=whole.updates[2])
    assert capped.status == "ended" and capped.updates == whole.updates[:3]
    late = trial(as_experiment(config), -math.inf, most=whole.seconds[2], clock="seconds")
    assert late.updates == whole.updates[:3]


def test_looking_sooner_changes_no_loss_and_finds_a_crossing_that_was_between_looks():
    late, soon = trial(as_experiment(small())), trial(as_experiment(small()), first=1)
    assert late.updates[1] == 16 and soon.updates[:6] == [0, 1, 2, 3, 4, 5]
    seen = dict(zip(soon.updates, soon.losses, strict=True))
    common = {t: loss for t, loss in zip(late.updates, late.losses, strict=True) if t in seen}
    assert {0, 40} <= set(common) and all(seen[t] == loss for t, loss in common.items())
    target = soon.losses[4]
    assert to_loss(soon, target) == 4 < trial(as_experiment(small()), target).updates[-1]


def test_a_step_that_is_too_large_diverges_and_never_crosses():
    config = small()
    config.optimizer.learning_rate = 50.0
    curve = trial(as_experiment(config), 1e-3)
    assert curve.status == "diverged" and curve.test == {}
    assert math.isinf(to_loss(curve, 1e9))


def test_real_devices_are_refused():
    config = small(1)
    config.strategy.name, config.parallel.api = "sync", "jit"
    with pytest.raises(ConfigError, match="one device"):
        trial(as_experiment(config))


@given(st.floats(0.1, 3), st.floats(0.05, 0.9))
def test_the_crossing_of_an_exponential_is_exact(rate, loss):
    updates = [0, 8, 17, 40, 100]
    losses = np.exp(-rate * np.array(updates) / 10).tolist()
    curve = Curve(updates, [2.0 * n for n in updates], losses, "ended", {})
    expected = -10 * math.log(loss) / rate
    if expected <= 100:
        assert to_loss(curve, loss) == pytest.approx(expected, rel=1e-6)
        assert to_loss(curve, loss, "seconds") == pytest.approx(2 * expected, rel=1e-6)
    else:
        assert math.isinf(to_loss(curve, loss))


@pytest.mark.parametrize("method", ["model_averaging", "gossip"])
def test_seconds_to_a_mean_have_the_meeting_that_it_takes(method):
    """A run that ends between two meetings meets once more, so its clock is the reference."""
    config = small(1)
    config.strategy.name, config.cluster.nodes, config.batch_size = method, 4, 4
    config.cluster.service, config.cluster.bandwidth = "constant", 1e3
    config.probes.mean = True
    if method == "model_averaging":
        config.strategy.period = 4
    curve = trial(as_experiment(config), first=1)
    more = dict(zip(curve.updates, np.subtract(curve.met, curve.seconds), strict=True))
    reference = small(1)
    reference.strategy.name, reference.strategy.period = "model_averaging", 40
    reference.cluster, reference.steps = config.cluster, 7
    line = trainer.prepare(as_experiment(reference)).timeline
    meeting = line.seconds[-1] - line.seconds[-2] * 7 / 6
    assert meeting > 0 and more[0] == 0
    for update in range(1, 12):
        just_met = method == "model_averaging" and update % 4 == 0
        assert more[update] == pytest.approx(0 if just_met else meeting)
    config.probes.mean = False
    alone = trial(as_experiment(config), first=1)
    assert alone.met == alone.seconds
