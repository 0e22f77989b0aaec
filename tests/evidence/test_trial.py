"""A trial is the run of `launch.train`, and a crossing of its curve lies where the loss has it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock.service import Constant
from optdyn.evidence import trial as trials
from optdyn.evidence.trial import Curve, left_open, to_loss, trial
from optdyn.experiment import Config, ConfigError
from optdyn.train import trainer
from tests.evidence.known import quadratic


def small(groups=2):
    every = dict.fromkeys(("steps", "log_every", "checkpoint_every"), 40)
    return quadratic(groups).with_({"optimizer.learning_rate": 0.1}, **every)


def test_a_trial_has_the_losses_and_seconds_of_the_trainers_run(tmp_path):
    config = small()
    curve, summary = trial(config), trainer.train(config, tmp_path)
    assert curve.status == "ended" and curve.updates[0] == 0 and curve.updates[-1] == 40
    assert curve.losses[-1] == pytest.approx(summary["train_loss"], rel=1e-6)  # summed in one part
    assert curve.seconds[-1] == summary["simulated_seconds"]
    assert curve.test["loss"] == pytest.approx(summary["test_loss"], rel=1e-6)


def test_a_metered_trial_that_is_cut_short_has_the_whole_runs_schedule():
    """Its losses are a prefix of those of the run that goes on."""
    every = {"steps": 120, "log_every": 20, "checkpoint_every": 0, "optimizer.schedule": "cosine"}
    windows = {"probes.momentum": True, "probes.window": 54, "probes.every": 60}
    metered = small().with_({**every, **windows})
    whole, part = trial(metered), trial(metered, most=60)
    assert part.losses == whole.losses[: len(part.losses)] and part.updates[-1] == 60


def test_a_timeline_is_drawn_once_for_all_steps_and_momenta_and_for_nothing_else(monkeypatch):
    """Curves are those of timelines that are drawn each time."""
    seeds = [3, 4, 3]
    every = [small(2).with_({"optimizer.momentum": m}, seed=s) for m in (0.0, 0.5) for s in seeds]
    every += [each.with_({"method.groups": 4}) for each in every[:1]]
    drawn, draw = list[int](), Config.timeline

    def counted(config, **known):
        drawn.append(config.seed)
        return draw(config, **known)

    monkeypatch.setattr(Config, "timeline", counted)
    trials._drawn.cache_clear()
    found = [trial(each) for each in every]
    assert drawn == [3, 4, 3]
    for each, curve in zip(every, found, strict=True):
        trials._drawn.cache_clear()
        assert trial(each) == curve


def test_timelines_that_are_kept_take_no_more_than_they_may(monkeypatch):
    """With room for two and a half of them, a third one has the others drawn again."""
    trials._drawn.cache_clear()
    monkeypatch.setattr(trials, "_kept", 0)
    trials.timeline_of(small().with_(seed=1), update_bytes=4, steps_per_epoch=5, model_info=None)
    monkeypatch.setattr(trials, "MOST_KEPT", 5 * trials._kept // 2)
    kept = []
    for seed in (1, 2, 1, 3, 3, 1):
        own = small().with_(seed=seed)
        trials.timeline_of(own, update_bytes=4, steps_per_epoch=5, model_info=None)
        kept.append(trials._drawn.cache_info().currsize)
    assert kept == [1, 2, 2, 1, 1, 2]


def test_it_ends_at_the_target_or_when_too_much_has_passed():
    config = small()
    whole = trial(config)
    target = whole.losses[3]
    reached = trial(config, target)
    assert reached.status == "reached" and reached.losses == whole.losses[:4]
    capped = trial(config, -math.inf, most=whole.updates[2])
    assert capped.status == "ended" and capped.updates == whole.updates[:3]
    late = trial(config, -math.inf, most=whole.seconds[2], clock="seconds")
    assert late.updates == whole.updates[:3]


def test_looking_sooner_changes_no_loss_and_finds_a_crossing_that_was_between_looks():
    late, soon = trial(small()), trial(small(), first=1)
    assert late.updates[1] == 16 and soon.updates[:6] == [0, 1, 2, 3, 4, 5]
    seen = dict(zip(soon.updates, soon.losses, strict=True))
    common = {t: loss for t, loss in zip(late.updates, late.losses, strict=True) if t in seen}
    assert {0, 40} <= set(common) and all(seen[t] == loss for t, loss in common.items())
    target = soon.losses[4]
    assert to_loss(soon, target) == 4 < trial(small(), target).updates[-1]


def test_a_step_that_is_too_large_diverges_and_never_crosses():
    config = small().with_({"optimizer.learning_rate": 50.0})
    curve = trial(config, 1e-3)
    assert curve.status == "diverged" and curve.test == {}
    assert math.isinf(to_loss(curve, 1e9))


def test_real_devices_are_refused():
    config = small(1).with_({"method.name": "sync", "parallel.api": "jit"})
    with pytest.raises(ConfigError, match="one device"):
        trial(config)


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


def test_what_log_points_leave_open_is_told_and_of_a_missed_loss_nothing():
    updates = [0, 10, 20, 40]
    fell = Curve(updates, updates, [1.0, 0.5, 0.25, 0.0625], "ended", {})
    assert left_open([fell], 0.5 * 0.5**0.5) == pytest.approx([10 / 15, 20 / 15])
    assert left_open([fell], 0.01) == left_open([fell], 1.0) == [1, 1]


@pytest.mark.parametrize(
    ("method", "delay"),
    [("model_averaging", 0), ("model_averaging", 2), ("model_averaging+gossip", 0), ("gossip", 0)],
)
def test_seconds_to_a_mean_have_the_meeting_that_it_takes(method, delay):
    """A run that ends between two meetings meets once more, so its clock is the reference.

    After a meeting with neighbours, or one of what was sent two updates before, nodes differ.
    """
    config = small(1).with_({"method.name": method, "probes.mean": True}, batch_size=4)
    cluster = config.cluster.with_(nodes=4, service=Constant(), bandwidth=1e3)
    config = config.with_(cluster=cluster)
    if method != "gossip":
        own = {"period": 4, "delay": delay}
        config = config.with_(method=config.method.with_keys(own))
    curve = trial(config, first=1)
    more = dict(zip(curve.updates, np.subtract(curve.met, curve.seconds), strict=True))
    rarely = {"method.name": "model_averaging", "method.period": 40}
    reference = small(1).with_(rarely, cluster=cluster, steps=7)
    line = trainer.prepare(reference).timeline
    meeting = line.seconds[-1] - line.seconds[-2] * 7 / 6
    assert meeting > 0 and more[0] == 0
    for update in range(1, 12):
        just_met = (method, delay) == ("model_averaging", 0) and update % 4 == 0
        assert more[update] == pytest.approx(0 if just_met else meeting)
    alone = trial(config.with_({"probes.mean": False}), first=1)
    assert alone.met == alone.seconds
