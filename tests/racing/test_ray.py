"""Workers of Ray: they race, die and are replaced, the server too, and every update counts once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from research.outputs.workdir import parameters
from tests.proc import parents, read

pytest.importorskip("ray")
pytestmark = pytest.mark.slow  # Ray takes ten seconds to start, and two cores for each race
ROOT = Path(__file__).parents[2]
RUN = ("--config=configs/quickstart.py", "--config.strategy.name=asynchronous")


def command(module, workdir, **values):
    given = {"strategy.groups": 3, "cluster.nodes": 3, "log_every": 50, "checkpoint_every": 100}
    keys = (f"--config.{key}={value}" for key, value in {**given, **values}.items())
    return [sys.executable, "-m", module, *RUN, f"--workdir={workdir}", *keys]


def start(workdir, **values):
    pipe = subprocess.PIPE
    line = command("launch.race", workdir, **values)
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


def replayed(workdir, folder, **values):
    """Largest difference of a parameter between the race and its replay, over the largest one."""
    trace = {"cluster.service": "trace", "cluster.trace": workdir / "trace.csv"}
    line = command("launch.train", folder, **values, **trace)
    subprocess.run(line, cwd=ROOT, check=True, capture_output=True)
    one, other = (
        np.concatenate([np.ravel(leaf) for block in tree.values() for leaf in block.values()])
        for tree in (flat(parameters(path)[1]) for path in (workdir, folder))
    )
    return np.abs(one - other).max() / np.abs(one).max()


def flat(tree):
    import jax

    return {0: dict(enumerate(jax.tree.leaves(tree)))}


def consistent(workdir, steps):
    """Every update once, in order, each of a batch of its own."""
    trace = pd.read_csv(workdir / "trace.csv")
    assert len(trace) == steps and trace["seconds"].is_monotonic_increasing
    assert trace["control.batch"].is_unique and trace["control.batch"].max() < steps + 3
    assert (trace["version"] <= np.arange(steps)).all()
    return trace


def test_three_race_and_the_simulator_replays_them(tmp_path):
    job = start(tmp_path / "race", steps=400)
    output, errors = job.communicate(timeout=300)
    assert job.returncode == 0, errors[-3000:]
    assert json.loads(output)["status"] == "completed" and "Traceback" not in errors
    consistent(tmp_path / "race", 400)
    assert replayed(tmp_path / "race", tmp_path / "replay", steps=400) <= 1e-5
    assert not descendants(job.pid)


def test_workers_and_servers_die(tmp_path):
    """Six workers and two servers, at random times, in a race that is ended after the last."""
    rng, folder = random.Random(5), tmp_path / "race"
    job, deaths = start(folder, steps=1_000_000), []
    for kind in rng.sample([workers] * 6 + [servers] * 2, 8):
        until(lambda: len(workers(job.pid)) == 3 and step(folder) > 50, job)
        time.sleep(rng.random())
        victims = kind(job.pid)
        if victims:
            os.kill(rng.choice(victims), signal.SIGKILL)
            deaths.append(kind)
        if kind is servers:
            until(lambda: not workers(job.pid), job)
    last = step(folder)
    until(lambda: step(folder) > last + 200, job)
    job.send_signal(signal.SIGINT)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 128 + signal.SIGINT, errors[-3000:]
    assert len(deaths) == 8 and errors.count("the server was ended by signal 9") == 2
    done = json.loads((folder / "summary.json").read_text())["step"]
    consistent(folder, done)
    # One program rounds otherwise than two, by 1e-7 of a number an update.
    assert replayed(folder, tmp_path / "replay", steps=done) <= 1e-4


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


def test_a_bad_config_is_one_line(tmp_path):
    job = start(tmp_path / "race", **{"parallel.api": "jit"})
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 2 and len(errors.splitlines()) == 1
    assert not (tmp_path / "race").exists()
