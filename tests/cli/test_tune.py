"""The command that tunes: what it writes, and that a killed one decides the same again."""

import json
import shutil
from itertools import pairwise

import pandas as pd
import pytest

from optdyn.cli.tune import result, tune
from optdyn.train.checkpoints import Checkpoints
from optdyn.train.workdir import WorkdirError
from optdyn.tune import bench

# Several epochs.
SMALL = {
    "cluster.nodes": 2,
    "method.groups": 1,
    "log_every": 20,
    "model.noise": 0.1,
    "tune.target": 0.014,
    "tune.probe_seconds": 0.1,
    "tune.probe_share": 0.5,
    "tune.epoch_seconds": 0.05,
    "tune.seconds": 1.5,
    "tune.momenta": (0.0, 0.9),
    "tune.seeds": 2,
    "tune.learning_rates": (0.1, 0.01),
}


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """Config, workdir and summary of a tuner that nothing disturbed."""
    chosen, workdir = config(SMALL), tmp_path_factory.mktemp("whole")
    return chosen, workdir, tune(chosen, workdir)


def lines(workdir):
    return [json.loads(line) for line in (workdir / "decisions.jsonl").read_text().splitlines()]


def test_every_attempt_and_decision_is_a_line(whole):
    _, workdir, summary = whole
    made = lines(workdir)
    trained = [line["epoch"] for line in made if line["what"] == "train"]
    # One that lowered no loss is there again.
    assert trained == sorted(trained) and set(trained) == set(range(max(trained) + 1))
    assert max(trained) > 1
    # What is trained is what was decided just before.
    for number, line in enumerate(made):
        if line["what"] == "train":
            keys = ("groups", "momentum", "learning_rate")
            assert [line[key] for key in keys] == [made[number - 1][key] for key in keys]
    assert {line["what"] for line in made} >= {"limits", "probe", "train", "chosen"}
    assert summary["status"] == "completed" and summary["versions"]["jax"]


def test_seconds_add_up(whole):
    _, workdir, summary = whole
    (row,) = pd.read_csv(workdir / "results.csv").to_dict("records")
    assert row == summary["tuned"]
    made = pd.DataFrame(lines(workdir)).dropna(subset="seconds").fillna({"groups": 0})
    made = made.fillna({"momentum": 0, "learning_rate": 0})  # what was measured is of no setting
    made["what"] = made["what"].replace("limits", "probe")
    run = ["seed", "epoch", "groups", "momentum", "learning_rate"]
    longest = made.pivot_table("seconds", run, "what", "max").fillna(0.0)
    trained, both = longest["train"].sum(), longest.max(axis="columns").sum()
    # Sums of tens of float64 numbers.
    assert row["train_seconds"] == pytest.approx(trained, rel=1e-9)
    assert row["probe_seconds"] == pytest.approx(both - trained, rel=1e-9)
    assert row["overhead"] == pytest.approx((both - trained) / both)
    assert row["seconds_to_target"] == row["train_seconds"] <= SMALL["tune.seconds"] * (1 + 1e-9)


def attempted(what, seconds, groups=2, **values):
    setting = {"groups": groups, "momentum": 0.5, "learning_rate": 0.1}
    line = {"what": what, "seed": 0, "epoch": 0, "updates": 7}
    return line | setting | {"seconds": seconds, "reached": False} | values


def test_what_is_not_reached_takes_for_ever():
    tried, train = attempted("probe", 1.0, groups=4), attempted("train", 4.0)
    row = result([tried, train])
    assert row["seconds_to_target"] == row["with_probes"] == float("inf")
    assert (row["overhead"], row["settings"]) == (0.2, "2/0.5/0.1")
    row = result([tried, train | {"reached": True}])
    assert (row["seconds_to_target"], row["with_probes"]) == (4.0, 5.0)


def test_a_probe_that_is_gone_on_with_counts_once():
    """As the beginning of a longer probe and of the epoch, but not from another point."""
    tried = [attempted("probe", seconds) for seconds in (1.0, 3.0)]
    row = result([*tried, attempted("train", 9.0)])
    assert (row["probe_seconds"], row["overhead"]) == (0.0, 0.0)
    row = result([*tried, attempted("train", 9.0, groups=4)])
    assert row["probe_seconds"] == 3.0
    row = result([*tried, attempted("train", 9.0, epoch=1)])
    assert row["probe_seconds"] == 3.0
    # The target may be in what was a probe.
    row = result([*tried, attempted("train", 2.0, reached=True)])
    assert (row["seconds_to_target"], row["with_probes"]) == (2.0, 3.0)


class Killed(BaseException):
    pass


def killed(after, function):
    """The function, whose call number `after` raises."""
    calls = iter(range(1000))

    def call(*arguments, **options):
        if next(calls) == after:
            raise Killed
        return function(*arguments, **options)

    return call


def assert_same(workdir, whole):
    for name in ("decisions.jsonl", "results.csv"):
        assert (workdir / name).read_bytes() == (whole / name).read_bytes()
    ours, other = (json.loads((f / "summary.json").read_text()) for f in (workdir, whole))
    assert {**ours, "starts": []} == {**other, "starts": []}


def tuned_though_killed(chosen, workdir, patched, owner, name, after, later=None):
    """Starts it until it ends by itself; how often it was killed, each time in call `after`.

    A torn line is left behind every time. `later`: the call of all starts but the first.
    """
    kills = 0
    while True:
        with patched.context() as patch:
            patch.setattr(owner, name, killed(after, getattr(owner, name)))
            try:
                tune(chosen, workdir)
                return kills
            except Killed:
                kills += 1
        with (workdir / "decisions.jsonl").open("a") as file:
            file.write('{"what": "pro')
        after = after if later is None else later


@pytest.fixture
def unended(whole, tmp_path):
    """Config, and a workdir of the finished tuner that lacks its summary."""
    chosen, finished, _ = whole
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    (tmp_path / "summary.json").unlink()
    return chosen, tmp_path


@pytest.mark.parametrize("what", ["attempt", "save"])
def test_killed_again_and_again_it_decides_the_same(whole, tmp_path, monkeypatch, what):
    chosen, finished, _ = whole
    # Of checkpoints the next one is let through.
    where = (bench, what, 3) if what == "attempt" else (Checkpoints, what, 0, 1)
    assert tuned_though_killed(chosen, tmp_path, monkeypatch, *where) >= 2
    assert_same(tmp_path, finished)
    assert tune(chosen, tmp_path)["tuned"]  # finished: read, not run


def test_the_authors_mode_decides_the_same_after_a_kill(config, tmp_path, monkeypatch):
    """Its three phases are in the journal: probes, ones 5 times as long, equal epochs."""
    chosen = config({**SMALL, "tune.mode": "omnivore"})
    tune(chosen, tmp_path / "whole")
    made = lines(tmp_path / "whole")
    first = [line for line in made if line["what"] == "probe" and line["epoch"] == 0]
    assert {round(line["seconds"] / 0.1, 6) for line in first} == {1.0, 5.0}
    assert {line["what"] for line in made} >= {"probe", "train", "cold start"}
    epochs = [line["seconds"] for line in made if line["what"] == "train"]
    assert epochs[:-1] == pytest.approx([0.05] * (len(epochs) - 1), rel=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(bench, "attempt", killed(len(made) // 2, bench.attempt))
        with pytest.raises(Killed):
            tune(chosen, tmp_path / "killed")
    tune(chosen, tmp_path / "killed")
    assert_same(tmp_path / "killed", tmp_path / "whole")


def test_an_epoch_that_does_not_lower_the_loss_leaves_no_checkpoint(config, tmp_path, monkeypatch):
    changed = {"model.noise": 5.0, "tune.epoch_seconds": 0.2, "tune.probe_share": 0.1}
    chosen = config({**SMALL, **changed})
    tune(chosen, tmp_path / "whole")
    epochs = [line for line in lines(tmp_path / "whole") if line["what"] == "train"]
    least, failed = float("inf"), 0
    for line, after in pairwise(epochs):
        loss = float("inf") if line["loss"] is None else line["loss"]
        lower = loss < least
        assert ("checkpoint" in line) == lower
        assert after["epoch"] == line["epoch"] + lower
        assert lower or _size(after) < _size(line)
        least, failed = min(least, loss), failed + (not lower)
    assert failed
    tuned_though_killed(chosen, tmp_path / "killed", monkeypatch, bench, "attempt", 4)
    assert_same(tmp_path / "killed", tmp_path / "whole")


def _size(line):
    return line["groups"], line["learning_rate"]


def test_resuming_runs_nothing_twice(whole, unended, monkeypatch):
    chosen, workdir = unended
    monkeypatch.setattr(bench, "attempt", killed(0, bench.attempt))
    tune(chosen, workdir)
    assert_same(workdir, whole[1])


def test_one_worker(config, tmp_path):
    summary = tune(config({**SMALL, "cluster.nodes": 1}), tmp_path)
    assert all(line.get("groups", 1) == 1 for line in lines(tmp_path))
    assert summary["tuned"]["seconds_to_target"] is not None


def test_another_configs_workdir_is_refused(whole, config):
    with pytest.raises(WorkdirError, match=r"differs in tune\.target"):
        tune(config({**SMALL, "tune.target": 1.0}), whole[1])


@pytest.mark.parametrize("what", ["line 4 is not the decision made", "lines of epochs that were"])
def test_lines_that_are_not_those_that_were_decided_are_refused(unended, what):
    chosen, workdir = unended
    made = lines(workdir)
    if what.startswith("line 4"):
        made[3]["momentum"] = 0.77
    else:
        first = next(n for n, line in enumerate(made) if "checkpoint" in line)
        del made[first + 1 :]
    (workdir / "decisions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))
    with pytest.raises(WorkdirError, match=rf"decisions\.jsonl: {what}"):
        tune(chosen, workdir)
