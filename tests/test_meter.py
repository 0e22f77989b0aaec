"""The momentum meter as a probe of a run: its windows, its log, what it leaves as it was."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.base.progress import Watch
from optdyn.implicit_momentum.readings import Windows, in_place, shortened, steered
from optdyn.methods.compose import METERED
from optdyn.train import single, trainer
from optdyn.train.meter import is_plain, lags
from optdyn.train.workdir import SKETCHES

CHECKPOINT_EVERY = 20

PROBED = {
    "steps": 560,
    "batch_size": 8,
    "log_every": 20,
    "checkpoint_every": 60,
    "model.dimension": 256,
    "model.noise": 1.0,
    "optimizer.momentum": 0.0,
    "optimizer.learning_rate": 0.3,
    "probes.momentum": True,
    "probes.window": 230,
    "probes.every": 260,
    "data.replacement": True,  # in epochs of 25 updates F is below 25
}


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 200))
def test_windows_tile_the_updates(every, window, steps):
    it = Windows(every, min(window, every), steps)
    inside = np.array([it.has(step) for step in range(steps)])
    ended = it.ended(0, steps)
    assert sorted(t for start, stop in ended for t in range(start, stop)) == list(
        np.flatnonzero(inside)
    )
    for step in range(steps):
        assert it.before(step) == inside[:step].sum()
        until = it.until(step)
        assert step < until <= steps
        assert (inside[step:until] == inside[step]).all()
    for step in range(1, steps):  # each is told of once, whatever the log points
        assert it.ended(0, step) + it.ended(step, steps) == ended


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, trainer.train(config(PROBED), workdir)


def test_a_probed_run_trains_as_any_other(config, whole, tmp_path, rows):
    without = trainer.train(config({**PROBED, "probes.momentum": False}), tmp_path)
    workdir, summary = whole
    assert summary["parameters_crc32"] == without["parameters_crc32"]
    plain = rows(tmp_path)
    assert [{k: row[k] for k in plain[0]} for row in rows(workdir)] == plain


def test_windows_are_recorded_and_logged_at_the_next_log_point(config, whole, rows):
    workdir, summary = whole
    recorded = single.record(config(PROBED))
    updates = np.stack([recorded.displacements, recorded.raw_steps, recorded.gradients], axis=1)
    at = np.r_[0:230, 260:490, 520:560]
    kept = np.load(workdir / SKETCHES)
    assert kept.shape == (len(at), len(METERED), 256)
    # The same floats of another compilation.
    np.testing.assert_allclose(kept, updates[at], atol=1e-6)
    logged = {row["step"]: row for row in rows(workdir)}
    with_reading = [step for step, row in logged.items() if any("implicit" in k for k in row)]
    assert with_reading == [240, 500, 560]
    first = logged[240]
    assert first["implicit_momentum_low"] < first["implicit_momentum"]
    assert first["implicit_momentum"] < first["implicit_momentum_high"]
    assert "implicit_momentum_refused" in logged[560]  # 40 updates are too few
    assert not any(name.endswith("refused") for name in summary)  # as all windows together are not
    assert summary["implicit_momentum_low"] < 0.75 < summary["implicit_momentum_high"]
    # Plain SGD moves by its raw steps.
    assert summary["fitted_momentum"] == pytest.approx(summary["implicit_momentum"], abs=1e-3)
    rate = summary["effective_learning_rate"]
    assert rate == pytest.approx(0.3 / 4, rel=0.5)  # alpha / g, within some three standard errors


def stopped(config, workdir, step):
    """Trains until a signal comes at that update; returns the summary."""
    seen = [0]
    watch = Watch(lambda: 2 if seen[0] >= step else 0, lambda at, _: seen.__setitem__(0, at))
    return trainer.run_to_end(trainer.training(trainer.prepare(config), workdir, watch))


@pytest.mark.parametrize("stop", [60, 235, 300])
def test_an_interrupted_run_resumes_to_the_same_reading(config, whole, tmp_path, stop, rows):
    """Stopped in a window, at its edge and between two."""
    chosen = config(PROBED)
    halted = stopped(chosen, tmp_path, stop)
    assert halted["status"] == "interrupted" and halted["step"] < 560
    resumed = trainer.train(chosen, tmp_path)
    workdir, summary = whole
    unlike = {"wall_seconds", "starts"}
    assert {k: v for k, v in resumed.items() if k not in unlike} == {
        k: v for k, v in summary.items() if k not in unlike
    }
    assert rows(tmp_path) == rows(workdir)
    assert np.load(tmp_path / SKETCHES).tobytes() == np.load(workdir / SKETCHES).tobytes()


def test_a_run_whose_windows_are_refused_together_has_no_reading_of_its_last_one():
    last = {"step": 560, "implicit_momentum": 0.9, "implicit_momentum_p": 0.5}
    last |= {"fitted_momentum": 0.9, "effective_learning_rate": 0.1}
    refused = {"implicit_momentum_refused": "weak"}
    assert in_place(last, refused) == {"step": 560, **refused}
    assert in_place(last, {}) == last  # no window but its own


def test_explicit_momentum_is_a_lag_of_its_own(config):
    assert lags(config({"optimizer.momentum": 0.5})) == 2
    assert lags(config({"optimizer.momentum": 0.0})) == 1
    assert lags(config({"method.name": "sync", "optimizer.momentum": 0.5})) == 1
    # A total of 0 is reached by a momentum below 0, which displacements have and raw steps do not.
    steered_to_0 = config({"optimizer.momentum": 0.0, "probes.steer": True})
    assert lags(steered_to_0) == 2 and not is_plain(steered_to_0)
    assert is_plain(config({"optimizer.momentum": 0.0}))
    for other in ("adam", "soap"):  # no polynomial: only raw steps are read
        assert lags(config({"optimizer.name": other})) == 0


def test_steps_at_a_rate_of_0_are_read_from_gradients_alone(config, tmp_path):
    """A warm-up begins with one: its step over its rate is no number, and was called divergence."""
    warm = {"method.name": "sync", "optimizer.momentum": 0.5, "optimizer.warmup_steps": 9}
    summary = trainer.train(config(PROBED | warm | {"steps": 230}), tmp_path)
    assert summary["fitted_momentum_refused"].startswith("an update's learning rate is 0")


def test_steering_follows_the_readings(config, tmp_path, rows):
    """mu = 0 until the first, then the total less their mean by precision; resumed likewise."""
    readings = [(0.9, 0.1), (0.96, 0.05)]
    log = [{"step": 0}, {"step": 100, "implicit_momentum_refused": "weak"}]
    log += [
        {
            "step": 200 + 100 * i,
            "implicit_momentum": value,
            "implicit_momentum_low": value - half,
            "implicit_momentum_high": value + half,
        }
        for i, (value, half) in enumerate(readings)
    ]
    (start, first), (one, after), (two, then) = steered(log, 0.8)
    assert (start, first) == (0, 0.0) and (one, two) == (200, 300)
    assert after == pytest.approx(0.8 - 0.9)
    assert then == pytest.approx(0.8 - (0.9 / 0.1**2 + 0.96 / 0.05**2) / (1 / 0.1**2 + 1 / 0.05**2))
    values = {**PROBED, "optimizer.momentum": 0.6, "probes.steer": True}
    summary = trainer.train(config(values), tmp_path / "whole")
    explicit = {row["step"]: row["explicit_momentum"] for row in rows(tmp_path / "whole")}
    assert explicit[0] == explicit[240] == 0.0
    reading = next(row for row in rows(tmp_path / "whole") if row["step"] == 240)
    assert explicit[260] == pytest.approx(0.6 - reading["implicit_momentum"])
    stopped(config(values), tmp_path / "halved", 300)
    resumed = trainer.train(config(values), tmp_path / "halved")
    assert resumed["parameters_crc32"] == summary["parameters_crc32"]
    assert rows(tmp_path / "halved") == rows(tmp_path / "whole")


def test_folding_a_sketch_is_a_shorter_sketch():
    rng = np.random.default_rng(0)
    vector, signs = rng.normal(size=4096), rng.choice([-1.0, 1.0], 4096)
    long = (vector * signs).reshape(-1, 1024).sum(0)[None]
    assert np.allclose(shortened(long, 2**13)[0], (vector * signs).reshape(-1, 512).sum(0))
    assert shortened(long, 2**12).shape == (1, 1024)
