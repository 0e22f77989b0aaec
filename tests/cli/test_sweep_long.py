"""Sweeps that are killed, and sweeps of a thousand points."""

import random
import signal
import time

import numpy as np
import pandas as pd
import pytest

from optdyn.cli import sweep
from tests.cli.sweeping import alone, assert_same, config_of, grid_file, start


def finished(workdir):
    return sorted((workdir / "points").glob("*/summary.json"))


def kill(path, workdir, points, delay, text):
    """Ends a sweep `delay` seconds after so many points are done; the files of those."""
    process = start(f"--config={path}{text}", f"--workdir={workdir}")
    while len(finished(workdir)) < points:
        assert process.poll() is None, "it ended before it could be stopped"
        time.sleep(0.002)
    time.sleep(delay)
    done = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in finished(workdir)}
    assert process.poll() is None, "it ended before it could be stopped"
    process.kill()
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err
    return done


def assert_untouched(done):
    for file, (modified, content) in done.items():
        assert file.stat().st_mtime_ns == modified and file.read_bytes() == content


@pytest.mark.parametrize(
    ("text", "first", "longest"),
    [
        (":2,400", [(1, 3)], 0.1),
        pytest.param(":16,600", [(1, 10), (16, 25), (31, 40)], 0.2, marks=pytest.mark.slow),
    ],
    ids=["once", "thrice"],
)
def test_killed_and_resumed_is_whole(sweeping, tmp_path, rows, text, first, longest):
    """Killed after so many points as are drawn from each range, and up to `longest` seconds."""
    path, workdir = grid_file(tmp_path), tmp_path / "sweep"
    seed = random.randrange(2**32)
    print("seed", seed)
    moment, done = random.Random(seed), {}
    for ends in first:
        points, delay = moment.randrange(*ends), moment.uniform(0, longest)
        done |= kill(path, workdir, points, delay, text)
        assert_untouched(done)
    assert sweeping(f"--config={path}{text}", f"--workdir={workdir}")[0] == 0
    assert_untouched(done)
    folder = tmp_path / "alone"
    assert_same(rows, workdir, (path, folder, alone(config_of(path, text[1:]), folder)))


def resident():
    """Bytes of memory that this process holds."""
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmRSS"].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.parametrize("way", ["threads", "vmap"])
def test_a_thousand_points_in_flat_memory(reporting, tmp_path, monkeypatch, way):
    """After the first 250, when all is loaded and compiled, no more than noise of the allocator."""
    held, end = [], sweep.SweepState.end

    def counted(self, entry, summary):
        end(self, entry, summary)
        held.append(resident())

    monkeypatch.setattr(sweep.SweepState, "end", counted)
    path, workdir = grid_file(tmp_path), tmp_path / "sweep"
    arguments = f"--config={path}:334,20", f"--workdir={workdir}", f"--together={way}"
    code, _, _ = reporting(*arguments)
    assert code == 0 and len(held) == 1002
    table = pd.read_csv(workdir / "results.csv")
    assert len(table) == 1002 and set(table["status"]) == {"completed", "diverged"}
    assert (workdir / "report.html").stat().st_size < 5e6
    # 64 MB: what 750 points would leave if each kept 85 kB, its rows and timeline.
    early, late = np.median(held[250:350]), np.median(held[-100:])
    assert late - early < 64e6
