"""Several real processes: that they compute together, and that none waits for one that is gone."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from optdyn.base import processes
from optdyn.base.workdir_lock import LOCK, locked
from tests.proc import ended, parents, read

ROOT = Path(__file__).parents[2]
# Every device of the job holds a part of 0, 1, ..., and a sum over all of them is asked for.
SUM = """
import signal, sys
from optdyn.base import processes
processes.initialize()
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
n = jax.device_count()
mesh = jax.make_mesh((n,), ("x",), axis_types=(AxisType.Auto,))
whole = np.arange(3.0 * n)
x = jax.make_array_from_callback(whole.shape, NamedSharding(mesh, P("x")), lambda i: whole[i])
total = jax.jit(
    jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
)
"""


def slurm(rank, port):
    """What SLURM tells task `rank` of 2 on this machine; JAX would make a port of the job's id."""
    return {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "JAX_COORDINATOR_PORT": str(port),
    }


def test_processes_of_the_local_launcher_sum_over_all_their_devices():
    program = SUM + "print(*np.asarray(total(x)), processes.is_writer())"
    options = ["--processes=2", "--devices_per_process=2", "--", sys.executable, "-c", program]
    done = subprocess.run(
        [sys.executable, "-m", "launch.local", *options],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "http_proxy": "http://127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    # 0..11 in parts of three on four devices: 0+3+6+9, 1+4+7+10, 2+5+8+11
    # Gloo writes to standard output too, now and then across another's line.
    lines = [line for line in done.stdout.splitlines() if line.endswith(("True", "False"))]
    assert sorted(lines) == ["[0] 18.0 22.0 26.0 True", "[1] 18.0 22.0 26.0 False"]


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("sys.exit(3)", 3),  # Python's own exit would wait for the other process
        ("signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),  # JAX would swallow it
    ],
)
def test_when_one_process_ends_the_other_ends_by_itself(last, code):
    program = f"""{SUM}
with processes.leaving_on_failure():
    total(x).block_until_ready()
    if jax.process_index() == 1:
        {last}
    while True:
        total(x).block_until_ready()
"""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    survivor, failing = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu", **slurm(rank, port)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        failing.communicate(timeout=60)
        assert failing.returncode == code
        # Gloo tells it at once. Nothing told, it would take HEARTBEAT to notice, so wait for less.
        _, stderr = survivor.communicate(timeout=processes.HEARTBEAT - 10)
        assert survivor.returncode not in (0, code)
        assert "peer" in stderr
    finally:
        for process in (survivor, failing):
            process.kill()
            process.communicate()


def test_alone_an_exception_passes_and_this_is_the_writer():
    with pytest.raises(ValueError, match="unchanged"), processes.leaving_on_failure():
        raise ValueError("unchanged")
    assert processes.is_writer()


def test_description_of_the_job():
    environ = {"OPTDYN_COORDINATOR": "a:1", "OPTDYN_PROCESSES": "4", "OPTDYN_PROCESS": "3"}
    assert processes.job_from_environment(environ) == ("a:1", 4, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"OPTDYN_PROCESSES": ""}, "OPTDYN_PROCESSES is ''"),
        ({"OPTDYN_PROCESS": "first"}, "OPTDYN_PROCESS is 'first'"),
        ({"OPTDYN_PROCESS": "-1"}, "OPTDYN_PROCESS is '-1'"),
        ({"OPTDYN_PROCESS": "2"}, "OPTDYN_PROCESS=2 is not below OPTDYN_PROCESSES=2"),
    ],
)
def test_a_description_that_does_not_hold_together(change, message):
    environ = {"OPTDYN_COORDINATOR": "a:1", "OPTDYN_PROCESSES": "2", "OPTDYN_PROCESS": "0"}
    with pytest.raises(processes.ProcessError, match=message):
        processes.job_from_environment({**environ, **change})


@pytest.mark.parametrize(
    ("environ", "several"),
    [
        ({}, False),
        (slurm(1, 4321), True),
        # A shell inside a job of two tasks, as `srun --pty bash` gives it.
        ({**slurm(0, 4321), "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, False),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_WORKER_HOSTNAMES": "host-0,host-1"}, True),
        ({"TPU_PROCESS_ADDRESSES": "host-0:1,host-1:1"}, True),
        ({"TPU_WORKER_HOSTNAMES": "host-0", "MEGASCALE_NUM_SLICES": "2"}, True),
    ],
)
def test_clusters_of_several_processes(environ, several):
    no_tpu = {"TPU_SKIP_MDS_QUERY": "1"}
    assert processes.in_cluster({**no_tpu, **environ}) == several


def test_a_tpu_machine_asks_for_its_peers_unless_another_platform_is_chosen():
    assert processes.in_cluster({})
    assert not processes.in_cluster({"JAX_PLATFORMS": "cpu"})


def test_processes_that_jax_cannot_find_are_an_error():
    # Open MPI 5 counts its processes, and no longer says where the first one is.
    done = subprocess.run(
        [sys.executable, "-c", "from optdyn.base import processes; processes.initialize()"],
        cwd=ROOT,
        env={**os.environ, "OMPI_COMM_WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("optdyn.base.processes.ProcessError: ")
    assert "set OPTDYN_COORDINATOR" in done.stderr.splitlines()[-1]


# One of four processes is killed: the others end soon, and the run goes on where it was saved.


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
