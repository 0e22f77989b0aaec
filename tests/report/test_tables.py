"""Several workdirs as two tidy tables."""

import json
from pathlib import Path

import pytest

from optdyn.report.tables import TableError, load, natural, points, tidy


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
