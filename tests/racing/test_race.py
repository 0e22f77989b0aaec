"""A race, its groups computing in turn in this process; its trace has the same parameters."""

import contextlib

import jax
import numpy as np
import pandas as pd
import pytest

from research import trainer
from research.outputs.files import WorkdirError
from research.outputs.workdir import parameters
from research.racing.race import in_turn, race, replaying
from research.racing.worker import worker
from research.timeline import TimelineError
from research.timeline.base import from_arrivals
from research.trainer import train
from research.values import ConfigError

CASES = {
    "plain": {},
    "one group": {"strategy.groups": 1},
    "adam": {"optimizer.name": "adam", "optimizer.momentum": 0.0, "data.replacement": True},
    "compensated": {"optimizer.chain": ("delay_compensation",), "optimizer.learning_rate": 0.05},
    "bounded": {"strategy.staleness_bound": 1},
    "metered": {"probes.momentum": True},
}


def at_random(seed):
    """Any of those at work arrives next."""
    rng = np.random.default_rng(seed)
    choose = lambda working: int(rng.choice(working))  # noqa: E731
    return lambda run: contextlib.nullcontext(in_turn(worker(run), choose))


def vector(workdir):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(parameters(workdir)[1])])


def raced(config, values, workdir, connect):
    summary = race(config({**values, "cluster.service": "race"}), workdir, connect)
    return summary, pd.read_csv(workdir / "trace.csv")


@pytest.mark.parametrize("case", CASES)
def test_the_simulator_replays_it(config, tmp_path, rows, case):
    summary, trace = raced(config, CASES[case], tmp_path / "race", at_random(3))
    assert summary["status"] == "completed" and len(trace) == 60
    source = {"cluster.service": "trace", "cluster.trace": str(tmp_path / "race/trace.csv")}
    again = train(config({**CASES[case], **source}), tmp_path / "replay")
    assert again["staleness_histogram"] == summary["staleness_histogram"]
    one, other = vector(tmp_path / "race"), vector(tmp_path / "replay")
    # One program of both halves rounds otherwise than two: 1e-7 of a number an update.
    assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max()
    for mine, theirs in zip(rows(tmp_path / "race"), rows(tmp_path / "replay"), strict=True):
        assert mine["step"] == theirs["step"] and mine["staleness_mean"] == theirs["staleness_mean"]


def test_local_gradients_race_too(config, mnist, tmp_path):
    values = {**mnist, "strategy.name": "asynchronous+local", "strategy.groups": 3}
    values |= {"model.hidden": (8, 8), "cluster.nodes": 3}
    raced(config, values, tmp_path / "race", at_random(5))
    source = {"cluster.service": "trace", "cluster.trace": str(tmp_path / "race/trace.csv")}
    train(config({**values, **source}), tmp_path / "replay")
    one, other = vector(tmp_path / "race"), vector(tmp_path / "replay")
    assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max()  # two roundings, as above


def test_every_batch_is_of_one_update_and_of_whom_the_order_says(config, tmp_path):
    """Reader number k has batch k: the first four, and then whoever has just arrived."""
    _, trace = raced(config, {}, tmp_path, at_random(7))
    batch, worker = trace["control.batch"].tolist(), trace["worker"].tolist()
    readers = [0, 1, 2, 3, *worker]
    assert all(readers[k] == group for k, group in zip(batch, worker, strict=True))
    assert len(set(batch)) == 60 and max(batch) < 64
    assert batch != list(range(60))  # or it would be the number of the update
    made = from_arrivals(trace["worker"].to_numpy(), trace["seconds"].to_numpy(), 4)
    np.testing.assert_array_equal(trace["version"], np.arange(60) - made.staleness)


def test_a_bound_holds(config, tmp_path):
    _, trace = raced(config, {"strategy.staleness_bound": 0}, tmp_path, at_random(9))
    # Everybody waits for everybody: rounds of four, all at the version of the last one.
    np.testing.assert_array_equal(trace["version"], np.arange(60) // 4 * 4)
    assert np.all(np.sort(trace["worker"].to_numpy().reshape(-1, 4)) == np.arange(4))


def test_it_goes_on_where_it_was_saved(config, tmp_path):
    """Whoever was at work takes the gradient again; what came after the checkpoint is gone."""
    whole, trace = raced(config, {}, tmp_path / "whole", at_random(11))
    order = trace["worker"].tolist()
    begun = config({"steps": 20, "cluster.service": "race"})
    race(begun, tmp_path / "parts", replaying(order))
    with open(tmp_path / "parts/trace.csv", "a") as file:  # a server that died without a checkpoint
        file.write("0,99.0,19,23\n")
    parts, again = raced(config, {}, tmp_path / "parts", replaying(order[20:]))
    assert parts["parameters_crc32"] == whole["parameters_crc32"]
    columns = ["worker", "version", "control.batch"]
    pd.testing.assert_frame_equal(again[columns], trace[columns])
    assert again["seconds"].is_monotonic_increasing


def test_it_does_not_go_on_without_its_trace(config, tmp_path):
    race(config({"steps": 20, "cluster.service": "race"}), tmp_path, at_random(1))
    (tmp_path / "trace.csv").unlink()
    with pytest.raises(WorkdirError, match="must have the 20 arrivals of the checkpoint"):
        raced(config, {}, tmp_path, at_random(1))


def test_a_trace_that_contradicts_itself_is_refused(config, tmp_path):
    _, trace = raced(config, {}, tmp_path, at_random(13))
    trace.loc[30, "version"] -= 1
    trace.to_csv(tmp_path / "wrong.csv", index=False)
    source = {"cluster.service": "trace", "cluster.trace": str(tmp_path / "wrong.csv")}
    with pytest.raises(TimelineError, match=r"arrival 30, of worker ., says version"):
        trainer.prepare(config(source))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"parallel.api": "jit"}, "config.parallel"),
        ({"replicas.count": 2}, "config.replicas.count"),
        ({"data.streaming": True}, "config.data.streaming"),
        ({"strategy.name": "sync", "strategy.groups": 1}, "config.cluster.service"),
        ({"strategy.name": "buffered"}, "config.cluster.service"),
    ],
)
def test_what_cannot_race(config, tmp_path, values, message):
    with pytest.raises(ConfigError, match=message):
        raced(config, values, tmp_path / "none", at_random(0))
    assert not (tmp_path / "none").exists()


def test_nothing_else_takes_a_race(config):
    with pytest.raises(ConfigError, match=r"launch\.race"):
        trainer.prepare(config({"cluster.service": "race"}))
