"""A grid as one sweep against separate processes: `python -m tests.benchmarks.sweep`.

Momentum x learning rate x seeds of the MLP 784-256-256-10, in turn as `launch.sweep` and as one
`launch.train` a point, `--at_a_time` of them. Ratios of wall-clock seconds, and of the seconds of
all cores, which other work on the machine touches less. The last row has updates and evaluations
alone, which no sweep can be faster than. `--points=8` is a quick look.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from ml_collections import ConfigDict

from optdyn.configs import quickstart
from optdyn.grid import grid, log_range, named, product, seeds
from optdyn.problem import shared_data
from optdyn.training import program
from optdyn.training.program import CHUNK
from tests.benchmarks.record import publish
from tests.benchmarks.snapshots import Updates
from tests.benchmarks.step_time import spread


def get_config(text: str = "64,300") -> ConfigDict:
    """The grid of POINTS,UPDATES, which this file is the config file of."""
    points, updates = map(int, text.split(","))
    base = quickstart.get_config()
    base.model.hidden = (256, 256)
    base.strategy.name = "sync"
    base.strategy.groups = 1
    base.steps = updates
    base.log_every = 100
    base.checkpoint_every = 0
    axes = product(
        {
            "optimizer.momentum": [0.0, 0.3, 0.6, 0.9],
            "optimizer.learning_rate": log_range(0.01, 0.1, 4),
            "seed": seeds(-(-points // 16)),
        }
    )
    return grid(base, list(axes)[:points])


def swept(points: int, updates: int, together: str, folder: Path) -> None:
    """All points as one sweep."""
    config = f"--config={Path(__file__)}:{points},{updates}"
    run("launch.sweep", config, f"--workdir={folder}", f"--together={together}")


def separate(points: int, updates: int, at_a_time: int, folder: Path) -> None:
    """Each point as a process of its own."""
    config = get_config(f"{points},{updates}")
    same = {
        **{name: config.base[name] for name in ("steps", "log_every", "checkpoint_every")},
        "model.hidden": config.base.model.hidden,
        "strategy.name": config.base.strategy.name,
        "strategy.groups": config.base.strategy.groups,
    }

    def train(point: tuple[str, dict[str, object]]) -> None:
        values = [f"--config.{key}={value}" for key, value in {**same, **point[1]}.items()]
        where = f"--workdir={folder / point[0]}"
        run("launch.train", "--config=configs/quickstart.py", where, *values)

    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(train, named(config)))


def run(module: str, *arguments: str) -> None:
    """Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", module, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def trained(points: int, updates: int) -> float:
    """Seconds of all cores that updates and evaluations of all points take, and nothing else."""
    one, n = Updates(get_config(f"{points},{updates}").base), min(updates, CHUNK)
    run = one.run
    _, *splits = shared_data.put(run.data, run.program.layout.put_examples, run.config)

    def evaluate() -> None:
        for split in splits:
            program.evaluate(run.program, one.state.params, split)

    def used(what: Callable[[], object]) -> float:
        what()  # compiles
        before = time.process_time()
        what()
        return time.process_time() - before

    logged = 1 + updates // run.config.log_every
    return points * (updates / n * used(lambda: one.seconds(n)) + logged * used(evaluate))


def seconds(way: Callable[[Path], None]) -> tuple[float, float]:
    """(wall clock, all cores) in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        way(Path(folder))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begun, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=int, default=64)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--at_a_time", type=int, default=2)
    parser.add_argument("--together", default="threads")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("workdirs/sweep.json"))
    given = parser.parse_args()
    size = given.points, given.updates
    ways = partial(separate, *size, given.at_a_time), partial(swept, *size, given.together)
    rounds = [[seconds(way) for way in ways] for _ in range(given.rounds)]
    found = np.array(rounds)  # (rounds, way, clock)
    rows = [
        {
            "ratio": f"{clock}, separate processes / sweep",
            **spread(found[:, 0, i] / found[:, 1, i]),
            "separate, s": np.median(found[:, 0, i]),
            "sweep, s": np.median(found[:, 1, i]),
        }
        for i, clock in enumerate(("wall clock", "seconds of all cores"))
    ]
    alone, used = trained(*size), np.median(found[:, 0, 1])
    name = "seconds of all cores, separate processes / updates and evaluations alone"
    rows.append({"ratio": name, "median": used / alone, "separate, s": used, "alone, s": alone})
    about = {name: value for name, value in vars(given).items() if name != "out"}
    publish(pd.DataFrame(rows), given.out, **about)


if __name__ == "__main__":
    main()
