"""Several workdirs as two tidy tables, and what trackers are given, by stand-ins of them."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from optdyn.report.export import main
from optdyn.report.tables import TableError, load, natural, points, tidy
from tests.report.reports import run


@pytest.fixture
def workdirs(tmp_path):
    """Two runs that differ in their model; a null loss, a torn line, one without a summary."""
    for name, hidden in (("a", [64]), ("b", [32, 32])):
        cluster = {"service": {"name": "constant"}}
        config = {"model": {"hidden": hidden}, "cluster": cluster, "seed": 3}
        summary = {"status": "diverged", "train_loss": 2.0, "versions": {"jax": "0"}}
        log = '{"step": 0, "train_loss": 2.0}\n{"step": 5, "train_loss": null}\n{"step": 10, "tr'
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
        (tmp_path / name / "metrics.jsonl").write_text(log)
    (tmp_path / "b" / "summary.json").unlink()
    return tmp_path / "a", tmp_path / "b"


def test_one_row_a_point(workdirs):
    runs, _ = load(*workdirs)
    assert list(runs["point"]) == list(map(str, workdirs))
    assert list(runs["model.hidden"]) == ["[64]", "[32, 32]"]
    assert list(runs["status"]) == ["diverged", "unfinished"]
    assert list(runs["seed"]) == [3, 3]
    assert "cluster.service.name" not in runs and "versions" not in runs
    assert "cluster.service.name" in load(*workdirs, keys=["cluster.service.name"])[0]


def test_one_row_a_log_point(workdirs):
    _, metrics = load(*workdirs)
    assert list(metrics["step"]) == [0, 5, 0, 5]
    assert metrics["train_loss"].dtype == float
    assert list(metrics["train_loss"].isna()) == [False, True, False, True]


def test_words_in_a_log_stay_words(workdirs):
    path = workdirs[0] / "metrics.jsonl"
    path.write_text('{"step": 0, "mu": null}\n{"step": 5, "mu_refused": "too noisy"}\n')
    _, metrics = load(workdirs[0])
    assert metrics["mu"].dtype == float
    assert metrics["mu_refused"].iloc[1] == "too noisy"


def test_any_folder_above_runs_will_do(workdirs, tmp_path):
    for folder in ("sweep/points/g4", "sweep/points/g16", "a/checkpoints/5", "tuned", "sweep/plan"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text('{"model": {"hidden": [8]}}')
    for folder in ("sweep/points/g4", "sweep/points/g16", "a/checkpoints/5"):
        (tmp_path / folder / "metrics.jsonl").write_text('{"step": 0, "test_loss": 1.0}\n')
    (tmp_path / "tuned" / "tuning.json").write_text("[]")
    found = points(tmp_path)
    expected = ["a", "b", "sweep/points/g4", "sweep/points/g16"]
    assert [point.name for point in found] == [str(tmp_path / name) for name in expected]
    assert [point.name for point in points(tmp_path / "sweep")] == ["g4", "g16"]
    assert len(points(tmp_path, tmp_path / "a", tmp_path / "sweep")) == 4  # each once
    with pytest.raises(TableError, match="tuned: no run in it"):
        points(tmp_path, tmp_path / "tuned")


def test_numbers_in_names_are_in_order():
    names = ["g4-step0.05", "g4-step0.1", "g4-step0.25", "g4-step10", "g16-step0.05"]
    paths = [Path(name) for name in names]
    assert sorted(reversed(paths), key=natural) == paths


def test_one_tidy_table(workdirs, tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").write_text('{"seed": 4, "new": 8}')
    (tmp_path / "c" / "summary.json").write_text('{"status": "completed"}')
    (tmp_path / "b" / "metrics.jsonl").write_text('{"step": 0, "test_loss": 1.5}\n')
    table = tidy(tmp_path)
    assert list(table["point"]) == [str(tmp_path / name) for name in "aabc"]
    assert list(table["seed"]) == [3, 3, 3, 4]
    assert list(table["status"]) == ["diverged", "diverged", "unfinished", "completed"]
    assert list(table["step"].dropna()) == [0, 5, 0]
    assert table["test_loss"].tolist()[2] == 1.5 and table["test_loss"].count() == 1
    assert "new" not in table  # no two runs that have it differ in it
    medians = table.groupby(["model.hidden", "step"])["train_loss"].median()
    assert medians["[64]", 0] == 2.0


# Trackers.


@pytest.fixture
def sweep(tmp_path):
    run(tmp_path / "points" / "a", [2.0, 1.0, None], "diverged", method__groups=1)
    run(tmp_path / "points" / "b", [2.0, 0.5], method__groups=4)
    return tmp_path


def test_wandb_gets_every_log_point(sweep, monkeypatch, capsys):
    made = []

    def init(**given):
        its = SimpleNamespace(given=given, rows=[], summary={}, ended=False)
        its.log = lambda row, step: its.rows.append((step, row))
        its.finish = lambda exit_code: setattr(its, "ended", True)
        made.append(its)
        return its

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    assert main([f"--workdir={sweep}", "--to=wandb", "--offline", "--project=p"]) == 0
    assert capsys.readouterr().out == "2 runs to wandb\n"
    first, second = made
    assert first.given["name"] == "a" and first.given["project"] == "p"
    assert first.given["mode"] == "offline" and first.given["dir"] == str(sweep)
    assert second.given["config"]["method.groups"] == 4
    assert [step for step, _ in first.rows] == [0, 10, 20]
    assert [row.get("train_loss") for _, row in first.rows] == [2.0, 1.0, None]  # null is left out
    assert "train_loss" not in first.rows[-1][1] and "step" not in first.rows[0][1]
    assert first.summary["status"] == "diverged" and "versions" not in first.summary
    assert first.ended and second.ended


def test_mlflow_gets_every_log_point(sweep, monkeypatch, capsys):
    calls = []
    names = ("set_tracking_uri", "set_experiment", "log_params", "log_metrics", "set_tags")
    stub = {name: (lambda *a, _n=name, **k: calls.append((_n, *a, k))) for name in names}
    stub["start_run"] = lambda run_name: calls.append(("run", run_name, {})) or nullcontext()
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**stub))
    assert main([f"--workdir={sweep}", "--to=mlflow", "--offline"]) == 0
    assert calls[0][:2] == ("set_tracking_uri", f"sqlite:///{sweep.resolve() / 'mlruns.db'}")
    assert calls[1][:2] == ("set_experiment", sweep.name)
    assert [row[1] for row in calls if row[0] == "run"] == ["a", "b"]
    metrics = [(row[1], row[2]["step"]) for row in calls if row[0] == "log_metrics"]
    assert [step for _, step in metrics] == [0, 10, 20, 0, 10]
    assert metrics[1][0]["train_loss"] == 1.0 and metrics[-1][0]["train_loss"] == 0.5
    assert [row[1]["status"] for row in calls if row[0] == "set_tags"] == [
        "diverged",
        "completed",
    ]
    calls.clear()
    assert main([f"--workdir={sweep}", "--to=mlflow", "--project=p"]) == 0
    assert calls[0][:2] == ("set_experiment", "p")  # where to is the library's own affair


@pytest.mark.parametrize("to", ["wandb", "mlflow"])
def test_what_is_missing_is_one_line(sweep, tmp_path, monkeypatch, capsys, to):
    monkeypatch.setitem(sys.modules, to, None)
    assert main([f"--workdir={sweep}", f"--to={to}"]) == 2
    assert f"error: {to} is not installed: pip install 'optdyn[{to}]'\n" == capsys.readouterr().err
    assert main([f"--workdir={tmp_path / 'none'}", f"--to={to}"]) == 2
    assert "no run in it" in capsys.readouterr().err
