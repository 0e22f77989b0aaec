"""Runs: the same floats however they are cut up, logged, compiled and repeated."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from launch import train as launcher
from research import data as datasets
from research import program, seeds, trainer
from research.models.quadratic import curvatures
from research.strategies import Event
from research.trainer import train
from research.workdir import Checkpoints

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
SYNC = {"strategy.name": "sync", "strategy.groups": 1}


def rows(workdir):
    """Log points without the one figure that differs between equal runs."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "wall_seconds"} for row in lines]


def final(run, workdir):
    """State of the last checkpoint, as NumPy arrays."""
    with Checkpoints(workdir) as checkpoints:
        step, state = checkpoints.restore(run.program.strategy.init(run.params))
    return step, jax.device_get(state)


def batch_indices(run):
    order = int(seeds.generator(run.config.seed, "batches").integers(2**63))
    steps, size = run.config.steps, run.config.batch_size
    return datasets.batches(order, 0, steps, size, run.examples, run.config.data.replacement)


@pytest.fixture(scope="module")
def trained(config, mnist, tmp_path_factory):
    """Config, workdir and summary of a network trained asynchronously."""
    chosen, workdir = config(mnist), tmp_path_factory.mktemp("trained")
    return chosen, workdir, train(chosen, workdir)


@pytest.mark.parametrize("model", ["quadratic", "mlp"])
def test_one_group_is_synchronous_to_the_bit(config, mnist, tmp_path, model):
    values = {**(mnist if model == "mlp" else {}), "cluster.nodes": 1, "cluster.latency": 1e-3}
    one = train(config({**values, "strategy.groups": 1}), tmp_path / "one")
    sync = train(config({**values, **SYNC}), tmp_path / "sync")
    assert one["parameters_crc32"] == sync["parameters_crc32"]
    assert rows(tmp_path / "one") == rows(tmp_path / "sync")
    # Beyond one group it is something else, or the equality says nothing.
    two = {"strategy.groups": 2, "cluster.nodes": 2, "cluster.latency": 1e-3}
    assert train(config(two), tmp_path / "two")["parameters_crc32"] != sync["parameters_crc32"]


@pytest.mark.parametrize(
    "model, values",
    [
        ("mlp", {}),
        ("mlp", {**SYNC, "data.replacement": True}),
        ("quadratic", {"cluster.service": "geometric", "optimizer.options.nesterov": True}),
        ("quadratic", {"strategy.groups": 2, "cluster.speeds": (1, 1, 1, 9)}),
        # A batch of two and a half epochs.
        ("quadratic", {"data.train_examples": 20, "batch_size": 50}),
    ],
)
def test_a_run_is_the_update_rule_looped_over_events_and_batches(
    config, mnist, tmp_path, model, values
):
    network = mnist if model == "mlp" else {}
    chosen = config({**network, "optimizer.schedule": "cosine", **values})
    train(chosen, tmp_path)
    run = trainer.prepare(chosen)
    step = jax.jit(run.program.strategy.step)
    state = run.program.strategy.init(run.params)
    for t, indices in enumerate(batch_indices(run)):
        hyper = {name: values[t] for name, values in run.hypers.items()}
        event = Event(run.timeline.read[t], run.timeline.write[t], hyper)
        state, _ = step(state, event, {k: v[indices] for k, v in run.data.train.items()})
    reached, saved = final(run, tmp_path)
    assert reached == chosen.steps
    assert jax.tree.structure(saved) == jax.tree.structure(state)
    # Two compilations of the same sums: some ulp (1e-7) of numbers up to 1 an update, 60 updates.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), saved, state)
    # What is logged is the loss of these parameters; 200 images fit into one evaluation.
    loss = run.program.problem.loss(state.params, run.data.train)
    assert rows(tmp_path)[-1]["train_loss"] == pytest.approx(float(loss), rel=1e-4)


class Clock:
    """In place of `time`: every look at it takes as long as it says."""

    def __init__(self, ticks):
        self.now, self.ticks = 0.0, ticks

    def monotonic(self):
        self.now += next(self.ticks)
        return self.now


def test_floats_do_not_depend_on_how_a_run_is_cut_up(config, tmp_path, monkeypatch):
    """Chunks of updates follow the wall clock: slow ones are of one update, fast ones grow."""
    whole = train(config({"log_every": 60, "checkpoint_every": 0}), tmp_path / "whole")
    expected = rows(tmp_path / "whole")[-1]
    rng = np.random.default_rng(0)
    clocks = {
        "slow": iter(lambda: 10.0, None),
        "fast": iter(lambda: 0.0, None),
        "random": iter(lambda: 10 ** rng.uniform(-3, 1), None),
    }
    for name, size, log_every, checkpoint_every in [
        ("slow", 256, 7, 7),
        ("fast", 256, 60, 0),
        ("fast", 5, 11, 33),
        ("random", 256, 7, 14),
        ("random", 1, 1, 20),
    ]:
        monkeypatch.setattr(trainer, "time", Clock(clocks[name]))
        monkeypatch.setattr(trainer, "CHUNK", size)
        folder = tmp_path / f"{name}{size}"
        values = {"log_every": log_every, "checkpoint_every": checkpoint_every}
        summary = train(config(values), folder)
        assert summary["parameters_crc32"] == whole["parameters_crc32"]
        logged = rows(folder)
        assert [row["step"] for row in logged] == sorted({*range(0, 60, log_every), 60})
        same = {k: v for k, v in logged[-1].items() if k != "staleness_mean"}
        assert same == {k: v for k, v in expected.items() if k != "staleness_mean"}


def test_one_compilation_serves_all_numbers_that_a_study_varies(config, tmp_path):
    base = {"model.dimension": 7}
    first = train(config(base), tmp_path / "first")
    compiled = program.make(config(base), 0, slots=4)
    compilations = compiled.advance._cache_size(), compiled.evaluate._cache_size()
    fingerprints = {first["parameters_crc32"]}
    for number, values in enumerate(
        [
            {"optimizer.learning_rate": 0.05},
            {"optimizer.momentum": -0.3},
            {"seed": 1},
            {"cluster.service": "constant"},
            {"cluster.service": "lognormal", "cluster.speeds": (1, 2, 3, 4)},
            {"steps": 77},
            {"optimizer.schedule": "cosine", "optimizer.warmup_steps": 5},
            {"model.noise": 0.7},
            {"model.condition": 10.0, "log_every": 4, "checkpoint_every": 0, "steps": 61},
            {"data.replacement": True},
        ]
    ):
        chosen = config({**base, **values})
        assert program.make(chosen, 0, slots=4) is compiled
        fingerprints.add(train(chosen, tmp_path / str(number))["parameters_crc32"])
        assert compilations == (compiled.advance._cache_size(), compiled.evaluate._cache_size())
    assert len(fingerprints) == 11  # every one of them matters
    # And what is compiled in makes another program.
    for values in [
        {"model.condition": 20.0},
        {"optimizer.name": "adam", "optimizer.momentum": 0.0},
    ]:
        assert program.make(config({**base, **values}), 0, slots=4) is not compiled
    assert program.make(config(base), 0, slots=5) is not compiled


def test_the_same_config_gives_the_same_floats(config, trained, tmp_path):
    chosen, workdir, summary = trained
    assert train(chosen, tmp_path)["parameters_crc32"] == summary["parameters_crc32"]
    assert rows(tmp_path) == rows(workdir)


def test_the_schedule_and_momentum_are_those_logged(config, tmp_path):
    """Heavy ball in float64 with its own formula of a warm-up and a cosine decay."""
    steps, warmup, peak, mu = 60, 10, 0.4, -0.4
    t = np.arange(steps)
    decay = peak * (1 + np.cos(np.pi * (t - warmup) / (steps - warmup))) / 2
    rates = np.where(t < warmup, peak * t / warmup, decay)
    values = {
        **SYNC,
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


@pytest.mark.parametrize("groups", [1, 3])
def test_divergence_is_found_at_its_step(config, tmp_path, files, capsys, groups):
    """Against float32 recursions of the same arrivals, until a loss overflows."""
    values = {
        "model.noise": 0.0,
        "model.condition": 4.0,
        "optimizer.learning_rate": 30.0,
        "optimizer.momentum": 0.0,
        "strategy.groups": groups,
        "cluster.nodes": groups,
        "log_every": 4,
        "checkpoint_every": 4,
    }
    chosen = config(values)
    timeline = trainer.prepare(chosen).timeline
    h = curvatures(6, 4.0)
    x = np.ones(6, np.float32)
    slots = [x] * groups
    with np.errstate(over="ignore"):
        for step in range(chosen.steps):
            read = slots[timeline.read[step]]
            losses = [np.sum(h * read**2), np.sum(h * x**2) if step % 4 == 0 else 0]
            if not np.isfinite(losses).all():
                break
            x = slots[timeline.write[step]] = x - np.float32(30) * h * read
    assert 10 < step < 60 - 1

    assert launcher.main(chosen, tmp_path) == 0
    printed = json.loads(capsys.readouterr().out)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert printed["status"] == summary["status"] == "diverged"
    assert summary["step"] == step and summary["steps"] == 60
    # Kept: all log points, the last finite one as the figures, and a finite state before it.
    logged = rows(tmp_path)
    assert [row["step"] for row in logged] == list(range(0, step + 1, 4))
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


def test_a_run_that_is_not_finite_from_the_start_has_diverged(config, tmp_path):
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
        assert events[step] == {k: np.float32(v) for k, v in row.items() if k != "step"}
    walls = [row["wall_seconds"] for row in logged]
    assert walls == sorted(walls)
    np.testing.assert_array_equal(np.bincount(timeline.staleness), summary["staleness_histogram"])
    assert summary["staleness_mean"] == pytest.approx(timeline.staleness.mean())
    assert summary["simulated_seconds_per_step"] == pytest.approx(timeline.seconds[-1] / 60)
    for name in FIELDS - {"staleness_mean"}:
        assert summary[name] == logged[-1][name]


def test_a_last_stretch_that_is_not_whole_is_logged_too(config, tmp_path):
    chosen = config({"log_every": 25, "checkpoint_every": 0})
    train(chosen, tmp_path)
    staleness = trainer.prepare(chosen).timeline.staleness
    logged = rows(tmp_path)
    assert [row["step"] for row in logged] == [0, 25, 50, 60]
    assert logged[-1]["staleness_mean"] == pytest.approx(staleness[50:].mean())


def test_accuracy_and_loss_are_those_of_the_whole_test_set(trained):
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


@pytest.mark.parametrize(
    "values",
    [
        {"optimizer.name": "adam"},
        {"optimizer.name": "adamw", "optimizer.options.weight_decay": 0.1},
        {"optimizer.name": "rmsprop", "optimizer.momentum": 0.2},
        {"optimizer.name": "lion", "optimizer.schedule": "linear"},
        {"optimizer.name": "noisy_sgd"},  # keeps a random key in its state
        {"optimizer.name": "sgd", "optimizer.options.nesterov": True},
    ],
    ids=lambda values: values["optimizer.name"],
)
def test_optimizers_of_optax(config, tmp_path, values):
    chosen = config({"optimizer.learning_rate": 0.02, "optimizer.momentum": 0.0, **values})
    summary = train(chosen, tmp_path)
    assert summary["status"] == "completed"
    assert summary["train_loss"] < rows(tmp_path)[0]["train_loss"]
    # The checkpoint holds all of the optimizer's state: killed before the summary, or earlier.
    (tmp_path / "summary.json").unlink()
    assert train(chosen, tmp_path)["parameters_crc32"] == summary["parameters_crc32"]
    (tmp_path / "summary.json").unlink()
    (tmp_path / "checkpoints" / "60").rename(tmp_path / "away")
    assert train(chosen, tmp_path)["parameters_crc32"] == summary["parameters_crc32"]


def test_bfloat16_computes_in_bfloat16_and_keeps_float32(config, mnist, trained, tmp_path):
    chosen = config({**mnist, "model.dtype": "bfloat16"})
    half, single = train(chosen, tmp_path), trained[2]
    for leaf in jax.tree.leaves(final(trainer.prepare(chosen), tmp_path)[1].params):
        assert leaf.dtype == jnp.float32
    # Eight bits of mantissa: 0.4 % an operation, and no more than some percent of the loss.
    assert half["train_loss"] == pytest.approx(single["train_loss"], rel=0.05)
    assert half["train_loss"] != single["train_loss"]


def test_a_convolutional_network_learns(config, mnist, tmp_path):
    values = {
        "model.name": "cnn",
        "model.channels": (2,),
        "steps": 20,
        "batch_size": 16,
        "optimizer.learning_rate": 0.05,
    }
    summary = train(config({**mnist, **values}), tmp_path)
    assert summary["status"] == "completed"
    assert summary["train_loss"] < rows(tmp_path)[0]["train_loss"]
