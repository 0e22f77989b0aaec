"""Sweeps: every point as it would be alone, nothing twice, whatever ends them."""

import json
import os
import shutil
import signal
import threading

import pandas as pd
import pytest

from optdyn.base import progress
from optdyn.base.files import write_json
from optdyn.cli import sweep
from optdyn.experiment import Config
from optdyn.report import tables
from optdyn.train import batched_runs, program
from optdyn.train.checkpoints import Checkpoints
from optdyn.train.grid import Grid
from optdyn.train.workdir import Metrics, write_checksums
from tests.cli.sweeping import alone, assert_same, config_of, grid_file, summaries


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The grid's file, and its points each alone: their folders and summaries."""
    folder = tmp_path_factory.mktemp("alone")
    path = grid_file(folder)
    return path, folder, alone(config_of(path), folder)


@pytest.mark.parametrize("threads", [0, 5])
def test_every_point_is_as_it_is_alone(reporting, whole, tmp_path, rows, threads):
    arguments = f"--config={whole[0]}", f"--workdir={tmp_path}", f"--threads={threads}"
    code, out, err = reporting(*arguments)
    *best, path = out.splitlines()
    assert code == 0 and path == str(tmp_path / "report.html")
    assert best[0].startswith("best points") and 2 <= len(best) <= 6
    assert "<p>Is it noisy?</p>" in (tmp_path / "report.html").read_text()
    assert "update 360/360  6/6 points, 2 diverged" in err
    assert_same(rows, tmp_path, whole)
    table = pd.read_csv(tmp_path / "results.csv").set_index("point")
    assert set(table.index) == set(whole[2])
    assert list(table.columns[:4]) == [
        *("method.groups", "optimizer.momentum", "seed", "optimizer.learning_rate")
    ]
    for name, summary in whole[2].items():
        assert table.loc[name, "status"] == summary["status"]
        assert table.loc[name, "train_loss"] == pytest.approx(summary["train_loss"])
    assert not (tmp_path / "together").exists()


def test_each_option_of_points_has_a_column():
    points = [{"model.options": {"width": width, "rate": 0.1}, "seed": 0} for width in (4, 16)]
    keys = sweep._swept_keys(Grid(Config(), points))
    assert keys == ("model.options.width", "model.options.rate", "seed")


def test_results_are_there_while_others_run(sweeping, whole, tmp_path, monkeypatch):
    """Whenever it is written it is whole, of what has ended; the last is the final one."""
    seen, path = [], tmp_path / "results.csv"
    monkeypatch.setattr(tables, "WRITING_SHARE", float("inf"))  # never rests
    follow = tables.results_writer

    def following(*arguments):
        write = follow(*arguments)

        def then(name):
            write(name)
            seen.append(pd.read_csv(path))
            assert name in set(seen[-1]["point"])

        return then

    monkeypatch.setattr(tables, "results_writer", following)
    assert sweeping(f"--config={whole[0]}", f"--workdir={tmp_path}", "--threads=1")[0] == 0
    assert [len(table) for table in seen] == list(range(1, len(whole[2]) + 1))
    pd.testing.assert_frame_equal(seen[-1], pd.read_csv(path))


def test_what_is_finished_is_left_and_a_grown_grid_runs_what_is_new(
    sweeping, whole, tmp_path, files
):
    arguments = f"--config={whole[0]}", f"--workdir={tmp_path}"
    assert sweeping(*arguments)[0] == 0
    before = files(tmp_path / "points")
    code, _, err = sweeping(*arguments)
    assert code == 0 and err == ""
    assert files(tmp_path / "points") == before
    assert sweeping(f"--config={whole[0]}:3,60", f"--workdir={tmp_path}")[0] == 0
    after = files(tmp_path / "points")
    assert {name: after[name] for name in before} == before
    assert len(summaries(tmp_path)) == 9 == len(pd.read_csv(tmp_path / "results.csv"))


def test_with_more_steps_points_go_on(sweeping, whole, tmp_path, rows):
    arguments = f"--config={whole[0]}", f"--workdir={tmp_path}"
    assert sweeping(*arguments, "--config.base.steps=40")[0] == 0
    code, out, _ = sweeping(*arguments, "--dry_run")
    steps = next(iter(whole[2].values()))["steps"]
    left = sum(steps - one["step"] for one in summaries(tmp_path).values())
    assert code == 0 and ": 6 to go on" in out and f"in all: {left:,} updates to run" in out
    assert sweeping(*arguments)[0] == 0
    found, expected = summaries(tmp_path), whole[2]
    for name, one in found.items():
        of_starts = {"wall_seconds": 0, "starts": 0, "continued": 0}
        assert {**one, **of_starts} == {**expected[name], **of_starts}
        assert rows(tmp_path / "points" / name) == rows(whole[1] / name)
        going_on = [] if one["status"] == "diverged" else [{"at": 40, "of": 40, "steps": 60}]
        assert one.get("continued", []) == going_on
    assert set(pd.read_csv(tmp_path / "results.csv")["steps"]) == {60}
    code, _, err = sweeping(*arguments, "--config.base.steps=20")
    assert code == 2 and err.count("\n") == 1
    assert "has done 60 steps: config.steps = 20 must be as many or more" in err


OWN = """
import optdyn as od
from optdyn.train.grid import Grid

def get_config(steps="20"):
    base = od.config("quickstart").with_(
        model=od.Quadratic(),
        loss="my_loss.py:f",
        steps=int(steps),
        batch_size=4,
        log_every=10,
        checkpoint_every=10,
    )
    return Grid(base, [{"seed": seed} for seed in range(3)])
"""


@pytest.mark.parametrize("together", ["threads", "vmap"])
def test_a_sweep_is_of_one_code_whoever_edits_it_meanwhile(
    sweeping, tmp_path, monkeypatch, files, together
):
    """An edit counts from the next command on, which then has to be told."""
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "my_loss.py"
    loss = "def f(outputs, batch): return (outputs**2).sum(-1) + "
    mine.write_text(f"{loss}0")
    path, ended = grid_file(tmp_path, OWN), sweep.SweepState.end

    def edited(going, entry, summary):
        mine.write_text(f"{loss}1000")
        ended(going, entry, summary)

    monkeypatch.setattr(sweep.SweepState, "end", edited)
    made = program._make.cache_info().misses
    arguments = f"--workdir={tmp_path / 'w'}", "--threads=1", f"--together={together}"
    assert sweeping(f"--config={path}", *arguments)[0] == 0
    found = [one["train_loss"] for one in summaries(tmp_path / "w").values()]
    assert len(found) == 3 and max(found) < 1000
    assert program._make.cache_info().misses == made + 1
    configs = [json.loads(file.read_text()) for file in (tmp_path / "w").rglob("config.json")]
    assert len({config["code"] for config in configs}) == 1
    before = files(tmp_path / "w" / "points")
    assert sweeping(f"--config={path}", *arguments)[0] == 0  # there is nothing left to do
    code, _, err = sweeping(f"--config={path}:40", *arguments)
    assert code == 2 and err.count("\n") == 1 and "another my_loss.py" in err
    assert files(tmp_path / "w" / "points") == before
    assert sweeping(f"--config={path}:40", *arguments, "--config.base.code=any")[0] == 0
    assert min(one["train_loss"] for one in summaries(tmp_path / "w").values()) > 1000


def test_as_lanes_floats_differ_by_rounding_and_the_choice_is_kept(
    sweeping, whole, tmp_path, rows, monkeypatch
):
    arguments = f"--config={whole[0]}", f"--workdir={tmp_path}", "--together=vmap"
    code, _, err = sweeping(*arguments)
    assert code == 0 and "4 lanes of one program" in err and "2 lanes of one program" in err
    found = summaries(tmp_path)
    assert {name: one["status"] for name, one in found.items()} == {
        name: one["status"] for name, one in whole[2].items()
    }
    for name, one in found.items():
        assert one["step"] == whole[2][name]["step"]
        if one["status"] == "completed":
            # 60 updates that round 1e-7 of a parameter each, of a stable run.
            assert one["train_loss"] == pytest.approx(whole[2][name]["train_loss"], rel=1e-4)
        assert len(rows(tmp_path / "points" / name)) == len(rows(whole[1] / name))
    # What is left of a group goes on in as many lanes, to the same floats.
    kept = sorted(path.read_bytes() for path in (tmp_path / "together").iterdir())
    assert len(kept) == 2
    name = next(name for name, one in found.items() if one["status"] == "completed")
    shutil.rmtree(tmp_path / "points" / name)
    monkeypatch.setattr(sweep, "_choose", None)
    assert sweeping(*arguments)[0] == 0
    assert summaries(tmp_path)[name]["parameters_crc32"] == found[name]["parameters_crc32"]
    assert sorted(path.read_bytes() for path in (tmp_path / "together").iterdir()) == kept


@pytest.mark.parametrize("faster", ["threads", "vmap"])
def test_the_faster_is_taken_and_said(sweeping, whole, tmp_path, monkeypatch, faster, rows):
    rates = {"threads": 100.0, "vmap": 100.0, "difference": 1.5e-7, "updates": 16} | {faster: 250.0}
    monkeypatch.setattr(batched_runs, "measure", lambda *_: batched_runs.Rates(**rates))
    arguments = f"--config={whole[0]}", f"--workdir={tmp_path}", "--together=auto"
    code, _, err = sweeping(*arguments)
    assert code == 0
    assert f"{rates['threads']:.0f} updates/s in " in err and f" {rates['vmap']:.0f} as " in err
    assert "differ by 1.5e-07 of the largest after 16 updates" in err
    for path in (tmp_path / "together").iterdir():
        choice = json.loads(path.read_text())
        assert choice["together"] == faster and choice["measured"] == rates
    if faster == "threads":
        assert_same(rows, tmp_path, whole)


BAD_GRIDS = {
    "value": 'Grid(base, product({"seed": [0, 1], "steps": [60, 0]}))',
    "empty": "Grid(base, [])",
    "list": "Grid(base, 3)",
    "key": 'Grid(base, [{"step": 60}])',
    "inner": 'Grid(base, [{"base.steps": 60}])',
    "no_grid": "base",
}


@pytest.mark.parametrize(
    "given, expected",
    [
        (["--config={tmp}/value.py"], "point seed=0,steps=0: config.steps = 0: must be at least 1"),
        (["--config={tmp}/no_grid.py"], "a grid is a Grid(base, points) of optdyn.train.grid"),
        (["--config={tmp}/empty.py"], "grid: points: must be one at least"),
        (["--config={tmp}/list.py"], "grid: points = 3: must be a list of dicts"),
        (["--config={tmp}/key.py"], "point step=60: config has no key 'step'; did you mean steps"),
        (["--config={tmp}/inner.py"], "config has no key 'base.steps'; that of a run has 'steps'"),
        (["--shard=2/2"], "--shard=2/2: must be i/n, number i from 0 to n - 1 of n shards"),
        (["--shard=1"], "--shard=1: must be i/n"),
        (["--shard=-1/3"], "--shard=-1/3: must be i/n"),
        (["--shard=0/0"], "--shard=0/0: must be i/n"),
        (["--together=nosuch"], "--together=nosuch: value should be one of <threads|vmap|auto>"),
        (["--threads=-1"], "threads"),
        (["--target=nan"], "--target=nan: must be a finite"),
        (["--config.base.steps=0"], "config.steps = 0: must be at least 1"),
        (["--config.steps=5"], "config has no key 'steps'; that of a grid has 'base.steps'"),
        (["--config.nosuch=5"], "config has no key 'nosuch'"),
        (["--config.base.step=5"], "config has no key 'step'; did you mean steps"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(sweeping, whole, tmp_path, given, expected):
    lines = "import optdyn as od\nfrom optdyn.train.grid import Grid, product\n"
    for name, made in BAD_GRIDS.items():
        body = f"def get_config():\n    base = od.config('quickstart')\n    return {made}\n"
        (tmp_path / f"{name}.py").write_text(lines + body)
    there = sorted(tmp_path.iterdir())
    given = [argument.format(tmp=tmp_path) for argument in given]
    if not any(argument.startswith("--config=") for argument in given):
        given.insert(0, f"--config={whole[0]}")
    code, out, err = sweeping(f"--workdir={tmp_path / 'new'}", *given)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and expected in err
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == there


def test_a_point_of_another_config_is_refused_before_any_runs(sweeping, whole, tmp_path, files):
    name = list(whole[2])[3]
    shutil.copytree(whole[1] / name, tmp_path / "points" / name)
    before = files(tmp_path)
    code, _, err = sweeping(
        f"--config={whole[0]}", f"--workdir={tmp_path}", "--config.base.batch_size=8"
    )
    assert code == 2 and err.count("\n") == 1 and "its config differs in batch_size" in err
    assert files(tmp_path) == before


def test_a_dry_run_says_what_would_run_and_touches_nothing(sweeping, whole, tmp_path, files):
    code, out, err = sweeping(f"--config={whole[0]}", f"--workdir={tmp_path / 'new'}", "--dry_run")
    assert (code, err) == (0, "") and list(tmp_path.iterdir()) == []
    lines = out.splitlines()
    assert lines[0] == "6 points, 2 compilations: 6 new"
    assert lines[1] == "compilation 1: 2 points, 120 updates to run, on 480 examples"
    assert lines[4] == "compilation 2: 4 points, 240 updates to run, on 960 examples"
    assert lines[-1] == "in all: 360 updates to run, on 1,440 examples"
    assert {line.split()[0] for line in lines if line.startswith("  ")} == set(whole[2])
    # With some points there: what they cost tells what the others will.
    for name in list(whole[2])[2:4]:
        point = shutil.copytree(whole[1] / name, tmp_path / "points" / name)
        summary = json.loads((point / "summary.json").read_text()) | {"wall_seconds": 60.0}
        write_json(point / "summary.json", summary)
        write_checksums(point, summary)
    before = files(tmp_path)
    arguments = f"--config={whole[0]}", f"--workdir={tmp_path}", "--dry_run", "--threads=2"
    _, out, _ = sweeping(*arguments)
    assert files(tmp_path) == before
    lines = out.splitlines()
    assert lines[0] == "6 points, 2 compilations: 4 new, 2 completed"
    # A second an update, two at a time.
    assert lines[4].endswith("120 updates to run, on 480 examples, about 60 s")
    assert "about" not in lines[1] and "about" not in lines[-1]  # of these no point has finished


def at_log_point(patch, number, act):
    """Has `act` called once: at that log point, of whichever runs, or the next off a checkpoint."""
    append, seen, once = Metrics.append, [], threading.Semaphore(1)

    def counted(self, row):
        append(self, row)
        seen.append(row["step"])
        is_due = len(seen) >= number and row["step"] % 20  # config.checkpoint_every
        if is_due and once.acquire(blocking=False):
            act()

    patch.setattr(Metrics, "append", counted)


@pytest.mark.parametrize("way", ["threads", "vmap"])
def test_a_signal_stops_all_that_run_at_a_checkpoint(
    sweeping, whole, tmp_path, rows, way, monkeypatch
):
    with monkeypatch.context() as patch:
        at_log_point(patch, 12, lambda: signal.raise_signal(signal.SIGTERM))
        arguments = f"--config={whole[0]}", f"--workdir={tmp_path}", f"--together={way}"
        code, out, err = sweeping(*arguments)
    assert (code, out) == (128 + signal.SIGTERM, "") and "stopping" in err
    left = summaries(tmp_path)
    stopped = {name: one["step"] for name, one in left.items() if one["status"] == "interrupted"}
    assert stopped and all(left[name]["signal"] == signal.SIGTERM for name in stopped)
    for name, step in stopped.items():
        assert (tmp_path / "points" / name / "checkpoints" / str(step)).exists()
    if (tmp_path / "results.csv").exists():  # of the points that had ended
        ended = pd.read_csv(tmp_path / "results.csv")["point"]
        assert set(ended) <= set(summaries(tmp_path))
    assert sweeping(*arguments)[0] == 0
    if way == "threads":
        assert_same(rows, tmp_path, whole, stopped)
    else:
        assert {one["status"] for one in summaries(tmp_path).values()} == {"completed", "diverged"}


@pytest.mark.parametrize("way", ["threads", "vmap"])
def test_asked_to_all_that_run_save_and_go_on(sweeping, whole, tmp_path, rows, way, monkeypatch):
    save, saved, noticed = Checkpoints.save, {}, threading.Event()

    def ask():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert noticed.wait(60)  # by the main thread

    def noted(self, step, state):
        save(self, step, state)
        if step % 20:  # config.checkpoint_every
            saved[self.path.parent.name] = step

    at_log_point(monkeypatch, 12, ask)
    monkeypatch.setattr(Checkpoints, "save", noted)
    monkeypatch.setattr(progress, "say", lambda text: noticed.set())
    arguments = f"--config={whole[0]}", f"--workdir={tmp_path}", f"--together={way}"
    assert sweeping(*arguments)[0] == 0
    assert saved and saved.keys() < summaries(tmp_path).keys()  # not those that began later
    if way == "threads":
        assert_same(rows, tmp_path, whole, saved)


def test_a_point_that_cannot_go_on_stops_the_others_cleanly(sweeping, whole, tmp_path, rows):
    shutil.copytree(whole[1], tmp_path / "points")
    (tmp_path / "points" / "grid.py").unlink()
    names = list(whole[2])
    for name in names[1:4]:
        (tmp_path / "points" / name / "summary.json").unlink()
        shutil.rmtree(tmp_path / "points" / name / "checkpoints" / "60")
    broken = tmp_path / "points" / names[2] / "checkpoints" / "40"
    for array in broken.rglob("d/*"):
        array.write_bytes(array.read_bytes()[::-1])
    arguments = f"--config={whole[0]}", f"--workdir={tmp_path}"
    code, _, err = sweeping(*arguments)
    assert code == 2 and f"checkpoint {broken} is corrupt" in err.splitlines()[-1]
    shutil.rmtree(broken)
    assert sweeping(*arguments)[0] == 0
    for name, one in summaries(tmp_path).items():
        assert one.get("parameters_crc32") == whole[2][name].get("parameters_crc32")
        assert rows(tmp_path / "points" / name) == rows(whole[1] / name)


REPLICAS = """
import optdyn as od
from optdyn.train.grid import Grid, product

def get_config():
    base = od.config("quickstart").with_(
        {"cluster.nodes": 2, "data.replacement": True},
        model=od.Quadratic(dimension=4),
        method=od.Asynchronous(groups=2),
        optimizer=od.SGD(learning_rate=0.5),
        steps=8,
        batch_size=1,
    )
    return Grid(base, product({"replicas.count": [0, 64, 65]}))
"""


def test_recordings_of_replicas_are_fitted_once(sweeping, tmp_path, files):
    path, workdir = grid_file(tmp_path, REPLICAS), tmp_path / "sweep"
    assert sweeping(f"--config={path}", f"--workdir={workdir}")[0] == 0
    fits = sorted(file.parent.name for file in workdir.glob("points/*/implicit_momentum.json"))
    assert fits == ["replicas.count=64", "replicas.count=65"]
    before = files(workdir / "points")
    assert sweeping(f"--config={path}", f"--workdir={workdir}")[0] == 0
    assert files(workdir / "points") == before
    assert len(pd.read_csv(workdir / "results.csv")) == 3
