"""A run that is given more steps has the floats of one that always had as many, or is refused."""

import json
import shutil
import signal

import numpy as np
import pytest

from optdyn.optimizers import schedules
from optdyn.optimizers.kinds import SGD
from optdyn.train.checkpoints import latest
from optdyn.train.replicas import record
from optdyn.train.trainer import prepare, train
from tests.train.runs import raise_at, refusal

CHECKPOINT_EVERY = 20

NODES = {"cluster.nodes": 2, "cluster.devices_per_node": 2}
# Epochs of 25 updates.
DASO = NODES | {"method.name": "daso", "method.warmup_epochs": 1, "method.cooldown_epochs": 1}
METER = {"probes.momentum": True, "probes.window": 54, "probes.every": 80, "model.dimension": 40}
CASES = {
    "groups": {},
    "adam": {"optimizer.name": "adam", "optimizer.learning_rate": 0.01},
    "adamw": {"optimizer.name": "adamw", "optimizer.learning_rate": 0.02}
    | {"optimizer.weight_decay": 0.1},
    "lion": {"optimizer.name": "lion", "optimizer.learning_rate": 0.02}
    | {"optimizer.schedule": "linear", "optimizer.decay_steps": 60},
    # It keeps a random key in its state.
    "noisy": {"optimizer.name": "noisy_sgd", "optimizer.learning_rate": 0.02}
    | {"optimizer.options.key": 1},
    "chain": {"optimizer.chain": ("delay_compensation", "staleness_rate")}
    | {"optimizer.chain_options": {"adaptive": True, "law": "power"}},
    "stale synchronous": {"method.staleness_bound": 1, "cluster.service.name": "lognormal"},
    "ringmaster": {"method.name": "ringmaster", "method.delay_bound": 2},
    "geometric": {"cluster.service.name": "geometric"},
    "closed loop": {"optimizer.name": "closed_loop", "optimizer.momentum": 0.8},
    "warm-up": {"optimizer.warmup_steps": 10},
    "decay of its own length": {"optimizer.schedule": "exponential", "optimizer.decay_steps": 20},
    "dynamic_batch": {"method.name": "dynamic_batch", "batch_size": 8}
    | {"cluster.speeds": (1, 2, 3, 4)},
    "model averaging to an average": NODES | {"method.name": "model_averaging", "method.period": 8},
    "meter": METER,
    "replacement": {"data.replacement": True},
    "carried averages, dropout, and an average of weights": {
        **{"model.name": "tests.own.nets:make", "data.name": "tests.own.nets:data"},
        **{"evaluation.statistics": "carried", "evaluation.average": "ema"},
        **{"batch_size": 12, "evaluation.decay": 0.9},
    },
}
OF = 40  # steps, before there are 60


@pytest.fixture
def stopped_at(monkeypatch):
    """`stopped_at(step)`: the next run is interrupted when it logs that step."""
    return lambda step: raise_at(monkeypatch, step, signal.SIGTERM)


def without_start(summary):
    of_starts = ("wall_seconds", "starts", "continued")
    return {key: value for key, value in summary.items() if key not in of_starts}


@pytest.fixture(scope="module")
def plain(config, tmp_path_factory):
    return train(config(), tmp_path_factory.mktemp("plain"))["parameters_crc32"]


@pytest.mark.parametrize("name", CASES)
def test_a_finished_run_goes_on_to_the_same_floats(config, tmp_path, rows, name, capsys, plain):
    values = CASES[name]
    whole = train(config(values), tmp_path / "whole")
    first = train(config({**values, "steps": OF}), tmp_path / "grown")
    assert first["status"] == "completed" and "continued" not in first
    capsys.readouterr()
    grown = train(config(values), tmp_path / "grown")
    assert capsys.readouterr().err.startswith("resuming at 40, for 60 steps in place of 40\n")
    assert grown["continued"] == [{"at": OF, "of": OF, "steps": 60}]
    assert grown["parameters_crc32"] == whole["parameters_crc32"]
    assert (whole["parameters_crc32"] == plain) == (name == "groups")
    assert whole["train_loss"] < rows(tmp_path / "whole")[0]["train_loss"]
    assert [entry["at"] for entry in grown["starts"]] == [0, OF]
    if name != "meter":  # the end of the first was in the midst of a window, which was read then
        assert rows(tmp_path / "grown") == rows(tmp_path / "whole")
        assert without_start(grown) == without_start(whole)
    one, other = ((tmp_path / n / "config.json").read_text() for n in ("grown", "whole"))
    assert one == other
    assert train(config(values), tmp_path / "grown") == grown
    shutil.rmtree(tmp_path / "grown/checkpoints/60")
    (tmp_path / "grown/summary.json").unlink()
    again = train(config(values), tmp_path / "grown")
    assert again["parameters_crc32"] == whole["parameters_crc32"]


def test_the_meter_of_a_grown_run_has_all_windows(config, tmp_path):
    """But for what was read at the end of the first, in the midst of a window."""
    sketches, readings = {}, {}
    for name, lengths in {"grown": (90, 180), "whole": (180,)}.items():
        for steps in lengths:
            values = {**METER, "steps": steps, "log_every": 40, "checkpoint_every": 40}
            train(config(values), tmp_path / name)
        sketches[name] = np.load(tmp_path / name / "sketches.npy")
        rows = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        readings[name] = {row["step"]: row.get("implicit_momentum") for row in rows}
    np.testing.assert_array_equal(sketches["grown"], sketches["whole"])
    assert len(sketches["whole"]) == 54 + 54 + 20 and np.abs(sketches["whole"]).max(2).all()
    assert set(readings["grown"]) == {0, 40, 80, 90, 120, 160, 180}
    del readings["grown"][90]
    assert readings["grown"] == readings["whole"]


def test_an_interrupted_run_may_have_more_steps_or_fewer(config, tmp_path, stopped_at):
    for steps in (50, 90):
        workdir = tmp_path / str(steps)
        stopped_at(30)
        assert train(config(), workdir)["status"] == "interrupted"
        summary = train(config({"steps": steps}), workdir)
        whole = train(config({"steps": steps}), tmp_path / f"whole{steps}")
        assert summary["parameters_crc32"] == whole["parameters_crc32"]
        assert summary["continued"][0]["of"] == 60


def test_more_than_once_and_killed_in_between(config, tmp_path, stopped_at):
    train(config({"steps": 20}), tmp_path / "grown")
    stopped_at(30)
    train(config({"steps": 40}), tmp_path / "grown")
    (tmp_path / "grown" / "summary.json").unlink()  # as after a kill
    summary = train(config(), tmp_path / "grown")
    whole = train(config(), tmp_path / "whole")
    assert summary["parameters_crc32"] == whole["parameters_crc32"]
    assert [(one["of"], one["steps"]) for one in summary["continued"]] == [(20, 40), (40, 60)]


def test_log_points_and_checkpoints_may_come_otherwise(config, tmp_path, rows, stopped_at):
    whole = train(config(), tmp_path / "whole")
    stopped_at(20)
    train(config(), tmp_path / "run")
    values = {"log_every": 8, "checkpoint_every": 16, "plan.rounds": 3, "tune.target": 0.5}
    summary = train(config(values), tmp_path / "run")
    assert summary["parameters_crc32"] == whole["parameters_crc32"]
    assert "continued" not in summary
    at = summary["starts"][1]["at"]
    steps = [row["step"] for row in rows(tmp_path / "run")]
    expected = {*range(0, at + 1, 10), at, *(s for s in range(0, 60, 8) if s > at), 60}
    assert steps == sorted(expected)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["log_every"] == 8


@pytest.mark.parametrize("schedule", ["cosine", "linear", "exponential"])
def test_a_schedule_of_the_whole_run_is_the_new_one_from_there(
    config, tmp_path, schedule, capsys, rows
):
    values = {"optimizer.schedule": schedule}
    train(config({**values, "steps": OF}), tmp_path)
    capsys.readouterr()
    summary = train(config(values), tmp_path)
    (entry,) = summary["continued"]
    assert entry["schedule"] == f"{schedule!r} of 60 steps from update 40 on, before that of 40"
    assert entry["schedule"] in capsys.readouterr().err
    rates = {n: schedules.learning_rates(SGD(0.1, schedule=schedule), n) for n in (OF, 60)}
    for row in rows(tmp_path):
        done = max(row["step"] - 1, 0)
        expected = rates[OF if row["step"] <= OF else 60][done]
        assert np.float32(row["learning_rate"]) == expected


def test_what_would_have_been_another_run_is_refused_and_left(config, tmp_path, files):
    cases = {
        "cool-down": ({**DASO, "steps": 75}, {"steps": 150}, "75 updates are not the first of 150"),
        "last average": (
            {**NODES, "method.name": "model_averaging", "method.period": 7},
            {"steps": 90},
            "'model_averaging' ends a run of 60 steps differently",
        ),
        "steered": (
            {**METER, "probes.steer": True, "optimizer.momentum": 0.5},
            {"steps": 90},
            "probes.steer ends a run",
        ),
        "fewer": ({}, {"steps": 50, "log_every": 10}, "has done 60 steps: config.steps = 50 must"),
        "other": ({}, {"steps": 90, "seed": 1}, "its config differs in seed;"),
    }
    for name, (values, more, expected) in cases.items():
        train(config(values), tmp_path / name)
        before = files(tmp_path / name)
        assert expected in refusal(train, config({**values, **more}), tmp_path / name)
        assert files(tmp_path / name) == before
    shutil.rmtree(tmp_path / "fewer" / "checkpoints")
    message = refusal(train, config({"steps": 90}), tmp_path / "fewer")
    assert "has no checkpoint of its 60 steps to go on from" in message


def test_daso_goes_on_where_it_does_not_cool_down_yet(config, tmp_path, stopped_at):
    values = {**DASO, "steps": 75}
    stopped_at(30)
    assert train(config(values), tmp_path / "grown")["status"] == "interrupted"
    longer = config({**values, "steps": 100})
    grown, whole = (train(longer, tmp_path / name) for name in ("grown", "whole"))
    assert grown["parameters_crc32"] == whole["parameters_crc32"]
    assert grown["sent_bytes"] == whole["sent_bytes"]


def test_a_recording_is_of_one_length(config, tmp_path, files):
    values = {"replicas.count": 2, "steps": 8, "data.replacement": True}
    summary = record(config(values), tmp_path)
    before = files(tmp_path)
    assert "differs in steps" in refusal(record, config({**values, "steps": 10}), tmp_path)
    assert record(config({**values, "log_every": 5, "checkpoint_every": 0}), tmp_path) == summary
    assert files(tmp_path) == before


def test_a_run_that_diverged_stays_so(config, tmp_path):
    values = {"optimizer.learning_rate": 1e6}
    first = train(config(values), tmp_path)
    assert first["status"] == "diverged"
    second = train(config({**values, "steps": 90}), tmp_path)
    assert second == {**first, "steps": 90}
    assert json.loads((tmp_path / "config.json").read_text())["steps"] == 90


INIT = {
    "groups": {},
    "sync": {"method.name": "sync"},
    "nodes": {**NODES, "method.name": "model_averaging"},
    "groups in nodes": NODES
    | {"method.name": "model_averaging+asynchronous", "method.asynchronous.groups": 2},
}


@pytest.mark.parametrize("name", INIT)
def test_a_run_starts_from_anothers_parameters(config, mnist, tmp_path, name, rows):
    """Whatever both are. They are those of its end, by its own log; and it is not needed again."""
    source, workdir = tmp_path / "source", tmp_path / "run"
    first = train(config({**mnist, **INIT[name]}), source)
    values = {**mnist, "init_from": str(source), "method.groups": 2}
    summary = train(config(values), workdir)
    origin = {"workdir": str(source), "step": 60, "parameters_crc32": first["parameters_crc32"]}
    assert summary["init_from"] == origin
    assert rows(workdir)[0]["train_loss"] == first["train_loss"]
    assert rows(workdir)[0]["test_accuracy"] == first["test_accuracy"]
    shutil.rmtree(source)
    assert train(config(values), workdir) == summary
    for step in (40, 60):  # as killed before its first checkpoint but that of the start
        shutil.rmtree(workdir / "checkpoints" / str(step))
    (workdir / "summary.json").unlink()
    assert latest(workdir) is None
    assert "no checkpoint in it" in refusal(train, config(values), workdir)


def test_started_from_another_it_resumes_from_its_own_start(config, tmp_path, stopped_at, files):
    source, workdir = tmp_path / "source", tmp_path / "run"
    train(config({"steps": 20}), source)
    values = {"init_from": str(source), "seed": 1}
    whole = train(config(values), tmp_path / "whole")
    stopped_at(0)
    train(config(values), workdir)
    train(config(), source)
    summary = train(config(values), workdir)
    assert summary["parameters_crc32"] == whole["parameters_crc32"]
    assert summary["init_from"] == whole["init_from"]
    # And with other parameters it is another run.
    other = train(config(values), tmp_path / "other")
    assert other["init_from"]["step"] == 60
    assert other["parameters_crc32"] != whole["parameters_crc32"]


def test_parameters_of_another_model_are_refused(config, mnist, tmp_path, files):
    source = tmp_path / "source"
    train(config(mnist), source)
    before = files(tmp_path)
    for values, expected in [
        ({**mnist, "model.hidden": (9,)}, "is float32[8, 10], this model's is float32[9, 10]"),
        ({**mnist, "model.hidden": (8, 8)}, "this model's is "),
        ({}, "must be of the same model"),
    ]:
        message = refusal(train, config({**values, "init_from": str(source)}), tmp_path / "run")
        assert message.startswith(f"config.init_from = '{source}': ") and expected in message
    message = refusal(train, config({"init_from": str(tmp_path / "none")}), tmp_path / "run")
    assert message.endswith("none: no checkpoint in it; give the workdir of a run")
    replicas = config({"init_from": str(source), "replicas.count": 2})
    assert "config.init_from: must be '' with config.replicas.count" in refusal(
        record, replicas, tmp_path
    )
    (array, *_) = (source / "checkpoints" / "60").rglob("d/*")
    content = array.read_bytes()
    array.write_bytes(content[::-1])
    assert "is corrupt" in refusal(
        train, config({**mnist, "init_from": str(source)}), tmp_path / "run"
    )
    array.write_bytes(content)
    assert files(tmp_path) == before


def test_prepared_again_it_is_the_same_start(config, tmp_path):
    train(config(), tmp_path)
    run = prepare(config({"init_from": str(tmp_path)}))
    assert prepare(config()).origin == {}
    assert run.origin["step"] == 60
