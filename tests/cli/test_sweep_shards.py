"""Shards of a sweep: each point in one of them, and as jobs of a cluster."""

import sys
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.cli import points, submit, sweep
from optdyn.cli.points import plan
from optdyn.experiment import Config
from optdyn.train import grid as grids
from tests.cli.sweeping import alone, command, config_of, grid_file, summaries


@given(count=st.integers(1, 40), shards=st.integers(1, 50))
@settings(max_examples=30)
def test_every_point_is_in_one_shard(count, shards, tmp_path_factory):
    config = grids.Grid(Config(), grids.product({"seed": range(count)}))
    folder, base = tmp_path_factory.getbasetemp() / "none", config.base
    with pytest.MonkeyPatch.context() as patch:
        # What a point is does not enter.
        patch.setattr(points, "resolve", lambda config, name, point: base)
        parts = [plan(config, folder, f"{i}/{shards}") for i in range(shards)]
    names = sorted(entry.name for part in parts for entry in part)
    assert names == sorted(name for name, _ in grids.named(config))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert not folder.exists()


def test_points_of_one_compilation_follow_one_another(tmp_path):
    axes = {"seed": [0, 1], "model.hidden": [(3,), (4,)], "optimizer.learning_rate": [0.1, 0.2]}
    entries = plan(grids.Grid(Config(), grids.product(axes)), tmp_path)
    groups = points.compilations(entries)
    assert [len(group) for group in groups] == [4, 4]
    for group, width in zip(groups, (3, 4), strict=True):
        assert all(f"hidden=_{width},_" in entry.name for entry in group)


def test_shards_in_one_folder_make_the_sweep(unreported, tmp_path, capsys, monkeypatch, rows):
    path, workdir = grid_file(tmp_path), tmp_path / "sweep"
    expected = alone(config_of(path), tmp_path / "alone")
    for i, count in enumerate((2, 4, 6)):
        arguments = f"--config={path}", f"--workdir={workdir}", f"--shard={i}/3"
        assert command(arguments, capsys, monkeypatch)[0] == 0
        table = pd.read_csv(workdir / "results.csv")  # of all that are there
        assert len(table) == count and set(table["point"]) == set(summaries(workdir))
    for name, summary in summaries(workdir).items():
        assert summary.get("parameters_crc32") == expected[name].get("parameters_crc32")
        assert rows(workdir / "points" / name) == rows(tmp_path / "alone" / name)


MADE = []  # executors


class Executor:
    """In place of submitit's: runs jobs when they are asked what became of them."""

    def __init__(self, folder, cluster):
        self.folder, self.cluster, self.parameters, self.jobs = folder, cluster, {}, []
        MADE.append(self)

    def update_parameters(self, **parameters):
        if "nosuch" in parameters:
            raise NameError("no parameter nosuch")
        self.parameters |= parameters

    def submit(self, call):
        self.jobs.append(call)
        job = SimpleNamespace(job_id=str(len(self.jobs)), paths=SimpleNamespace(stderr="log"))
        job.exception = partial(outcome, call)
        return job


def outcome(call):
    try:
        call()
    except RuntimeError as error:
        return error


@pytest.fixture
def submitting(unreported, capsys, monkeypatch):
    """`submitting(*arguments)`: (exit code, stdout, stderr) of the command, and its executor."""
    MADE.clear()
    monkeypatch.setattr(submit.importlib.util, "find_spec", lambda name: True)
    fake = SimpleNamespace(AutoExecutor=Executor)
    monkeypatch.setitem(sys.modules, "submitit", fake)

    def submitting(*arguments):
        monkeypatch.setattr(sys, "argv", ["launch.submit", *map(str, arguments)])
        try:
            given, rest = submit.arguments()
        except SystemExit as exited:
            return exited.code, "", capsys.readouterr().err, None
        main = partial(submit.main, given, rest)
        code, out, err = command(rest, capsys, monkeypatch, main)
        return code, out, err, MADE[-1] if MADE else None

    return submitting


def test_jobs_are_the_shards_with_all_other_flags(submitting, tmp_path):
    path, workdir = grid_file(tmp_path), tmp_path / "sweep"
    flags = f"--config={path}", f"--workdir={workdir}", "--config.base.batch_size=8"
    code, out, _, executor = submitting(
        *flags, "--shards=3", "--resources=slurm_partition=gpu,timeout_min=90", "--together=auto"
    )
    assert code == 0 and out == "6 points in 3 jobs: 1, 2, 3\n"
    assert executor.cluster == "slurm" and executor.folder == workdir / "jobs"
    assert executor.parameters == {"name": "optdyn", "slurm_partition": "gpu", "timeout_min": 90}
    assert [job.command for job in executor.jobs] == [
        [sys.executable, "-m", "optdyn.cli.sweep", *flags, "--together=auto", f"--shard={i}/3"]
        for i in range(3)
    ]


def test_local_jobs_are_waited_for(submitting, tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(submit.Shard, "__call__", lambda self: done.append(self.command[-1]))
    monkeypatch.setattr(sweep, "write", lambda config, workdir: done.append("tables"))
    arguments = f"--config={grid_file(tmp_path)}", f"--workdir={tmp_path}", "--cluster=local"
    code, _, err, _ = submitting(*arguments, "--shards", "2")
    assert (code, err, done) == (0, "", ["--shard=0/2", "--shard=1/2", "tables"])


def test_a_job_that_fails_is_told(submitting, tmp_path, monkeypatch):
    monkeypatch.setattr(submit.sys, "executable", "false")
    arguments = f"--config={grid_file(tmp_path)}", f"--workdir={tmp_path}", "--cluster=local"
    code, _, err, _ = submitting(*arguments, "--shards=2")
    assert code == 1 and err.splitlines()[0] == "error: job 1 failed, see log"


@pytest.mark.parametrize(
    "given, expected",
    [
        ([], "the following arguments are required: --shards"),
        (["--shards=0"], "--shards=0: must be from 1 to 6, the grid's points"),
        (["--shards=7"], "--shards=7: must be from 1 to 6, the grid's points"),
        (["--shards=few"], "argument --shards: invalid int value: 'few'"),
        (["--shards=2", "--cluster=nosuch"], "argument --cluster: invalid choice: 'nosuch'"),
        (["--shards=2", "--resources=nosuch=1"], "submitit: no parameter nosuch"),
        (["--shards=2", "--resources=90"], "--resources=90: must be NAME=VALUE,NAME=VALUE,..."),
        (["--shards=2", "--nosuch=1"], "Unknown command line flag 'nosuch'"),
        (["--shards=2", "--config.base.steps=0"], "config.steps = 0: must be at least 1"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(submitting, tmp_path, given, expected):
    path = grid_file(tmp_path)
    arguments = f"--config={path}", f"--workdir={tmp_path / 'new'}", *given
    code, out, err, _ = submitting(*arguments)
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    assert expected in err and not (tmp_path / "new").exists()


def test_without_submitit_one_line_says_how_to_get_it(submitting, tmp_path, monkeypatch):
    monkeypatch.setattr(submit.importlib.util, "find_spec", lambda name: None)
    arguments = f"--config={grid_file(tmp_path)}", f"--workdir={tmp_path / 'new'}", "--shards=2"
    code, _, err, _ = submitting(*arguments)
    assert code == 2 and err.count("\n") == 1 and "pip install submitit" in err
    assert not (tmp_path / "new").exists()


def test_a_dry_run_submits_nothing(submitting, tmp_path):
    arguments = f"--config={grid_file(tmp_path)}", f"--workdir={tmp_path / 'new'}", "--shards=2"
    code, out, _, executor = submitting(*arguments, "--dry_run")
    assert code == 0 and out.startswith("6 points, 2 compilations") and executor is None
    assert not (tmp_path / "new").exists()


def test_a_shard_that_is_to_be_queued_again_ends_its_process_first(monkeypatch):
    again = SimpleNamespace(DelayedSubmission=lambda call: call)
    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(helpers=again))
    program = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(3)); "
    program += "[time.sleep(0.1) for _ in range(600)]"
    shard = submit.Shard([sys.executable, "-c", program])
    looked = []

    def sleep(seconds):
        if not looked:  # the signal comes while the call waits
            looked.append(shard.process.pid)
            looked.append(shard.checkpoint())

    monkeypatch.setattr(submit.time, "sleep", sleep)
    with pytest.raises(RuntimeError, match="exit code"):
        shard()
    assert looked[1].command == shard.command and looked[1].process is None
