"""Many runs as one program: the trainer's own workdirs, and floats that differ by rounding only."""

import json
import threading
import time

import jax
import numpy as np
import pytest

from optdyn.base.progress import Watch
from optdyn.base.trees import bytes_of
from optdyn.problem import shared_data
from optdyn.train import batched_runs, loop, memory_checks, trainer
from optdyn.train.trainer import prepare, train

CHECKPOINT_EVERY = 20

QUIET = Watch(lambda: 0, lambda step, text: None)
LOCAL = {"method.name": "local", "cluster.nodes": 1, "cluster.service.name": "constant"}
LOCAL |= {"model.name": "resmlp", "model.blocks": 2, "model.width": 8}


def batched(configs, folder, lanes=4, watch=QUIET):
    runs = [prepare(config) for config in configs]
    folders = [folder / str(i) for i in range(len(runs))]
    return batched_runs.train(runs, folders, lanes, [watch] * len(runs)), folders


def varied(config, values, count):
    """Runs of one program that differ in seed, momentum and learning rate."""

    def lane(i):
        numbers = {"optimizer.momentum": 0.1 * i, "optimizer.learning_rate": 0.1 / (i + 1)}
        return config({"checkpoint_every": 0, **values, "seed": i, **numbers})

    return [lane(i) for i in range(count)]


@pytest.mark.parametrize(
    "values",
    [
        {},  # a noisy quadratic: every seed has data of its own
        {"mnist": True},
        pytest.param({"mnist": True, **LOCAL}, marks=pytest.mark.slow),
        {"method.name": "dynamic_batch", "method.micro_batch": 2},
    ],
    ids=["quadratic", "mlp", "local", "dynamic_batch"],
)
def test_lanes_are_the_runs_alone(config, mnist, tmp_path, values, rows):
    """But for the order of sums: float32 rounding, 6e-8, of each of 60 updates."""
    data = mnist if values.get("mnist") else {}
    values = {**data, **{k: v for k, v in values.items() if k != "mnist"}}
    configs = varied(config, {"checkpoint_every": 20, **values}, 3)
    summaries, folders = batched(configs, tmp_path)
    for i, (one, summary, folder) in enumerate(zip(configs, summaries, folders, strict=True)):
        alone = train(one, tmp_path / f"alone{i}")
        times = ("wall_seconds", "parameters_crc32", "starts")
        assert summary.keys() == alone.keys()
        assert_close({k: v for k, v in summary.items() if k not in times}, alone)
        assert json.loads((folder / "summary.json").read_text()) == summary
        expected = rows(tmp_path / f"alone{i}")
        assert [row["step"] for row in rows(folder)] == [row["step"] for row in expected]
        for row, other in zip(rows(folder), expected, strict=True):
            assert_close(row, other)
        kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
        assert kept == ["40", "60"]
    assert len({summary["parameters_crc32"] for summary in summaries}) == 3


def test_lanes_whose_shares_differ_are_the_runs_alone(config, tmp_path):
    values = {"method.name": "dynamic_batch", "batch_size": 16}
    speeds = [(1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 12.0)]
    configs = [config({**values, "cluster.speeds": lane}) for lane in speeds]
    assert prepare(configs[0]).padded_share < prepare(configs[1]).padded_share
    summaries, _ = batched(configs, tmp_path)
    for i, summary in enumerate(summaries):
        alone = train(configs[i], tmp_path / f"alone{i}")
        del summary["wall_seconds"], summary["parameters_crc32"], summary["starts"]
        assert_close(summary, alone)


def assert_close(values, others):
    """Stable runs keep what 60 updates round, 1e-7 of a number each, small."""
    for name, value in values.items():
        numbers = isinstance(value, float)
        assert value == (pytest.approx(others[name], rel=1e-4) if numbers else others[name]), name


def test_a_lane_that_diverges_leaves_the_others_alone(config, tmp_path, rows):
    """To the bit: what the other lanes hold does not enter a lane's sums."""
    good = varied(config, {}, 4)
    wild = config({"optimizer.learning_rate": 1e5, "checkpoint_every": 0})
    bad = [*good[:2], wild, good[3]]
    whole, _ = batched(good, tmp_path / "good")
    summaries, folders = batched(bad, tmp_path / "bad")
    assert [summary["status"] for summary in summaries] == [
        *("completed", "completed", "diverged", "completed")
    ]
    for i in (0, 1, 3):
        assert summaries[i]["parameters_crc32"] == whole[i]["parameters_crc32"]
        assert rows(folders[i]) == rows(tmp_path / "good" / str(i))
    alone = train(bad[2], tmp_path / "alone")
    assert summaries[2]["step"] == alone["step"] < 60


def test_floats_do_not_depend_on_how_many_runs_there_are(config, tmp_path):
    configs = varied(config, {}, 4)
    four, _ = batched(configs, tmp_path / "four")
    one, _ = batched(configs[2:3], tmp_path / "one")
    assert one[0]["parameters_crc32"] == four[2]["parameters_crc32"]
    # Nor where the others are there already.
    (tmp_path / "four" / "1" / "summary.json").rename(tmp_path / "away")
    (tmp_path / "four" / "1" / "checkpoints").rename(tmp_path / "checkpoints")
    again, _ = batched(configs, tmp_path / "four")
    assert again == [
        {**one, **{key: again[i][key] for key in ("wall_seconds", "starts")}}
        for i, one in enumerate(four)
    ]


class Stop:
    """A signal that is noticed after so many looks."""

    def __init__(self, looks):
        self.looks = looks

    def __call__(self):
        self.looks -= 1
        return 15 if self.looks < 0 else 0


def test_interrupted_lanes_resume_together_and_alone(config, tmp_path, rows):
    configs = varied(config, {}, 3)
    whole, _ = batched(configs, tmp_path / "whole")
    stopping = Watch(Stop(looks=10), QUIET.show)
    summaries, folders = batched(configs, tmp_path / "cut", watch=stopping)
    assert {summary["status"] for summary in summaries} == {"interrupted"}
    assert all(0 < summary["step"] < 60 for summary in summaries)
    # One goes on as `launch.train` would; the others are then at other updates than it.
    alone = train(configs[0], folders[0])
    assert alone["status"] == "completed"
    assert alone["train_loss"] == pytest.approx(whole[0]["train_loss"], rel=1e-4)  # as above
    again, _ = batched(configs, tmp_path / "cut")
    assert again[0] == alone
    for i in (1, 2):
        assert again[i]["parameters_crc32"] == whole[i]["parameters_crc32"]
        assert rows(folders[i]) == rows(tmp_path / "whole" / str(i))


def test_lanes_may_be_at_different_updates(config, tmp_path):
    configs = varied(config, {}, 2)
    whole, _ = batched(configs, tmp_path / "whole")
    batched(configs[:1], tmp_path / "cut", watch=Watch(Stop(looks=3), QUIET.show))
    again, _ = batched(configs, tmp_path / "cut")
    for one, other in zip(again, whole, strict=True):
        assert one["parameters_crc32"] == other["parameters_crc32"]


TRACED = [
    {"seed": 3},
    {"optimizer.momentum": -0.2},
    {"optimizer.learning_rate": 0.01},
    {"optimizer.schedule": "cosine", "optimizer.warmup_steps": 5},
    {"steps": 70, "log_every": 5, "checkpoint_every": 0},
    {"cluster.service.name": "constant"},
    {"cluster.service.name": "lognormal", "cluster.speeds": (1, 2, 3, 4)},
    {"cluster.nodes": 8, "cluster.latency": 0.1},
    {"model.noise": 0.1},
    {"data.replacement": True},
]
COMPILED = [
    {"method.groups": 2},
    {"method.groups": 1},
    {"method.name": "sync"},
    {"cluster.service.name": "geometric"},
    {"batch_size": 8},
    {"model.dimension": 7},
    {"model.condition": 3.0},
    {"optimizer.name": "adam"},
    {"optimizer.options.nesterov": True},
    {"data.train_examples": 50},
    {"data.train_evaluated": 50},
    {"method.name": "dynamic_batch", "method.micro_batch": 2},
    {"method.name": "dynamic_batch", "cluster.nodes": 2},
]


def test_one_name_is_one_program_whatever_numbers_a_study_varies(config):
    known = {}
    for values in ({}, *TRACED, *COMPILED):
        chosen = config(values)
        run, name = prepare(chosen), batched_runs.compilation(chosen)
        assert values not in COMPILED or name not in known
        shapes = jax.tree.map(np.shape, loop.advance_arguments(run, 0)[1:4])
        found = run.program, str(shapes)
        assert known.setdefault(name, found) == found
    assert len(known) == 1 + len(COMPILED)


@pytest.mark.parametrize(
    "values, expected",
    [
        ({}, True),
        ({"method.name": "sync", "parallel.api": "jit"}, False),
        ({"method.name": "daso"}, False),  # the losses decide what is next
        ({"replicas.count": 5}, False),
    ],
)
def test_which_runs_can_be_lanes(config, values, expected):
    assert batched_runs.is_batched(config(values)) == expected


def test_as_many_lanes_as_memory_holds(config):
    runs = [prepare(one) for one in varied(config, {"model.dimension": 1000}, 5)]
    need, size = batched_runs.memory(runs[0]), bytes_of(runs[0].params)
    # Parameters, their 4 snapshots and the velocity, at least; and what a batch of 4 and the log's
    # 100 examples of as many numbers as parameters are computed with.
    assert 6 * size < need < 6 * size + 5 * (4 + 100) * size
    assert batched_runs.lanes_of(runs, 64, 100 * need) == 5
    assert batched_runs.lanes_of(runs, 4, 100 * need) == 3  # 3 and 2 rather than 4 and 1
    assert batched_runs.lanes_of(runs, 64, 2.5 * need) == 2
    assert batched_runs.lanes_of(runs, 64, 0) == 1
    assert 0 < memory_checks.available() < 2**50


def test_memory_is_never_overdrawn_but_by_one():
    budget, lock, taken, most = batched_runs.MemoryBudget(10), threading.Lock(), [], []

    def work(size):
        with budget.take(size):
            with lock:
                taken.append(size)
                most.append(list(taken))
            time.sleep(0.001)
            with lock:
                taken.remove(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in [3, 4, 5, 20, 1, 9, 0] * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert len(most) == 35
    assert all(sum(sizes) <= 10 or len([s for s in sizes if s]) == 1 for sizes in most)
    assert max(len(sizes) for sizes in most) > 1  # at the same time


def test_measuring_changes_nothing(config, tmp_path, monkeypatch):
    monkeypatch.setattr(batched_runs, "SECONDS", 0.001)
    configs = varied(config, {"method.name": "sync"}, 3)
    whole = [train(one, tmp_path / str(i)) for i, one in enumerate(configs)]
    runs = [prepare(one) for one in configs]
    rates = batched_runs.measure(runs, lanes=4, threads=2)
    assert rates.threads > 0 and rates.vmap > 0 and rates.updates == 16
    assert 0 <= rates.difference < 1e-5  # 16 updates, each rounded by some 1e-7
    for i, run in enumerate(runs):
        summary = trainer.run_to_end(trainer.training(run, tmp_path / f"after{i}", QUIET))
        assert summary["parameters_crc32"] == whole[i]["parameters_crc32"]


def test_examples_are_loaded_and_put_on_devices_once(config, mnist):
    one, other = (prepare(config({**mnist, "seed": seed})) for seed in (0, 1))
    assert one.data is other.data
    sets = [
        shared_data.put_on_devices(run.data, run.program.layout.put_examples, run.config)
        for run in (one, other)
    ]
    assert sets[0] is sets[1]
    fewer = prepare(config({**mnist, "data.train_examples": 100}))
    assert fewer.examples == 100 and one.examples == 200
