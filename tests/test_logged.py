"""What a run says of itself: log points, event files, figures, and where it diverged."""

import json
import math

import numpy as np
import pytest

from optdyn.cli import train as launcher
from optdyn.problem.models.quadratic import curvatures
from optdyn.train import trainer
from optdyn.train.trainer import train
from optdyn.train.workdir import tag

CHECKPOINT_EVERY = 20

FIELDS = {
    "step",
    "epoch",
    "simulated_seconds",
    "wall_seconds",
    "train_loss",
    "test_loss",
    "test_accuracy",
    "learning_rate",
    "momentum",
    "staleness_mean",
}


def test_the_schedule_and_momentum_are_those_logged(config, tmp_path, rows, final):
    """Heavy ball in float64 with its own formula of a warm-up and a cosine decay."""
    steps, warmup, peak, mu = 60, 10, 0.4, -0.4
    t = np.arange(steps)
    decay = peak * (1 + np.cos(np.pi * (t - warmup) / (steps - warmup))) / 2
    rates = np.where(t < warmup, peak * t / warmup, decay)
    values = {
        "method.name": "sync",
        "model.noise": 0.0,
        "optimizer.learning_rate": peak,
        "optimizer.momentum": mu,
        "optimizer.schedule": "cosine",
        "optimizer.warmup_steps": warmup,
    }
    chosen = config(values)
    train(chosen, tmp_path)
    h = curvatures(6, chosen.model.condition).astype(np.float64)
    x, v, losses = np.ones(6), np.zeros(6), []
    for rate in rates:
        losses.append(np.sum(h * x**2) / 2)
        v = mu * v + h * x
        x = x - rate * v
    logged = rows(tmp_path)
    for row in logged:
        # An update logs what it was done with; float32 arithmetic of the schedule.
        assert row["learning_rate"] == pytest.approx(rates[max(row["step"] - 1, 0)], rel=1e-5)
        assert row["momentum"] == mu
    # 60 updates in float32 that shrink x and with it their rounding.
    logged_losses = [row["train_loss"] for row in logged[:-1]]
    np.testing.assert_allclose(logged_losses, losses[::10], rtol=1e-4)
    np.testing.assert_allclose(
        final(trainer.prepare(chosen), tmp_path)[1].params["x"]["x"], x, 1e-4
    )


@pytest.mark.parametrize("groups, every", [(1, 4), (3, 4), (3, 1)])
def test_divergence_is_found_at_its_step(
    config, tmp_path, files, capsys, groups, every, rows, final
):
    """Against float32 recursions of the same arrivals, until a loss overflows."""
    values = {
        "model.noise": 0.0,
        "model.condition": 4.0,
        "optimizer.learning_rate": 30.0,
        "optimizer.momentum": 0.0,
        "method.groups": groups,
        "cluster.nodes": groups,
        "log_every": every,
        "checkpoint_every": every,
    }
    chosen = config(values)
    timeline = trainer.prepare(chosen).timeline
    h = curvatures(6, 4.0)
    x = np.ones(6, np.float32)
    slots = [x] * groups
    with np.errstate(over="ignore"):
        for step in range(chosen.steps):
            read = slots[timeline.plan.read[step]]
            losses = [np.sum(h * read**2), np.sum(h * x**2) if step % every == 0 else 0]
            if not np.isfinite(losses).all():
                break
            x = slots[timeline.plan.write[step]] = x - np.float32(30) * h * read
    assert 10 < step < 60 - 1

    assert launcher.main(chosen, tmp_path) == 0
    first, figures, last = capsys.readouterr().out.splitlines()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert first.startswith(f"diverged: {step} of 60 updates, ") and summary["status"] == "diverged"
    assert figures.startswith(f"training loss {summary['train_loss']:.4g}, test loss ")
    assert last.endswith(f" --workdir={tmp_path}")
    assert summary["step"] == step and summary["steps"] == 60
    # Kept: all log points, the last finite one as the figures, and a finite state before it.
    logged = rows(tmp_path)
    assert [row["step"] for row in logged] == list(range(0, step + 1, every))
    finite = [row for row in logged if row["train_loss"] is not None]
    assert len(finite) >= len(logged) - 1
    assert summary["logged_step"] == finite[-1]["step"]
    assert summary["train_loss"] == finite[-1]["train_loss"]
    assert sum(summary["staleness_histogram"]) == step
    kept, state = final(trainer.prepare(chosen), tmp_path)
    assert kept == summary["kept_checkpoint"] == finite[-1]["step"]
    assert np.isfinite(state.params["x"]["x"]).all()

    before = files(tmp_path)
    assert train(chosen, tmp_path) == summary
    assert files(tmp_path) == before


def test_a_run_that_is_not_finite_from_the_start_has_diverged(config, tmp_path, rows):
    summary = train(config({"model.noise": 1e30}), tmp_path)
    assert (summary["status"], summary["step"]) == ("diverged", 0)
    assert summary["kept_checkpoint"] is None
    assert [row["train_loss"] for row in rows(tmp_path)] == [None]


def test_log_points_say_what_happened(trained, scalars):
    chosen, workdir, summary = trained
    timeline = trainer.prepare(chosen).timeline
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in lines]
    assert [row["step"] for row in logged] == list(range(0, 61, 10))
    events = scalars(workdir)
    assert set(events) == set(range(0, 61, 10))
    for row in logged:
        assert set(row) == FIELDS and all(math.isfinite(value) for value in row.values())
        step = row["step"]
        assert row["epoch"] == step * 4 / 200
        assert row["simulated_seconds"] == (timeline.seconds[step - 1] if step else 0)
        window = timeline.staleness[max(step - 10, 0) : step]
        assert row["staleness_mean"] == pytest.approx(window.mean() if step else 0)
        # The same numbers in the event file, which has room for float32.
        assert events[step] == {tag(k): np.float32(v) for k, v in row.items() if k != "step"}
    walls = [row["wall_seconds"] for row in logged]
    assert walls == sorted(walls)
    np.testing.assert_array_equal(np.bincount(timeline.staleness), summary["staleness_histogram"])
    assert summary["staleness_mean"] == pytest.approx(timeline.staleness.mean())
    assert summary["simulated_seconds_per_step"] == pytest.approx(timeline.seconds[-1] / 60)
    for name in FIELDS - {"staleness_mean"}:
        assert summary[name] == logged[-1][name]


def test_a_last_stretch_that_is_not_whole_is_logged_too(config, tmp_path, rows):
    chosen = config({"log_every": 25, "checkpoint_every": 0})
    train(chosen, tmp_path)
    staleness = trainer.prepare(chosen).timeline.staleness
    logged = rows(tmp_path)
    assert [row["step"] for row in logged] == [0, 25, 50, 60]
    assert logged[-1]["staleness_mean"] == pytest.approx(staleness[50:].mean())


def test_accuracy_and_loss_are_those_of_the_whole_test_set(trained, rows, final):
    """1,000 images by NumPy, with the parameters of that step."""
    chosen, workdir, _ = trained
    run = trainer.prepare(chosen)
    params = final(run, workdir)[1].params
    dense = [params[name]["Dense_0"] for name in ("hidden0", "classifier")]
    x = run.data.test["image"].reshape(1000, -1) / 255
    hidden = np.maximum(x @ dense[0]["kernel"] + dense[0]["bias"], 0)
    logits = hidden @ dense[1]["kernel"] + dense[1]["bias"]
    label = run.data.test["label"]
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(1000), label]
    last = rows(workdir)[-1]
    assert last["test_loss"] == pytest.approx(losses.mean(), rel=1e-5)  # float32 sums
    # One image in a thousand may lie on the border between two classes.
    assert last["test_accuracy"] == pytest.approx((logits.argmax(-1) == label).mean(), abs=1e-3)
