"""The momentum meter as a probe of a run: its windows, its log, what it leaves as it was."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.base.progress import Watch
from optdyn.implicit_momentum import order_of_arrivals
from optdyn.implicit_momentum.moments import Reading
from optdyn.implicit_momentum.order_of_arrivals import Ages
from optdyn.implicit_momentum.readings import (
    Windows,
    as_row,
    from_row,
    in_place,
    steered,
    with_arrivals,
)
from optdyn.methods.compose import METERED
from optdyn.train import single, trainer
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
    "data.replacement": True,
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
    readings = {step: from_row(row) for step, row in logged.items()}
    assert [step for step, reading in readings.items() if reading] == [240, 500, 560]
    first, whole_run = readings[240], from_row(summary)
    (low, high), *_ = first.pieces
    assert low <= first.estimate <= high
    assert readings[560].says_nothing  # 40 updates are too few
    assert whole_run.updates == first.updates + readings[500].updates + readings[560].updates
    assert any(low < 0.75 < high for low, high in whole_run.pieces)


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


def reading(estimate, low, high):
    return Reading(estimate, ((low, high),), 0.5, 9.0, 300)


def test_p_is_of_the_steps_and_of_the_order_of_arrivals():
    one = reading(0.7, 0.6, 0.8)
    odd = Ages(score=50.0, variance=100.0)
    assert with_arrivals(one, [None]) == one
    assert with_arrivals(one, [odd]).p == pytest.approx(2 * order_of_arrivals.chance([odd]))
    assert (
        with_arrivals(one, [odd]).rejected and not with_arrivals(one, [Ages(1.0, 100.0)]).rejected
    )


def test_the_reading_of_all_windows_takes_the_place_of_the_last_one():
    last = {"step": 560, **as_row(reading(0.9, 0.8, 0.95))}
    no_term = as_row(Reading(None, (), 1e-9, 9.0, 300))
    assert "implicit_momentum" not in no_term
    assert in_place(last, no_term) == {"step": 560, **no_term}
    assert in_place(last, {}) == last  # no window but its own
    assert from_row(last) == reading(0.9, 0.8, 0.95) and from_row({"step": 1}) is None


def test_steering_follows_the_readings(config, tmp_path, rows):
    """mu = 0 until the first, then the total less their mean by precision; resumed likewise."""
    log = [{"step": 0}, {"step": 100, **as_row(reading(0.3, 0.0, 1.0))}]  # which says nothing
    readings = [reading(0.9, 0.8, 1.0), reading(0.96, 0.91, 1.01)]
    log += [{"step": 200 + 100 * i, **as_row(one)} for i, one in enumerate(readings)]
    (start, first), (one, after), (two, then) = steered(log, 0.8)
    assert (start, first) == (0, 0.0) and (one, two) == (200, 300)
    assert after == pytest.approx(0.8 - 0.9)
    assert then == pytest.approx(0.8 - (0.9 / 0.1**2 + 0.96 / 0.05**2) / (1 / 0.1**2 + 1 / 0.05**2))
    values = {**PROBED, "optimizer.momentum": 0.6, "probes.steer": True}
    summary = trainer.train(config(values), tmp_path / "whole")
    explicit = {row["step"]: row["explicit_momentum"] for row in rows(tmp_path / "whole")}
    assert explicit[0] == explicit[240] == 0.0
    row = next(row for row in rows(tmp_path / "whole") if row["step"] == 240)
    assert explicit[260] == pytest.approx(0.6 - row["implicit_momentum"])
    stopped(config(values), tmp_path / "halved", 300)
    resumed = trainer.train(config(values), tmp_path / "halved")
    assert resumed["parameters_crc32"] == summary["parameters_crc32"]
    assert rows(tmp_path / "halved") == rows(tmp_path / "whole")
