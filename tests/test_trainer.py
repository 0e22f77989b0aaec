"""Runs: the same floats however they are cut up, logged, compiled and repeated."""

import signal
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.base import seeds
from optdyn.clock.timeline import entries_at
from optdyn.methods import Event
from optdyn.problem.data import order as orders
from optdyn.train import loop, program, trainer
from optdyn.train.replicas import record
from optdyn.train.trainer import train

CHECKPOINT_EVERY = 20

SYNC = {"method.name": "sync"}


def batch_indices(run):
    order = int(seeds.generator(run.config.seed, "batches").integers(2**63))
    steps, size = run.config.steps, run.config.batch_size
    return orders.batches(order, 0, steps, size, run.examples, run.config.data.replacement)


def test_one_group_is_synchronous_to_the_bit(config, mnist, trained, tmp_path, rows):
    one = train(config({**mnist, "method.groups": 1}), tmp_path / "one")
    sync = train(config({**mnist, **SYNC}), tmp_path / "sync")
    assert one["parameters_crc32"] == sync["parameters_crc32"]
    assert rows(tmp_path / "one") == rows(tmp_path / "sync")
    # Beyond one group it is something else, or the equality says nothing.
    assert trained[2]["parameters_crc32"] != sync["parameters_crc32"]


@pytest.mark.parametrize(
    "model, values",
    [
        ("mlp", {}),
        ("mlp", {**SYNC, "data.replacement": True}),
        ("quadratic", {"cluster.service.name": "geometric", "optimizer.options.nesterov": True}),
        ("quadratic", {"method.groups": 2, "cluster.speeds": (1, 1, 1, 9)}),
        # An epoch of two and a half batches.
        ("quadratic", {"data.train_examples": 20, "batch_size": 8}),
    ],
)
def test_a_run_is_the_update_rule_looped_over_events_and_batches(
    config, mnist, tmp_path, model, values, rows, final
):
    network = mnist if model == "mlp" else {}
    chosen = {"optimizer.schedule": "cosine", "checkpoint_every": 0, **values}
    chosen = config({**network, **chosen})
    train(chosen, tmp_path)
    run = trainer.prepare(chosen)
    step = jax.jit(run.program.rule.step)
    state = run.program.rule.init(run.params)
    for t, indices in enumerate(batch_indices(run)):
        hyper = {name: values[t] for name, values in run.hypers.items()}
        event = Event(entries_at(run.timeline.plan, t), hyper)
        state, _ = step(state, event, {k: v[indices] for k, v in run.data.train.items()})
    reached, saved = final(run, tmp_path)
    assert reached == chosen.steps
    assert jax.tree.structure(saved) == jax.tree.structure(state)
    # Two compilations of the same sums: some ulp (1e-7) of numbers up to 1 an update, 60 updates.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), saved, state)
    # What is logged is the loss of these parameters; 200 images fit into one evaluation.
    loss = run.program.problem.loss(state.params, run.data.train)
    assert rows(tmp_path)[-1]["train_loss"] == pytest.approx(float(loss), rel=1e-4)


class FakeClock:
    """In place of `time`: every look at it takes as long as it says."""

    def __init__(self, ticks):
        self.now, self.ticks = 0.0, ticks

    def monotonic(self):
        self.now += next(self.ticks)
        return self.now


def test_floats_do_not_depend_on_how_a_run_is_cut_up(config, tmp_path, monkeypatch, rows):
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
        monkeypatch.setattr(loop, "time", FakeClock(clocks[name]))
        monkeypatch.setattr(loop, "CHUNK", size)
        folder = tmp_path / f"{name}{size}"
        values = {"log_every": log_every, "checkpoint_every": checkpoint_every}
        summary = train(config(values), folder)
        assert summary["parameters_crc32"] == whole["parameters_crc32"]
        logged = rows(folder)
        assert [row["step"] for row in logged] == sorted({*range(0, 60, log_every), 60})
        same = {k: v for k, v in logged[-1].items() if k != "staleness_mean"}
        assert same == {k: v for k, v in expected.items() if k != "staleness_mean"}


def test_one_compilation_serves_all_numbers_that_a_study_varies(config, tmp_path):
    base = {"model.dimension": 7, "checkpoint_every": 0}
    first = train(config(base), tmp_path / "first")
    compiled = program.make(config(base), 0, slots=4)
    compilations = compiled.advance._cache_size(), compiled.evaluate._cache_size()
    fingerprints = {first["parameters_crc32"]}
    for number, values in enumerate(
        [
            {"optimizer.learning_rate": 0.05},
            {"optimizer.momentum": -0.3},
            {"seed": 1},
            {"cluster.service.name": "constant"},
            {"cluster.service.name": "lognormal", "cluster.speeds": (1, 2, 3, 4)},
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
        {"optimizer.name": "adam"},
    ]:
        assert program.make(config({**base, **values}), 0, slots=4) is not compiled
    assert program.make(config(base), 0, slots=5) is not compiled


def test_the_same_config_gives_the_same_floats_also_in_a_thread_of_a_notebook(
    config, trained, tmp_path, rows
):
    """Into a folder by its name. Python hands no signals to other threads than the main one."""
    chosen, workdir, summary = trained
    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(train, chosen, str(tmp_path / "run")).result()
        replicas = config({"replicas.count": 2, "steps": 5, "log_every": 5, "checkpoint_every": 0})
        asked = record, replicas, str(tmp_path / "replicas")
        recorded = pool.submit(*asked).result()
    assert again["parameters_crc32"] == summary["parameters_crc32"]
    assert rows(tmp_path / "run") == rows(workdir)
    assert recorded["status"] == "completed" and signal.getsignal(signal.SIGINT) is before


def test_bfloat16_computes_in_bfloat16_and_keeps_float32(config, mnist, trained, tmp_path, final):
    chosen = config({**mnist, "model.dtype": "bfloat16"})
    half, single = train(chosen, tmp_path), trained[2]
    for leaf in jax.tree.leaves(final(trainer.prepare(chosen), tmp_path)[1].params):
        assert leaf.dtype == jnp.float32
    # Eight bits of mantissa: 0.4 % an operation, and no more than some percent of the loss.
    assert half["train_loss"] == pytest.approx(single["train_loss"], rel=0.05)
    assert half["train_loss"] != single["train_loss"]
