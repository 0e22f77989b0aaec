"""Recorded windows fitted again, on short runs of a noisy quadratic."""

import json
import shutil

import numpy as np
import pytest

from optdyn.implicit_momentum import readings
from optdyn.report import windows
from optdyn.report.tables import TableError, folders_with
from optdyn.train import trainer
from optdyn.train.workdir import SKETCHES
from tests.report.simulation import deviation
from tests.report.test_implicit_momentum import command

PROBED = {
    "steps": 700,
    "batch_size": 8,
    "log_every": 50,
    "data.train_examples": 4000,
    "checkpoint_every": 0,
    "model.dimension": 256,
    "model.noise": 1.0,
    "optimizer.momentum": 0.0,
    "optimizer.learning_rate": 0.3,
    "probes.momentum": True,
    "probes.window": 300,
    "probes.every": 320,
}


@pytest.fixture(scope="module")
def sweep(config, tmp_path_factory):
    """Two seeds of 4 memoryless groups, and one run of Adam."""
    workdir = tmp_path_factory.mktemp("sweep")
    adam = {"optimizer.name": "adam", "optimizer.learning_rate": 0.03}
    points = {"s0": {"seed": 0}, "s1": {"seed": 1}, "adam": adam}
    for name, values in points.items():
        trainer.train(config(PROBED).with_(values), workdir / "points" / name)
    return workdir


def test_a_run_says_again_what_it_said_at_its_end(sweep):
    for name in ("s0", "adam"):
        folder = sweep / "points" / name
        summary = json.loads((folder / "summary.json").read_text())
        found = windows.fit(windows.load(folder))
        keys = [key for key in found if key in summary]
        assert "implicit_momentum_p" in keys and ("fitted_momentum" in keys) == (name == "s0")
        assert {key: found[key] for key in keys} == {key: summary[key] for key in keys}


def test_the_seeds_of_a_setting_are_fitted_together(sweep):
    runs = [windows.load(folder) for folder in folders_with(sweep, SKETCHES)]
    (both,) = windows.pooled(runs)
    assert both.name == "s0 and 1 more"
    fits = [windows.fit(run) for run in [*runs, both]]
    widths = {it["run"]: it["implicit_momentum_high"] - it["implicit_momentum_low"] for it in fits}
    assert widths[both.name] < min(widths["s0"], widths["s1"])
    it = fits[-1]
    interval = it["implicit_momentum_low"], it["implicit_momentum_high"]
    assert deviation(it["implicit_momentum"], interval, 0.75) < 4  # standard errors
    assert it["theory_momentum"] == 0.75 and it["theory_learning_rate"] == pytest.approx(0.075)


def test_command(sweep, capsys):
    code, printed, error = command(capsys, f"--workdir={sweep}", "--lags=1")
    assert code == 0, error
    first, second = printed.strip().split("\n\n")
    names = ["adam", "s0", "s1", "s0 and 1 more"]
    written = json.loads((sweep / "momentum_meter.json").read_text())
    assert [it["run"] for it in written] == names
    assert len(first.split("\n")) == 5 and "alpha/g" in first
    assert len(second.split("\n")) == 1 + 4 * 3  # phi_1, eta_0 and the momentum of each
    steps = {it["run"]: it["polynomial"]["steps"] for it in written}
    assert steps == dict.fromkeys(names, "own") | {"adam": "raw"}
    adam = written[0]
    assert adam["polynomial"]["phi"] == [adam["implicit_momentum"]]
    assert adam["polynomial"]["eta"] == [adam["effective_learning_rate"]]


def test_constant_service_is_a_delay(config, tmp_path):
    """Two groups in turn: eta_1 = alpha, nothing else; one term of momentum is rejected."""
    keys = {"cluster.service.name": "constant", "method.groups": 2, "cluster.nodes": 2}
    keys |= {"optimizer.learning_rate": 1.0}  # so large that gradients change from one to the next
    trainer.train(config(PROBED | keys), tmp_path)
    it = windows.fit(windows.load(tmp_path), gradient_lags=1)
    assert it["implicit_momentum_p"] < 1e-6 and it["theory_momentum"] is None
    found = it["polynomial"]
    assert found["theory_eta"] == (0.0, 1.0) and found["p"] > 1e-3
    for value, interval, truth in zip(found["eta"], found["eta_interval"], (0, 1), strict=True):
        assert deviation(value, interval, truth) < 4
    assert deviation(found["momentum"], found["momentum_interval"], 0.5) < 4


def test_arrivals_tell_of_regular_service_where_residuals_do_not(config, tmp_path):
    """Log-normal times: J finds nothing in 0.98 where the staleness has 0.75."""
    law = {"cluster.service.name": "lognormal", "cluster.service.variation": 0.7}
    law |= {"optimizer.learning_rate": 1.0, "steps": 1400, "probes.window": 700}
    law |= {"probes.every": 700}
    trainer.train(config(PROBED | law), tmp_path)
    run = windows.load(tmp_path)
    assert readings.fitted(run.windows, 1, raw=True).p > 0.05
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["implicit_momentum_low"] > 0.75  # with an interval that is far off
    assert summary["implicit_momentum_p"] < 1e-10
    past = windows.fit(run, 1, 1)["polynomial"]
    assert "a momentum of 1" in past["refused"]  # one past gradient does not excuse it


def test_a_run_that_goes_on_is_read_up_to_its_last_log_point(sweep, tmp_path):
    folder = shutil.copytree(sweep / "points" / "s0", tmp_path / "run")
    (folder / "summary.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(lines[:8]) + "\n")  # to update 350
    assert len(windows.load(folder).windows) == 1
    assert len(windows.load(sweep / "points" / "s0").windows) == 3
    (folder / "metrics.jsonl").write_text("\n".join(lines[:1]) + "\n")
    assert "0 updates" in windows.fit(windows.load(folder))["implicit_momentum_refused"]


@pytest.mark.parametrize("damage", ["cut", "text", "shape", "config"])
def test_damaged_recordings_are_one_line(sweep, tmp_path, damage):
    folder = shutil.copytree(sweep / "points" / "s0", tmp_path / "run")
    file = folder / SKETCHES
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1000])
    elif damage == "text":
        file.write_text("no array")
    elif damage == "shape":
        np.save(file, np.zeros((5, 5)))
    else:
        (folder / "config.json").write_text('{"steps": "many"}')
    with pytest.raises(TableError) as caught:
        windows.load(folder)
    assert str(folder) in str(caught.value)


def test_bad_input_ends_the_command_with_2(sweep, tmp_path, capsys):
    (tmp_path / SKETCHES).write_text("no array")
    code, _, error = command(capsys, f"--workdir={tmp_path}")
    assert code == 2 and error.count("\n") == 1
    code, _, error = command(capsys, f"--workdir={sweep}", "--gradient_lags=-1")
    assert code == 2 and "must not be negative" in error
