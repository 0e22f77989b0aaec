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
from optdyn.train import trainer
from optdyn.train.replicas import record
from optdyn.train.trainer import train

CHECKPOINT_EVERY = 20

SYNC = {"method.name": "sync"}


def batch_indices(run):
    order = int(seeds.generator(run.config.seed, "batches").integers(2**63))
    steps, size = run.config.steps, run.config.batch_size
    return orders.batches(order, 0, steps, size, run.examples, run.config.data.replacement)


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


def test_the_same_config_gives_the_same_floats_also_in_a_thread_of_a_notebook(
    config, trained, tmp_path, rows
):
    chosen, workdir, summary = trained
    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(train, chosen, str(tmp_path / "run")).result()
        drawn = {"data.replacement": True, "replicas.count": 2, "steps": 5, "log_every": 5}
        replicas = config({**drawn, "checkpoint_every": 0})
        recorded = pool.submit(record, replicas, str(tmp_path / "replicas")).result()
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
