"""A disk that gets full anywhere: one line, and the same floats once there is space.

On a file system of its own, in memory, which only root may mount; skipped where it cannot be.
"""

import contextlib
import os
import subprocess

import pandas as pd
import pytest

from optdyn.base import files as outputs
from optdyn.base.files import DiskFull
from optdyn.cli import sweep
from optdyn.report import report, tables
from optdyn.train import checkpoints, history, hooks, workdir
from optdyn.train.checkpoints import Checkpoints, latest
from optdyn.train.trainer import train
from optdyn.train.workdir import Metrics
from tests.cli.sweeping import alone, assert_same, config_of, grid_file

CHECKPOINT_EVERY = 20

LARGE = "8m"


def mount(*arguments):
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path):
    """`disk.size("100k")`, `disk.fill()` and `disk.empty()` of the file system in `disk.path`."""
    path = tmp_path / "disk"
    path.mkdir()
    if not mount("-t", "tmpfs", "-o", f"size={LARGE}", "tmpfs", path):
        pytest.skip("no file system can be mounted")
    yield Disk(path)
    subprocess.run(["umount", "--lazy", str(path)], check=True)


class Disk:
    def __init__(self, path):
        self.path, self.ballast = path, path / "ballast"

    def size(self, text):
        assert mount("-o", f"remount,size={text}", self.path)

    def fill(self):
        file = os.open(self.ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with contextlib.suppress(OSError):
            while os.write(file, bytes(2**12)):
                pass
        os.close(file)

    def empty(self):
        self.ballast.unlink()


def full_before(monkeypatch, disk, owner, name, when=lambda *_: True):
    """Has the disk full when that function is called, the first time that `when` holds.

    Not while another thread has half of a checkpoint written: Orbax may not survive that.
    """
    function, done = getattr(owner, name), []

    def filled(*arguments, **named):
        if not done and when(*arguments):
            done.append(True)
            with checkpoints.SAVING:
                disk.fill()
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, filled)


PLACES = {
    "start": (history, "record_start", lambda *_: True),
    "event file": (Metrics, "_flush", lambda metrics: len(metrics.rows) > 40),
    "log": (Metrics, "append", lambda _, row: row["step"] == 25),
    "first checkpoint": (Checkpoints, "save", lambda _, step, state: step == 20),
    "third checkpoint": (Checkpoints, "save", lambda _, step, state: step == 60),
    "sums of a checkpoint": (checkpoints, "write_json", lambda path, _: "40" in str(path)),
    "end of the event file": (Metrics, "summarize", lambda *_: True),
    "summary": (hooks, "write_json", lambda *_: True),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_run_says_one_line_and_goes_on(config, tmp_path, disk, rows, monkeypatch, place):
    chosen = config({"log_every": 1})
    whole = train(chosen, tmp_path / "whole")
    here = disk.path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(workdir, "FLUSH", 0.0)
        full_before(patch, disk, *PLACES[place])
        with pytest.raises(DiskFull) as caught:
            train(chosen, here)
    saved = latest(here) or 0
    message = str(caught.value)
    assert message.startswith(f"disk full at {here}") and "\n" not in message
    assert f"what was saved up to step {saved} is whole; the same command goes on" in message
    assert saved == {"first": 0, "third": 40, "sums": 20, "end": 60, "summary": 60}.get(
        place.split()[0], saved
    )
    assert not list(here.rglob("*.part")) and not list(here.rglob("*tmp*"))
    with pytest.raises(DiskFull):  # as long as it is full
        train(config({"log_every": 1, "steps": 61}), here)
    disk.empty()
    assert train(chosen, here)["parameters_crc32"] == whole["parameters_crc32"]
    assert rows(here) == rows(tmp_path / "whole")


@pytest.mark.parametrize("kibibytes", range(8, 200, 28))
def test_whatever_size_it_has(config, tmp_path, disk, rows, kibibytes):
    """Each meets another write of the run, whose whole takes some 200 KiB of older orbax."""
    chosen = config({"log_every": 2})
    disk.size(f"{kibibytes}k")
    with pytest.raises(DiskFull, match=r"^disk full at .*goes on when there is space$"):
        train(chosen, disk.path / "run")
    disk.size(LARGE)
    summary, whole = (train(chosen, folder) for folder in (disk.path / "run", tmp_path / "whole"))
    assert summary["parameters_crc32"] == whole["parameters_crc32"]
    assert rows(disk.path / "run") == rows(tmp_path / "whole")


def test_the_meters_space_is_taken_before_it_measures(config, disk):
    """A mapped file that meets a full disk later would end the process without a word."""
    values = {"probes.momentum": True, "probes.window": 60, "probes.every": 60}
    disk.size("24k")
    with pytest.raises(DiskFull, match=r"sketches\.npy: what was saved up to step 0 is whole"):
        train(config({**values, "model.dimension": 400, "steps": 300}), disk.path / "run")


# Slow, in a process that ran little before: a worker of the suite ended here without a word, in at
# least one of six runs, and by itself in none of ninety. Orbax on a full disk is suspected.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "what"),
    [
        ((Checkpoints, "save", lambda _, step, state: step == 40), "points"),
        ((hooks, "write_json", lambda *_: True), "points"),
        ((tables, "write_results", lambda *_: True), "results.csv"),
        ((report, "write", lambda *_: True), "sweep"),
        ((sweep.SweepState, "end", lambda *_: True), "sweep"),
    ],
    ids=["checkpoint", "summary", "results", "report", "between points"],
)
def test_a_sweep_says_one_line_and_goes_on(
    reporting, tmp_path, disk, rows, monkeypatch, place, what
):
    file = grid_file(tmp_path)
    whole = file, tmp_path, alone(config_of(file), tmp_path)
    here = disk.path / "sweep"
    arguments = f"--config={file}", f"--workdir={here}", "--threads=2"
    with monkeypatch.context() as patch:
        full_before(patch, disk, *place)
        code, _, err = reporting(*arguments)
    assert code == 1 and "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: disk full at {here}/") and what in line
    assert line.endswith("the same command goes on when there is space")
    disk.empty()
    assert reporting(*arguments)[0] == 0
    assert_same(rows, here, whole)
    assert len(pd.read_csv(here / "results.csv")) == 6


def test_what_a_library_says_of_a_full_disk_is_understood():
    error = ValueError("RESOURCE_EXHAUSTED: Error writing /a: No space left on device [in kvstore]")
    with pytest.raises(DiskFull, match="disk full at b: "), outputs.disk_full_errors("b"):
        raise error
    other = OSError(28, os.strerror(28), "/c")
    with pytest.raises(DiskFull, match="disk full at /c: "), outputs.disk_full_errors():
        raise RuntimeError("cannot write") from other
    with pytest.raises(RuntimeError, match="out of memory"), outputs.disk_full_errors("b"):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
