"""Kills at any moment lose nothing: `python -m tests.benchmarks.kills --kills=200 --seed=0`.

`launch.train`, `launch.sweep` and `launch.tune` in turn, each in a workdir of its own, killed
(SIGKILL) a random time after it was started and started again, until one ends by itself. Then it
must have the floats, log points, decisions and tables of one that nothing disturbed, and begins
anew. After every kill no checkpoint is older than before, what had ended has, and no attempt has
said a traceback. A process is a copy of one that has imported everything, so that the time goes
into runs: 40 kills take some 2 minutes.
"""

import argparse
import contextlib
import json
import os
import random
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from optdyn.basics.files import rows
from optdyn.launch import sweep, train, tune  # noqa: F401  imported here, once for all processes
from optdyn.outputs.checkpoints import latest

GRID = """
from optdyn.configs import quickstart
from optdyn.grid import grid, product, seeds

def get_config():
    base = quickstart.get_config()
    base.update({"steps": 300, "batch_size": 4, "log_every": 10, "checkpoint_every": 50})
    base.model.update({"name": "quadratic", "noise": 0.5})
    return grid(base, product({"strategy.groups": [4, 2], "seed": seeds(2)}))
"""
TRAIN = {
    "model.name": "quadratic",
    "model.noise": 0.5,
    "batch_size": 4,
    "steps": 600,
    "log_every": 10,
    "checkpoint_every": 20,
}
TUNE = {
    "model.name": "quadratic",
    "model.noise": 0.1,
    "batch_size": 4,
    "cluster.nodes": 2,
    "strategy.name": "asynchronous",
    "strategy.groups": 1,
    "log_every": 20,
    "tune.target": 0.014,
    "tune.probe_seconds": 0.1,
    "tune.probe_share": 0.5,
    "tune.epoch_seconds": 0.05,
    "tune.seconds": 1.5,
    "tune.momenta": (0.0, 0.9),
}
UNLIKE = ("wall_seconds", "starts")


class Job(NamedTuple):
    """A command, and what of its workdir is the same however often it was killed."""

    arguments: list[str]
    result: Callable[[Path], Any]


def jobs(folder: Path) -> dict[str, Job]:
    """The commands, without their workdirs."""
    grid = folder / "grid.py"
    grid.write_text(GRID)
    quickstart = "--config=configs/quickstart.py"
    return {
        "train": Job([quickstart, *flags(TRAIN)], run),
        "sweep": Job([f"--config={grid}", "--threads=2"], swept),
        "tune": Job([quickstart, *flags(TUNE)], tuned),
    }


def flags(values: Mapping[str, Any]) -> list[str]:
    return [f"--config.{key}={value}" for key, value in values.items()]


def run(workdir: Path) -> Any:
    summary = json.loads((workdir / "summary.json").read_text())
    log = [
        {k: v for k, v in row.items() if k not in UNLIKE} for row in rows(workdir / "metrics.jsonl")
    ]
    kept = sorted(path.name for path in (workdir / "checkpoints").iterdir())
    return {k: v for k, v in summary.items() if k not in UNLIKE}, log, kept


def swept(workdir: Path) -> Any:
    table = pd.read_csv(workdir / "results.csv").drop(columns="wall_seconds").to_csv(index=False)
    return {folder.name: run(folder) for folder in (workdir / "points").iterdir()}, table


def tuned(workdir: Path) -> Any:
    summary = json.loads((workdir / "summary.json").read_text())
    files = [(workdir / name).read_text() for name in ("decisions.jsonl", "results.csv")]
    return {k: v for k, v in summary.items() if k not in UNLIKE}, files


def start(name: str, job: Job, workdir: Path, said: Path) -> int:
    """The process id of the command, as `python -m launch.NAME` would run it."""
    child = os.fork()
    if child:
        return child
    code = 1
    with said.open("a") as file:  # nothing of this gets back to the parent's code
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.argv = [f"launch.{name}", *job.arguments, f"--workdir={workdir}"]
        with contextlib.suppress(KeyError):
            del sys.modules[f"launch.{name}"]
        try:
            runpy.run_module(f"launch.{name}", run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            sys.stderr.flush()
            os._exit(code)


def ended(child: int, within: float) -> int | None:
    """Its exit code if it ends by itself within so many seconds."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def kept(workdir: Path) -> dict[str, int]:
    """How far every run in a workdir is saved; one that has ended, beyond all."""
    far = {}
    for folder in (workdir, *workdir.glob("points/*")):
        summary = folder / "summary.json"
        done = summary.exists() and json.loads(summary.read_text())["status"] == "completed"
        far[folder.name] = 10**9 if done else latest(folder) or 0
    return far


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    moments, kills, wholes = random.Random(given.seed), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="optdyn-kills-") as text:
        folder = Path(text)
        said, every = folder / "said", jobs(folder)
        expected, seconds = {}, {}
        for name, job in every.items():
            for _ in range(2):  # the first compiles what the persistent cache then has
                shutil.rmtree(folder / name, ignore_errors=True)
                begun = time.monotonic()
                code = ended(start(name, job, folder / name, said), 600.0)
                assert code == 0, said.read_text()
                seconds[name] = time.monotonic() - begun
            expected[name] = job.result(folder / name)
            shutil.rmtree(folder / name)
        far: dict[str, dict[str, int]] = {name: {} for name in every}
        finishing = set[str]()  # workdirs in use when enough were killed
        while sum(kills.values()) < given.kills or finishing:
            for name, job in every.items():
                enough = sum(kills.values()) >= given.kills
                if enough and name not in finishing:
                    continue
                workdir = folder / name
                child = start(name, job, workdir, said)
                code = ended(child, 600.0 if enough else moments.uniform(0, seconds[name]))
                if code is None:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    kills[name] += 1
                    finishing.add(name)
                    now = kept(workdir)
                    assert all(now[one] >= at for one, at in far[name].items()), (far[name], now)
                    far[name] = now
                else:
                    assert code == 0, said.read_text()
                    assert job.result(workdir) == expected[name], f"{name} is not what it was"
                    wholes[name] += 1
                    finishing.discard(name)
                    far[name] = {}
                    shutil.rmtree(workdir)
                assert "Traceback" not in said.read_text(), said.read_text()
    for name in every:
        print(f"{name}: {kills[name]} kills, {wholes[name]} times whole at the end, all the same")
    print(f"{sum(kills.values())} kills, seed {given.seed}")


if __name__ == "__main__":
    main()
