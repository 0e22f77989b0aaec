"""The planner's command: a plan of a small problem, resumed, refused, and what it is told."""

import json
import math

import pytest

from analysis.plan import text
from launch import app, plan
from research.config import to_json
from research.timeline.make import exchange
from research.tuning import layers, planner
from research.tuning.planner import Interval

# Of the quadratic of conftest.py, whose program is compiled soon. Mostly, an example more takes
# 1,024 bytes for its place in the order of 256 updates.
SMALL = {
    "strategy.name": "sync",
    "cluster.nodes": 1,
    "cluster.bandwidth": 1e6,
    "cluster.latency": 1e-6,
    "plan.memory": 50_000,
    "plan.batches": (2, 8, 90),
    "plan.rounds": 3,
}


@pytest.fixture(scope="module")
def small(config):
    def make(values=()):
        return config({**SMALL, **dict(values)})

    return make


@pytest.fixture(scope="module")
def planned(small, tmp_path_factory):
    """The plan and its workdir."""
    workdir = tmp_path_factory.mktemp("planned")
    return plan.run(small(), workdir), workdir


def test_the_largest_fits_and_a_quarter_more_does_not(planned):
    made, _ = planned
    largest, memory = made["largest"], made["memory"]
    assert largest["bytes"] <= memory < largest["too_large"]["bytes"]
    assert largest["quarter_more"]["batch"] >= 1.25 * largest["batch"]
    assert largest["quarter_more"]["bytes"] > memory
    assert math.isfinite(largest["loss_of_an_update"])
    # As bytes grow by 1 KiB an example and a little, the largest is near what that says.
    assert 25 <= largest["batch"] <= 50_000 / 1024 and not largest["all_examples"]


def test_the_best_candidate_that_fits_is_chosen(planned):
    made, _ = planned
    rows = {row["batch"]: row for row in made["batches"]}
    assert [row["feasible"] for row in rows.values()] == [True, True, False]
    best = max(rows.values(), key=lambda row: row["examples_per_second"])
    update = made["update"]
    assert update["batch"] == best["batch"] and update["predicted_seconds"] == best["seconds"]
    assert update["bytes"] <= made["memory"]
    low, median, high = (update["seconds"][key] for key in ("low", "median", "high"))
    assert 0 < low <= median <= high


def test_time_to_train_is_updates_times_seconds(planned):
    made, _ = planned
    assert made["time"]["source"] == "config.steps" and made["time"]["updates"]["median"] == 60
    # Certain updates only scale the interval.
    for key, seconds in made["update"]["seconds"].items():
        assert made["time"]["seconds"][key] == pytest.approx(60 * seconds, rel=1e-12)


def test_the_text_has_the_figures(planned):
    made, _ = planned
    shown = text(made)
    largest = made["largest"]
    for figure in (
        f"mini-batch {largest['batch']}, the largest that fits",
        f"mini-batch {largest['quarter_more']['batch']}: ",
        "does not fit",
        f"devices: {made['devices']['count']}, at most 64",
        f"use --config.batch_size={made['update']['batch']} ",
    ):
        assert figure in shown


def test_the_same_command_reads_the_plan(planned, small, files, monkeypatch, capsys):
    made, workdir = planned
    before = files(workdir)
    assert json.loads(before["config.json"]) == json.loads(to_json(small()))
    monkeypatch.setattr(layers, "updates", None)  # nothing can be measured
    assert plan.main(small(), workdir) == 0
    assert capsys.readouterr().out == text(made) + "\n"
    assert files(workdir) == before


def test_another_config_is_refused(planned, small, files):
    _, workdir = planned
    before = files(workdir)
    with pytest.raises(app.INPUT_ERRORS, match=r"config differs in plan\.memory; give another"):
        plan.run(small({"plan.memory": 60_000}), workdir)
    assert files(workdir) == before


def run_of(folder, seed, losses, **values):
    """A finished run's workdir, with a loss every ten updates."""
    folder.mkdir(parents=True)
    config = {"seed": seed, "batch_size": 32, **values}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "summary.json").write_text(json.dumps({"status": "completed"}))
    rows = [
        {"step": 10 * i, "simulated_seconds": float(i), "train_loss": loss}
        for i, loss in enumerate(losses)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_updates_of_runs(small, tmp_path):
    """Where the straight line between log points is at the loss: after 15, 20 and 25 updates."""
    for seed, losses in enumerate(([3.0, 2.0, 0.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.5, 0.5])):
        run_of(tmp_path / "points" / f"seed{seed}", seed, losses)
    config = small({"plan.runs": str(tmp_path), "plan.loss": 1.0})
    updates, source = plan.updates_to_train(config)
    assert updates == planner.interval([15.0, 20.0, 25.0])
    assert source == "3 runs of mini-batch 32"
    config.plan.loss = 0.6
    with pytest.raises(app.INPUT_ERRORS, match=r"config\.plan\.loss = 0\.6: 2 of 3 runs"):
        plan.updates_to_train(config)
    run_of(tmp_path / "points" / "other", 3, [0.0], batch_size=64)
    with pytest.raises(app.INPUT_ERRORS, match="its runs differ in batch_size"):
        plan.updates_to_train(config)


def test_updates_of_an_interval(small):
    config = small({"plan.updates": (100.0, 150.0, 250.0)})
    assert plan.updates_to_train(config) == (Interval(150, 100, 250), "config.plan.updates")


@pytest.mark.parametrize("workers", [1, 3, 64])
def test_the_lemmas_of_a_cluster(small, workers):
    """R_O from the network: T_C such that so many devices are just as efficient as wanted."""
    size, config = 10**6, small({"plan.efficiency": 0.6, "cluster.latency": 0.25})
    overhead = exchange(config.cluster, size)
    assert overhead == 2 * (0.25 + 1.0)
    allowed = planner.overhead_allowed(0.6, workers) if workers > 2 else 1e9
    # A rounding less computation would be a device less.
    seconds = overhead / allowed * (1 + 1e-12)
    made = plan.cluster(config, size, seconds)
    assert made["devices"]["count"] == workers
    assert made["devices"]["overhead_ratio"] == pytest.approx(allowed)
    assert made["servers"]["count"] == planner.parameter_servers(size, workers, 1e6, seconds)


def test_the_limits_of_a_cluster(small):
    """Nothing to wait for: as many devices as there may be; efficiency 1: no second one."""
    free = plan.cluster(small({"cluster.bandwidth": 0.0, "cluster.latency": 0.0}), 100, 1.0)
    assert free["devices"]["count"] == 64 and free["devices"]["speedup"] == 64
    assert free["servers"]["count"] == 0
    alone = plan.cluster(small({"plan.efficiency": 1.0}), 100, 1.0)
    assert alone["devices"]["count"] == 1 and alone["devices"]["speedup"] == 1
    given = plan.cluster(small({"plan.overhead": 3.0, "plan.server_bandwidth": 50.0}), 100, 2.0)
    assert given["devices"]["overhead_ratio"] == 1.5
    assert given["servers"]["bandwidth"] == 50.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"plan.memory": 0}, r"config\.plan\.memory = 0: must be bytes, more than 0"),
        ({"plan.memory": 5_000}, r"config\.plan\.memory = 5000: an update of one example takes"),
        ({"plan.batches": (0,)}, r"config\.plan\.batches"),
        ({"plan.updates": (3.0, 2.0, 4.0)}, r"config\.plan\.updates"),
        ({"plan.runs": "nosuch"}, "nosuch: no run in it"),
        (
            {"strategy.name": "asynchronous", "strategy.groups": 1},
            r"config\.strategy\.name: a plan is of one device",
        ),
        ({"parallel.api": "jit"}, r"config\.parallel\.api: a plan is of one device"),
        ({"replicas.count": 2}, r"config\.replicas\.count: a plan is of one device"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(small, values, message, tmp_path):
    workdir = tmp_path / "new"
    with pytest.raises(app.INPUT_ERRORS, match=message) as error:
        plan.run(small(values), workdir)
    assert "\n" not in str(error.value) and not workdir.exists()


def test_no_candidate_fits(small, tmp_path):
    with pytest.raises(app.INPUT_ERRORS, match=r"no mini-batch fits, of \[90\]"):
        plan.run(small({"plan.batches": (90,)}), tmp_path)
