"""Several workdirs as two tidy tables."""

import json

import pytest

from analysis.tables import load


@pytest.fixture
def workdirs(tmp_path):
    """Two runs that differ in their model; a null loss, a torn line, one without a summary."""
    for name, hidden in (("a", [64]), ("b", [32, 32])):
        config = {"model": {"hidden": hidden}, "cluster": {"service": "constant"}, "seed": 3}
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
    assert "cluster.service" not in runs and "versions" not in runs
    assert "cluster.service" in load(*workdirs, keys=["cluster.service"])[0]


def test_one_row_a_log_point(workdirs):
    _, metrics = load(*workdirs)
    assert list(metrics["step"]) == [0, 5, 0, 5]
    assert metrics["train_loss"].dtype == float
    assert list(metrics["train_loss"].isna()) == [False, True, False, True]
