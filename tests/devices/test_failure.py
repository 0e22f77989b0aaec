"""One of four processes is killed: the others end soon, and the run goes on where it was saved."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from optdyn.base.workdir_lock import LOCK, locked
from tests.proc import ended, parents, read

ROOT = Path(__file__).parents[2]
RUN = (
    "--config=configs/quickstart.py",
    "--config.method.name=sync",
    "--config.method.groups=1",
    "--config.parallel.api=shard_map",
    "--config.steps=500",
    "--config.log_every=50",
    "--config.checkpoint_every=50",
)


def start(workdir, data_dir):
    command = [sys.executable, "-m", "launch.local", "--processes=4", "--"]
    command += [sys.executable, "-m", "launch.train", *RUN, f"--workdir={workdir}"]
    command += [f"--config.data.dir={data_dir}"]
    pipe = subprocess.PIPE
    env = os.environ | {"JAX_PLATFORMS": "cpu"}  # four of which there are wherever tests run
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True)


def saved(workdir):
    return max((int(p.parent.name) for p in workdir.glob("checkpoints/*/crc32.json")), default=0)


def workers(pid):
    """Ranks and process ids of the launcher's children."""
    found = {}
    for child in (child for child, parent in parents().items() if parent == pid):
        if rank := re.search(r"(?:^|\0)OPTDYN_PROCESS=(\d+)", read(child, "environ")):
            found[int(rank[1])] = child
    return found


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 2])
def test_one_of_four_is_killed(tmp_path, mnist, killed):
    data_dir, workdir = mnist["data.dir"], tmp_path / "run"
    job = start(workdir, data_dir)
    while saved(workdir) < 100:
        assert job.poll() is None, job.stderr.read()
        time.sleep(0.05)
    before = saved(workdir)
    os.kill(workers(job.pid)[killed], signal.SIGKILL)
    begun = time.monotonic()
    _, errors = job.communicate(timeout=60)
    # The promise of the launcher, with its grace of 5 seconds before it kills.
    assert time.monotonic() - begun < 10
    assert job.returncode == 128 + signal.SIGKILL
    assert f"process {killed} ended" in errors
    kept = saved(workdir)
    assert kept >= before

    job = start(workdir, data_dir)
    _, errors = job.communicate(timeout=300)
    assert job.returncode == 0, errors[-3000:]
    whole = start(tmp_path / "whole", data_dir)
    whole.communicate(timeout=300)
    folders = (workdir, tmp_path / "whole")
    found, expected = (json.loads((f / "summary.json").read_text()) for f in folders)
    assert found["parameters_crc32"] == expected["parameters_crc32"]
    assert found["status"] == "completed"


def test_a_workdir_in_use_is_refused_on_all_processes(tmp_path, mnist):
    with locked(tmp_path / "run"):
        job = start(tmp_path / "run", mnist["data.dir"])
        _, errors = ended(job)
    assert job.returncode == 2 and "Traceback" not in errors
    in_use = f"error: workdir {tmp_path / 'run'} is in use by process {os.getpid()} on"
    assert re.search(rf"^\[[0-3]\] {re.escape(in_use)}", errors, re.M), errors
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]
