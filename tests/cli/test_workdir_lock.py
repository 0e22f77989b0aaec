"""One process at a time in a workdir, and none that was killed."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from optdyn.base.files import WorkdirError
from optdyn.base.workdir_lock import LOCK, locked
from optdyn.cli import plan, tune
from optdyn.devices.first_process import hold_workdir
from optdyn.train.replicas import record
from optdyn.train.trainer import train
from tests.cli.sweeping import ROOT, grid_file
from tests.proc import ended

HOLD = """
import sys, time
from pathlib import Path
from optdyn.base.workdir_lock import locked
with locked(Path(sys.argv[1]), *sys.argv[2:]):
    print("held", flush=True)
    time.sleep(600)
"""
IN_USE = r"workdir .+ is in use by process (\d+) on \S+ since \d\d:\d\d; let it end, or give"


@pytest.fixture
def holder():
    """`holder(workdir)`: a process that holds it."""
    started = []

    def start(*arguments):
        command = [sys.executable, "-c", HOLD, *map(str, arguments)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_second_process_is_refused_and_a_killed_one_holds_nothing(tmp_path, holder):
    first = holder(tmp_path)
    with pytest.raises(WorkdirError, match=IN_USE) as caught, locked(tmp_path):
        pass
    assert f"process {first.pid} on " in str(caught.value)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["process"] == os.getpid()
    assert (tmp_path / LOCK).read_bytes() == b""


def test_who_holds_it_may_not_be_known(tmp_path, holder):
    holder(tmp_path)
    (tmp_path / LOCK).write_text("{")
    with pytest.raises(WorkdirError, match="in use by another process;"), locked(tmp_path):
        pass


def test_one_process_does_not_hold_it_twice_either(tmp_path):
    with locked(tmp_path):
        with pytest.raises(WorkdirError, match=IN_USE), locked(tmp_path):
            pass
        with locked(tmp_path, ".lock.0-of-2"), locked(tmp_path, ".lock.1-of-2"):
            pass
    with locked(tmp_path):
        pass


def test_of_threads_that_ask_at_once_one_has_it(tmp_path):
    inside, most, got = [], [], []

    def ask(_):
        for _ in range(50):
            try:
                with locked(tmp_path):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
                    got.append(1)
            except WorkdirError:
                pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    assert set(most) == {1} and got


def test_every_command_holds_its_workdir(config, tmp_path, holder, files, sweeping, mnist):
    holder(tmp_path / "held")
    before = files(tmp_path)
    replicas = {"replicas.count": 2, "steps": 4, "data.replacement": True}
    small = {"tune.probe_seconds": 1.0, "optimizer.schedule": "constant"}
    for command in (
        lambda: train(config(), tmp_path / "held"),
        lambda: record(config(replicas), tmp_path / "held"),
        lambda: tune.tune(config({**mnist, **small}), tmp_path / "held"),
    ):
        with pytest.raises(WorkdirError, match=IN_USE):
            command()
    assert files(tmp_path) == before
    file = grid_file(tmp_path)
    holder(tmp_path / "swept", ".lock.0-of-1")
    before = files(tmp_path)
    code, _, err = sweeping(f"--config={file}", f"--workdir={tmp_path / 'swept'}")
    assert code == 2 and re.match("error: " + IN_USE, err) and err.count("\n") == 1
    assert files(tmp_path) == before
    assert plan.hold_workdir is hold_workdir


def test_a_point_that_another_shard_is_at_is_refused(tmp_path, holder, sweeping):
    """By commands of unlike numbers of shards, which have points in common."""
    file = grid_file(tmp_path)
    holder(tmp_path / "swept" / "points" / "method.groups=4,optimizer.momentum=0.3,seed=0")
    code, _, err = sweeping(f"--config={file}", f"--workdir={tmp_path / 'swept'}")
    assert code == 2 and re.search("error: " + IN_USE, err)
    arguments = "--shard=1/6", f"--config={file}", f"--workdir={tmp_path / 'swept'}"
    assert sweeping(*arguments)[0] == 0


def test_a_file_system_without_locks_is_told_and_used(tmp_path, monkeypatch, capsys):
    def without(*_):
        raise OSError(38, os.strerror(38))

    monkeypatch.setattr("fcntl.flock", without)
    with locked(tmp_path):
        pass
    said = capsys.readouterr().err
    assert "cannot be locked (Function not implemented): see that" in said
    assert said.count("\n") == 1


# So slow that the other comes while it runs: an update is a log point and a checkpoint.
RUN = ("--config=configs/quickstart.py", "--config.model.name=quadratic", "--config.batch_size=4")
RUN += ("--config.steps=12000", "--config.log_every=200", "--config.checkpoint_every=200")


@pytest.mark.slow
def test_of_two_commands_one_is_refused_and_the_other_is_whole(tmp_path):
    seed = random.randrange(2**32)
    print("seed", seed)
    delays = [0.0, *(random.Random(seed).uniform(0, 3) for _ in range(19))]
    for number, delay in enumerate(delays):
        workdir = tmp_path / str(number)
        command = [sys.executable, "-m", "launch.train", *RUN, f"--workdir={workdir}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        both = [subprocess.Popen(command, cwd=ROOT, **pipes)]
        time.sleep(delay)
        both.append(subprocess.Popen(command, cwd=ROOT, **pipes))
        said = [ended(process)[1] for process in both]
        codes = [process.returncode for process in both]
        assert sorted(codes) == [0, 2], said
        refused = said[codes.index(2)]
        assert re.fullmatch("error: " + IN_USE + " another --workdir\n", refused), refused
        assert re.match("error: " + IN_USE, refused)[1] == str(both[codes.index(0)].pid)
        lines = (workdir / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(0, 12001, 200))
