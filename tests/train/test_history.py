"""What code a run was made by and when, and what TensorBoard's page of hyperparameters shows."""

import json
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from optdyn.train import history
from optdyn.train.trainer import train
from optdyn.train.workdir import tag
from tests.conftest import Event as Recorded
from tests.conftest import _records


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A small repository in place of the project's: `checkout(*arguments)` is git in it."""
    root = tmp_path / "checkout"
    root.mkdir()

    def git(*arguments):
        who = ["-c", "user.name=n", "-c", "user.email=e"]
        done = subprocess.run(["git", "-C", root, *who, *arguments], capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (root / "code.py").write_text("x = 1\n")
    git("add", "-A")
    git("commit", "-qm", "first")
    monkeypatch.setattr(history, "ROOT", root)
    monkeypatch.setattr(history, "code", history.code.__wrapped__)
    return git


def test_a_summary_says_what_made_it(config, tmp_path, checkout):
    root, workdir = history.ROOT, tmp_path / "run"
    train(config({"steps": 10}), workdir)
    assert not list(workdir.glob("*.diff"))
    (root / "code.py").write_text("x = 2\n")
    train(config({"steps": 20}), workdir)
    (root / "code.py").write_text("x = 3\n")
    first, second, third = train(config({"steps": 30}), workdir)["starts"]
    for entry in (first, second, third):
        assert entry["commit"] == checkout("rev-parse", "HEAD")
        assert entry["host"] == socket.gethostname() and sys.orig_argv[0] in entry["command"]
        begun = datetime.fromisoformat(entry["started"])
        assert timedelta() <= datetime.now(UTC) - begun < timedelta(minutes=30)
    assert [entry["dirty"] for entry in (first, second, third)] == [False, True, True]
    # Neither difference is lost.
    assert "+x = 2" in (workdir / second["diff"]).read_text() and second["diff"] == "code.diff"
    assert "+x = 3" in (workdir / third["diff"]).read_text()


def test_a_large_difference_is_not_kept_and_no_checkout_is_none(config, tmp_path, checkout):
    root = history.ROOT
    (root / "code.py").write_text("x = 1\n" * 20_000)
    (entry,) = train(config({"steps": 10}), tmp_path / "large")["starts"]
    assert entry["dirty"] and "diff" not in entry
    (root / "below").mkdir()
    history.ROOT = root / "below"  # installed inside another's repository
    (entry,) = train(config({"steps": 10}), tmp_path / "other")["starts"]
    assert "commit" not in entry and entry["command"]


def test_hyperparameters_are_shown_once_in_the_one_event_file(config, tmp_path):
    for steps in (20, 60):
        train(config({"steps": steps}), tmp_path)
    (path,) = tmp_path.glob("events.out.tfevents.*")
    events = [Recorded.FromString(record) for record in _records(path.read_bytes())]
    shown = {
        value.tag: HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for event in events
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    }
    tags = [value.tag for event in events for value in event.summary.value]
    assert len(shown) == sum("hparams" in one for one in tags) == 3
    values = shown["_hparams_/session_start_info"].session_start_info.hparams
    assert values["method.groups"].number_value == 4
    assert values["optimizer.learning_rate"].number_value == pytest.approx(0.1)
    metrics = {info.name.tag for info in shown["_hparams_/experiment"].experiment.metric_infos}
    assert {"loss/train", "loss/test", "time/simulated_seconds"} <= metrics <= set(tags)


def test_every_logged_figure_has_a_group_and_a_name_of_its_own(config, tmp_path):
    train(config({"probes.sharpness": True, "probes.noise_scale": True, "steps": 10}), tmp_path)
    names = {n for line in (tmp_path / "metrics.jsonl").open() for n in json.loads(line)}
    tags = {tag(name) for name in names}
    assert len(tags) == len(names) and all(one.count("/") == 1 for one in tags)


def test_the_root_is_that_of_the_checkout():
    assert (history.ROOT / "pyproject.toml").exists()
