"""What is shipped is found again, by a later version too, and nothing of it is run again."""

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.studies import _problems as problems
from optdyn.base.files import WorkdirError
from optdyn.evidence import raw, study
from optdyn.evidence.study import Job, Study


def jobs():
    config = problems.quadratic().with_({"optimizer.learning_rate": 0.1}, steps=30)
    late = config.with_({"optimizer.chain": ("staleness_rate",), "strategy.groups": 2})
    late = late.with_({"optimizer.chain_options.law": "power"})
    return [Job(config, 1e-9), Job(config, most=20), Job(late, clock="seconds")]


def refuse(*_):
    raise AssertionError("it is known")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    with Study(folder, "small", (5,), (0,), processes=1) as there:
        curves = there.trials(jobs())
        there.remember("a", lambda: {"value": [math.inf, 2]})
    assert raw.ship(folder, folder / "raw.parquet") == (3, 1, 0)
    return folder / "raw.parquet", curves


def test_curves_and_measurements_come_back_to_the_last_digit(shipped, tmp_path, monkeypatch):
    file, curves = shipped
    monkeypatch.setattr(Study, "_executor", refuse)
    for count in ((3, 1, 0), (3, 1, 0)):  # a second time adds nothing
        assert raw.unpack(file, tmp_path) == count
        assert len((tmp_path / study.TRIALS).read_text().splitlines()) == 3
    with Study(tmp_path, "small", (5,), (0,)) as here:
        assert here.trials(jobs()) == curves
        assert here.remember("a", refuse) == {"value": [math.inf, 2]}


def test_a_version_with_other_keys_finds_them(shipped, tmp_path, monkeypatch):
    """Keys of trials change with every key that configs get or lose; the file is as it was."""
    file, curves = shipped
    table = pq.read_table(file)
    held = json.loads(table.schema.metadata[raw.DEFAULTS])
    assert held["cluster"].pop("overlap") == 0.0  # a key that there was not yet
    held["cluster"]["nosuch"] = held["nosuch"] = 1.0  # and keys that there are no more
    older = table.replace_schema_metadata({raw.DEFAULTS: json.dumps(held)})
    pq.write_table(older, tmp_path / "older.parquet")
    raw.unpack(tmp_path / "older.parquet", tmp_path)
    monkeypatch.setattr(Study, "_executor", refuse)
    with Study(tmp_path, "small", (5,), (0,)) as here:
        assert here.trials(jobs()) == curves


def test_the_longer_of_two_trials_stays(shipped, tmp_path):
    file, curves = shipped
    job = jobs()[1]
    longer = curves[1]._replace(status="diverged")
    with Study(tmp_path, "small", (5,), (0,)):
        study.Lines(tmp_path / study.TRIALS).put(study.of_job(job), study.line_of(job, longer))
    raw.unpack(file, tmp_path)
    assert study.Lines(tmp_path / study.TRIALS).at(study.of_job(job))["status"] == "diverged"


def test_a_trial_of_a_key_that_is_no_more_is_left_out_and_counted(shipped, tmp_path):
    file, _ = shipped
    raw.unpack(file, tmp_path)
    trials = study.Lines(tmp_path / study.TRIALS)
    trials.put("gone", {**trials.every()[0], "config": {"tune.gone": 1}})
    assert raw.ship(tmp_path, tmp_path / "again.parquet") == (4, 1, 0)
    count = raw.unpack(tmp_path / "again.parquet", tmp_path / "new")
    assert count == (3, 1, 1) and "1 trials are left out" in str(count)


@pytest.mark.parametrize("text", [b"no parquet", b""])
def test_other_files_are_refused(tmp_path, text):
    file = tmp_path / "raw.parquet"
    file.write_bytes(text)
    with pytest.raises(WorkdirError, match="no raw results"):
        raw.unpack(file, tmp_path)
    pq.write_table(pa.table({"a": [1]}), file)
    with pytest.raises(WorkdirError, match="no raw results"):
        raw.unpack(file, tmp_path)
    with pytest.raises(WorkdirError, match="no such file"):
        raw.unpack(tmp_path / "none", tmp_path)
    (tmp_path / study.TRIALS).touch()
    with pytest.raises(WorkdirError, match="no such folder"):
        raw.ship(tmp_path, tmp_path / "none" / "raw.parquet")
    with pytest.raises(WorkdirError, match="no trials there"):
        raw.ship(tmp_path / "none", file)
