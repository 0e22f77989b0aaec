"""What trackers are given, by stand-ins of their libraries that write down what they are told."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from optdyn.report.export import main
from tests.report.reports import run


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
