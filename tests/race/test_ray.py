"""Workers of Ray: they race, die and are replaced, the server too, and every update counts once."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

from optdyn.base.workdir_lock import LOCK, locked
from optdyn.clock.versions import WAITING
from optdyn.train.checkpoints import parameters
from tests.proc import parents, read

pytest.importorskip("ray")
pytestmark = pytest.mark.slow  # Ray takes ten seconds to start, and two cores for each race
ROOT = Path(__file__).parents[2]
RUN = ("--config=configs/quickstart.py", "--config.method.name=asynchronous")


def command(module, workdir, **values):
    given = {"log_every": 50, "checkpoint_every": 100, "method.groups": 3}
    given |= {"cluster.nodes": 3, "cluster.devices_per_node": 1}
    keys = (f"--config.{key}={value}" for key, value in {**given, **values}.items())
    return [sys.executable, "-m", module, *RUN, f"--workdir={workdir}", *keys]


def start(workdir, parts=1, **values):
    pipe = subprocess.PIPE
    line = [*command("launch.race", workdir, **values), f"--servers={parts}"]
    return subprocess.Popen(line, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def descendants(pid):
    """Processes that the command started, with their command lines."""
    of, found = parents(), {}
    below = {pid}
    while below:
        below = {child for child, parent in of.items() if parent in below}
        found |= {child: read(child, "cmdline") for child in below}
    return found


def workers(pid):
    return [child for child, line in descendants(pid).items() if line.startswith("ray::Worker")]


def keepers(pid):
    return [child for child, line in descendants(pid).items() if line.startswith("ray::PartActor")]


def servers(pid):
    return [child for child, line in descendants(pid).items() if "launch.race" in line]


def step(workdir):
    try:
        return len((workdir / "trace.csv").read_text().splitlines()) - 1
    except OSError:
        return 0


def until(done, job):
    while not done():
        assert job.poll() is None, job.communicate()[1][-3000:]
        time.sleep(0.05)


def told_to_end(job, folder):
    """After 200 updates more; what it has said on standard error."""
    last = step(folder)
    until(lambda: step(folder) > last + 200, job)
    job.send_signal(signal.SIGINT)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 128 + signal.SIGINT, errors[-3000:]
    return errors


def replayed(workdir, folder, **values):
    """Largest difference of a parameter between the race and its replay, over the largest one.

    Threads as each of the three workers has them: sums in another order differ by 1e-7, and where
    that moves an example over the kink of a rectifier, by 1e-3 two hundred updates later.
    """
    threads = str(max((os.cpu_count() or 1) // 3, 1))
    trace = {"cluster.service.name": "trace", "cluster.service.path": workdir / "trace.csv"}
    line = command("launch.train", folder, **values, **trace)
    environ = {**os.environ, "NPROC": threads, "OMP_NUM_THREADS": threads}
    subprocess.run(line, cwd=ROOT, check=True, capture_output=True, env=environ)
    one, other = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(parameters(path)[1])])
        for path in (workdir, folder)
    )
    return np.abs(one - other).max() / np.abs(one).max()


def consistent(workdir, steps):
    """Every update once, in order, each of a batch of its own."""
    trace = pd.read_csv(workdir / "trace.csv")
    assert len(trace) == steps and trace["seconds"].is_monotonic_increasing
    batches = trace.filter(like="control.batch").to_numpy()
    # Those that were not used are what three workers were at, of up to eight local steps each.
    unused = 3 * (8 if "control.exchange" in trace else 1)
    assert len(np.unique(batches)) == batches.size and batches.max() < batches.size + unused
    assert (trace["version"] <= np.arange(steps)).all()


OTHERS = {
    waiting: {"method.name": "buffered", "method.waiting": waiting, "method.arrivals": 2}
    for waiting in WAITING
}
# One of the workers is slower, and so takes fewer steps.
OTHERS["local steps"] = {"method.name": "async_local_sgd", "cluster.speeds": "(1.0,1.0,0.4)"}
OTHERS["elastic"] = {"method.name": "elastic"}
OTHERS["merged server"] = {"method.fresh": "('classifier',)"}


@pytest.mark.parametrize("name", ["plain", "k_batch_sync", "k_async"])  # others are below
def test_three_race_and_the_simulator_replays_them(tmp_path, name):
    values = OTHERS.get(name, {})
    job = start(tmp_path / "race", steps=400, **values)
    output, errors = job.communicate(timeout=300)
    assert job.returncode == 0, errors[-3000:]
    assert output.startswith("completed: 400 updates, ") and "Traceback" not in errors
    consistent(tmp_path / "race", 400)
    assert replayed(tmp_path / "race", tmp_path / "replay", steps=400, **values) <= 1e-5
    assert not descendants(job.pid)


@pytest.mark.parametrize(
    ("name", "dying"),
    [
        ("plain", 6),
        ("merged server", 4),
        *((other, 2) for other in ("k_sync", "k_batch_async", "local steps", "elastic")),
    ],
)
def test_workers_and_servers_die(tmp_path, name, dying):
    """So many workers and two servers, at random times, in a race that is ended after the last."""
    values = OTHERS.get(name, {})
    rng, folder = random.Random(5), tmp_path / "race"
    job, deaths = start(folder, steps=1_000_000, **values), []
    for kind in rng.sample([workers] * dying + [servers] * 2, dying + 2):
        until(lambda: len(workers(job.pid)) == 3 and step(folder) > 50, job)
        time.sleep(rng.random())
        victims = kind(job.pid)
        if victims:
            os.kill(rng.choice(victims), signal.SIGKILL)
            deaths.append(kind)
        if kind is servers:
            until(lambda: not workers(job.pid), job)
    errors = told_to_end(job, folder)
    assert len(deaths) == dying + 2 and errors.count("the server was ended by signal 9") == 2
    done = json.loads((folder / "summary.json").read_text())["step"]
    consistent(folder, done)
    # One program rounds otherwise than two, by 1e-7 of a number an update.
    assert replayed(folder, tmp_path / "replay", steps=done, **values) <= 1e-4


def test_parts_of_a_server_die(tmp_path):
    rng, folder = random.Random(7), tmp_path / "race"
    job = start(folder, parts=2, steps=1_000_000)
    for kind in (keepers, workers, keepers):
        until(lambda: len(workers(job.pid)) == 3 and step(folder) > 150, job)
        time.sleep(rng.random())
        os.kill(rng.choice(kind(job.pid)), signal.SIGKILL)
        if kind is keepers:
            until(lambda: not workers(job.pid), job)
    errors = told_to_end(job, folder)
    assert errors.count("a part of the server died; it starts again where it was saved") == 2
    done = json.loads((folder / "summary.json").read_text())["step"]
    consistent(folder, done)
    assert replayed(folder, tmp_path / "replay", steps=done) <= 1e-4  # as above


def test_it_ends_soon_when_told_and_goes_on(tmp_path):
    job = start(tmp_path / "race", steps=5000)
    until(lambda: step(tmp_path / "race") > 100, job)
    job.send_signal(signal.SIGINT)
    told = time.monotonic()
    _, errors = job.communicate(timeout=60)
    assert time.monotonic() - told < 10  # the promise, and not a judgement of the machine
    assert job.returncode == 128 + signal.SIGINT and "the same command goes on" in errors
    done = json.loads((tmp_path / "race/summary.json").read_text())["step"]
    job = start(tmp_path / "race", steps=done - done % 50 + 200)
    _, errors = job.communicate(timeout=300)
    assert job.returncode == 0 and f"resuming at {done:,}" in errors
    consistent(tmp_path / "race", done - done % 50 + 200)


def test_it_doubts_what_training_doubts_and_leaves_a_workdir_to_who_has_it(tmp_path):
    with locked(tmp_path):
        job = start(tmp_path, **{"optimizer.name": "adam", "optimizer.learning_rate": 0.3})
        _, errors = job.communicate(timeout=60)
    doubt, refusal = errors.splitlines()  # and no word of Ray, which is not started
    assert doubt.startswith("warning: config.optimizer.learning_rate = 0.3: adam moves")
    assert refusal.startswith("error: ") and f"is in use by process {os.getpid()}" in refusal
    assert job.returncode == 2 and {path.name for path in tmp_path.iterdir()} == {LOCK}


# Whoever reaches Ray runs a program in it, unless it asks for a token.
ATTACK = """
import os, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print("ran as", ray.get(ray.remote(num_cpus=0)(lambda: os.getuid()).remote(), timeout=300))
"""


def attack(address, folder, **environ):
    """The output of a process of its own that tries it."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    usual |= {"HOME": str(folder), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    line = [sys.executable, "-c", ATTACK, address]
    done = subprocess.run(line, env=usual | environ, capture_output=True, text=True)
    return done.stdout or done.stderr[-1000:]


def listening(pid):
    """Addresses at which a process listens for TCP, in hexadecimal as Linux shows them."""
    names = []
    with contextlib.suppress(OSError):
        names = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    rows = [
        row.split() for kind in ("tcp", "tcp6") for row in read(pid, f"net/{kind}").splitlines()
    ]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in names]


def ray_of(pid):
    """The raylet of that race: its variables, and what it was given."""
    ((raylet, line),) = (one for one in descendants(pid).items() if "/raylet/raylet\0" in one[1])
    words = (text.split("\0") for text in (read(raylet, "environ"), line.replace("--", "")))
    return (dict(word.split("=", 1) for word in each if "=" in word) for each in words)


GUESSES = (
    {},
    {"RAY_AUTH_MODE": "disabled"},
    {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
)


def test_nobody_else_reaches_or_uses_the_ray_of_a_race(tmp_path):
    job = start(tmp_path / "race", parts=2, steps=1_000_000)
    until(lambda: step(tmp_path / "race") > 50, job)
    ports = {where for pid in descendants(job.pid) for where in listening(pid)}
    loopback = ("0100007F", "0000000000000000FFFF00000100007F", f"{1 << 24:032X}")
    assert len(ports) > 5 and all(where.split(":")[0] in loopback for where in ports)
    variables, given = ray_of(job.pid)
    folders = Path(given["session_dir"]).parents
    assert any(folder.stat().st_mode & 0o077 == 0 for folder in folders)
    with ThreadPoolExecutor(len(GUESSES)) as pool:  # as Ray asks for 20 s whether it is let in
        tried = pool.map(lambda more: attack(given["gcs-address"], tmp_path, **more), GUESSES)
        assert all("Failed to connect" in said or "ConnectionError" in said for said in tried)
    known = {name: variables[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    assert attack(given["gcs-address"], tmp_path, **known) == f"ran as {os.getuid()}\n"
    told_to_end(job, tmp_path / "race")


@contextlib.contextmanager
def cluster(**environ):
    """A Ray of this machine that races go to with `--address`; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        line = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        line += [f"--port={port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
        line += [f"--temp-dir={folder}/ray"]
        job = subprocess.Popen(line, env={**os.environ, **environ}, stdout=subprocess.DEVNULL)
        try:
            until(
                lambda: any("/raylet/raylet\0" in line for line in descendants(job.pid).values()),
                job,
            )
            yield f"127.0.0.1:{port}"
        finally:
            job.terminate()
            job.wait()


TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "1" * 64}


def at_address(address, workdir, **environ):
    """A race there of two servers, ended."""
    line = command("launch.race", workdir, steps=100)
    line += [f"--address={address}", "--servers=2"]
    return subprocess.run(
        line, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True
    )


def test_a_cluster_has_a_token_or_is_refused(tmp_path):
    with cluster(**TOKEN) as address:
        done = at_address(address, tmp_path / "race", **TOKEN)
        assert done.returncode == 0, done.stderr[-3000:]
        consistent(tmp_path / "race", 100)
        guess = at_address(address, tmp_path / "other", **GUESSES[-1])
        *_, line = guess.stderr.splitlines()  # Ray says so too
        assert guess.returncode == 2 and "no Ray there, or not with this token" in line
    with cluster(RAY_AUTH_MODE="disabled") as address:
        done = at_address(address, tmp_path / "other", **TOKEN)
        *_, line = done.stderr.splitlines()
        assert done.returncode == 2 and "must have been started with RAY_AUTH_MODE=token" in line
    assert not (tmp_path / "other").exists()


def test_a_bad_config_is_one_line(tmp_path):
    job = start(tmp_path / "race", **{"parallel.api": "jit"})
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 2 and len(errors.splitlines()) == 1
    assert not (tmp_path / "race").exists()
