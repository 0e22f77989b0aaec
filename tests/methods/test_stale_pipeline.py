"""Pipelines that are never flushed: predictions, limits, and their seconds."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn import core, optimizers
from optdyn.clock import pipeline
from optdyn.methods import Event, ModelInfo
from optdyn.methods.pipeline import StalePipeline, delays
from optdyn.train import program, trainer

CHECKPOINT_EVERY = 20

STEPS, BATCH, STAGES, RATE = 12, 6, 3, 0.1
BLOCKS = ("hidden0", "hidden1", "hidden2", "classifier")
SIZES = (5, 6, 4, 5, 3)
RUN = {
    "method.name": "stale_pipeline",
    "cluster.nodes": STAGES,
    "cluster.service.name": "constant",
    "model.name": "mlp",
    "model.hidden": SIZES[1:-1],
    "batch_size": BATCH,
    "steps": STEPS,
    "method.micro_batches": 3,
}
RNG = np.random.default_rng(0)
BATCHES = {
    "x": RNG.normal(size=(STEPS, BATCH, SIZES[0])).astype(np.float32),
    "label": RNG.integers(0, SIZES[-1], (STEPS, BATCH), dtype=np.int32),
}
START = [(RNG.normal(0, 0.7, (a, b)), RNG.normal(0, 0.1, b)) for a, b in pairwise(SIZES)]
PARAMS = {
    name: {"Dense_0": {"kernel": jnp.asarray(w, jnp.float32), "bias": jnp.asarray(b, jnp.float32)}}
    for name, (w, b) in zip(BLOCKS, START, strict=True)
}


def line_of(chosen, problem):
    batch = jax.tree.map(lambda leaf: leaf[0], BATCHES)
    model_info = ModelInfo(problem, PARAMS, batch)
    return chosen.timeline(steps_per_epoch=10, update_bytes=0, model_info=model_info)


def events_of(line, momentum):
    hyper = {"learning_rate": RATE, "momentum": momentum}
    hyper = {name: np.full(len(line.seconds), v, np.float32) for name, v in hyper.items()}
    return Event(line.plan, hyper, line.staleness)


def test_predictions_are_exact_where_the_coming_gradients_are_0(config):
    """Gradients are given, and 0 from update 5 on; what is seen takes the place of the loss."""
    chosen = config(RUN | {"method.pipeline": "predict"})
    problem = program.problem_of(chosen, SIZES[-1])
    line, servers = line_of(chosen, problem), StalePipeline().servers(problem)

    def given(params, event, batch):
        seen = jax.tree.map(jnp.add, params, event.plan.ahead)
        return seen, jax.tree.map(lambda leaf: batch * jnp.ones_like(leaf), params)

    sgd = core.per_block_optimizer(optimizers.optimizer("sgd", ("learning_rate", "momentum")))
    method = StalePipeline(pipeline="predict").read(given, sgd, line.slots, servers)

    def body(state, inputs):
        after, info = method.step(state, *inputs)
        return after, (state.params, info["loss"])

    force = jnp.where(jnp.arange(STEPS) < 5, RNG.normal(size=STEPS), 0).astype(jnp.float32)
    _, (x, seen) = jax.lax.scan(body, method.init(PARAMS), (events_of(line, 0.8), force))
    quiet = 5 + line.staleness.max()  # from there on all gradients since the read are 0
    jax.tree.map(
        # A sum of geometric terms in float32.
        lambda a, b: np.testing.assert_allclose(a[quiet:], b[quiet:], atol=1e-6),
        *(x, seen),
    )
    moved = x["hidden0"]["Dense_0"]["bias"]
    assert np.abs(np.diff(moved, axis=0)[quiet:]).max() > 1e-3


def test_2bw_is_asynchronous_with_two_groups_that_take_turns(config, mnist, tmp_path):
    """To the bit, the first update included."""
    values = mnist | {
        "model.hidden": (8, 8),
        "cluster.service.name": "constant",
        "cluster.nodes": 2,
    }
    runs = {"stale_pipeline": {"method.pipeline": "2bw"}, "asynchronous": {"method.groups": 2}}
    asked = {name: config(values | {"method.name": name} | own) for name, own in runs.items()}
    every = [trainer.train(asked[name], tmp_path / name) for name in asked]
    for key in ("parameters_crc32", "test_loss"):
        assert every[0][key] == every[1][key]


def test_delays():
    """The last block is in the last stage, and stages differ by one block at most."""
    assert delays("stash", 1, 4).tolist() == [0, 0, 0, 0] == delays("2bw", 1, 4).tolist()
    assert delays("stash", 4, 9).tolist() == [3, 3, 2, 2, 1, 1, 0, 0, 0]
    assert delays("no_stash", 3, 6).tolist() == [2, 1, 1, 0, 0, 0]
    assert delays("2bw", 3, 6).tolist() == [1] * 6


def clock(transfer, updates=400, stages=4, parts=1):
    """Seconds of updates on stages of unlike work, and that work."""
    rng = np.random.default_rng(stages)
    forward, backward = rng.uniform(0.5, 1.5, (2, stages))
    made = pipeline.schedule(
        "1f1b", forward / parts, backward / parts, transfer, 1, parts * updates
    )
    first = (made.kind == pipeline.BACKWARD) & (made.stage == 0)
    return made.end[first].reshape(-1, parts)[:, -1], forward, backward


@pytest.mark.parametrize("parts", [1, 4])
def test_an_update_takes_as_long_as_the_slowest_stage(parts):
    """After the first, which goes all the way there and back, and before the last few."""
    seconds, forward, backward = clock(0.0, parts=parts)
    every = forward + backward
    if parts == 1:  # no sooner than alone, no later than if all stages were as slow as the slowest
        assert every.sum() <= seconds[0] <= 4 * every.max()
    between = np.diff(seconds)[4:-8]
    np.testing.assert_allclose(between, every.max(), rtol=1e-9)  # float64


def test_long_ways_are_not_hidden():
    """S updates are under way at once, and each has to go there and back."""
    seconds, forward, backward = clock(10.0)
    trip = (forward + backward).sum() + 2 * 3 * 10.0
    mean = (seconds[-9] - seconds[9]) / (len(seconds) - 18)
    assert mean == pytest.approx(trip / 4, rel=0.02)  # not all at equal intervals


def test_the_clock_of_a_run_begins_that_of_a_longer_one(config):
    """Also where it ends; faster than GPipe on as many micro-batches, which is flushed."""
    seconds = {}
    for kind, steps in (("stash", STEPS), ("stash", 30), ("2bw", STEPS), ("2bw", 30)):
        chosen = config(RUN | {"method.pipeline": kind, "steps": steps})
        seconds[kind, steps] = line_of(chosen, program.problem_of(chosen, SIZES[-1])).seconds
    for kind in ("stash", "2bw"):
        np.testing.assert_array_equal(seconds[kind, STEPS], seconds[kind, 30][:STEPS])
    values = RUN | {"method.name": "local", "method.variant": "backprop", "steps": 30}
    flushed = config(values)
    flushed = line_of(flushed, program.problem_of(flushed, SIZES[-1])).seconds
    assert seconds["2bw", 30][0] == pytest.approx(flushed[0], rel=0.5)
    assert seconds["2bw", 30][-1] < flushed[-1]


def test_a_run_resumes_and_the_meter_reads_it(config, mnist, tmp_path):
    """With NAdamW of a large beta1, a cure for asynchronous pipelines, and with a chain."""
    values = mnist | {key: RUN[key] for key in ("method.name", "cluster.service.name")}
    values |= {"model.hidden": (8, 8), "cluster.nodes": 2, "batch_size": 4, "steps": 120}
    values |= {"optimizer.name": "nadamw", "optimizer.momentum": 0.0, "optimizer.options.b1": 0.99}
    values |= {"optimizer.learning_rate": 0.003, "optimizer.chain": ("delay_compensation",)}
    values |= {"probes.momentum": True, "probes.window": 60, "probes.every": 60}
    whole = trainer.train(config(values), tmp_path / "whole")
    trainer.train(config(values | {"steps": 60}), tmp_path / "parts")
    parts = trainer.train(config(values), tmp_path / "parts")
    assert parts["parameters_crc32"] == whole["parameters_crc32"]
    assert whole["train_loss"] < 1.5 and whole["communicated_bytes"] == 2 * 4 * 8 * 4
    assert "implicit_momentum" in (tmp_path / "parts" / "metrics.jsonl").read_text()
