"""Omnivore's automatic optimizer against the best fixed setting: `python -m tests.benchmarks.tune`.

Both networks on both clusters of `configs/tune.py`, three seeds each. Simulated seconds to the
target of

    pick       the setting that the cold start chose, alone from the start
    automatic  the automatic optimizer, without its probes, and each baseline
    best       the best setting of the grid (`configs/grids/tune.py`)

as ratios to the best; and the overhead, the part of the automatic optimizer's seconds that are
probes not gone on with. A pick, and what is made of it, is good within a tenth of the best, an
overhead up to 15 %.

A process has a core to itself: two that share their threads are three times slower. Interrupted,
the same command goes on, of a case and seed with what is in their folder of the workdir.
"""

import argparse
import math
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from ml_collections import ConfigDict

from configs import tune
from configs.grids import tune as grid
from launch.tune import tune as run
from research.tuning import segments
from research.tuning.automatic import Setting
from research.tuning.segments import Cluster
from research.workdir import read_json, rows, write_json
from tests.benchmarks.record import publish

CASES = [",".join(case) for case in product(tune.MODELS, tune.CLUSTERS)]
GOOD, OVERHEAD = 1.1, 0.15
HOPELESS = 4.0  # times the loss of the best so far, after as many seconds: not the best
STAGES = tuple(2.0**-n for n in range(5, -1, -1))  # of all seconds, when that is looked at
LATE = 1 / 8  # of all seconds: what is behind a larger step then does not overtake it


def measure(case: str, seed: int, baselines: Sequence[str], workdir: Path) -> dict[str, Any]:
    """One row of the table."""
    config = tune.get_config(case)
    config.seed, config.tune.baselines = seed, tuple(baselines)
    folder = workdir / f"{case}-{seed}"
    methods = {row["method"]: row for row in run(config, folder)["methods"]}
    decided = rows(folder / "decisions.jsonl")
    pick = next(_setting(line) for line in decided if line["what"] == "cold start")
    cluster = segments.prepare(config)
    best, seconds = _known(cluster, config, folder / "best.json")
    target = config.tune.target
    _, alone = segments.attempt(cluster, segments.start(cluster), pick, config.tune.seconds, target)
    return {
        "case": case,
        "seed": seed,
        "best": _shown(best),
        "seconds": seconds,
        "picked": _shown(pick),
        "pick": alone.seconds / seconds if alone.reached else math.inf,
        **{name: _to_target(row) / seconds for name, row in methods.items()},
        "overhead": methods["automatic"]["overhead"],
        "settings": methods["automatic"]["settings"],
    }


def best_of_grid(cluster: Cluster, config: ConfigDict) -> tuple[Setting, float]:
    """The grid's best setting for the config's seed, and its seconds to the target.

    A run ends where it cannot be the best any more: at the seconds of the best so far, where its
    loss is `HOPELESS` times what that of the best was, and, from `LATE` on, where it is more than
    that of a larger step of as many groups was. Large steps go first, since they are fast if they
    are stable.
    """
    keys = ("strategy.groups", "optimizer.momentum", "optimizer.learning_rate")
    settings = {Setting(*(point[key] for key in keys)) for point in grid.points(config)}
    best, least, reference = None, config.tune.seconds, {}
    larger = {g: dict.fromkeys(STAGES, math.inf) for g in cluster.groups}
    for setting in sorted(settings, key=lambda s: (-s.learning_rate, -s.momentum, s.groups)):
        state, spent, losses = segments.start(cluster), 0.0, {}
        for stage in STAGES:
            left = min(stage * config.tune.seconds, least) - spent
            if left <= 0:
                break
            state, outcome = segments.attempt(cluster, state, setting, left, config.tune.target)
            spent += outcome.seconds
            losses[stage] = outcome.loss
            if outcome.reached:
                best, least, reference = setting, spent, losses
                break
            behind = stage >= LATE and outcome.loss > larger[setting.groups][stage]
            if behind or not outcome.loss < HOPELESS * reference.get(stage, math.inf):
                break
            larger[setting.groups][stage] = outcome.loss
    assert best, "no setting of the grid reaches the target"
    return best, least


def _known(cluster: Cluster, config: ConfigDict, path: Path) -> tuple[Setting, float]:
    found = read_json(path)
    if not found:
        best, seconds = best_of_grid(cluster, config)
        found = {"best": best._asdict(), "seconds": seconds}
        write_json(path, found)
    return Setting(**found["best"]), found["seconds"]


def _setting(line: Mapping[str, Any]) -> Setting:
    return Setting(*(line[name] for name in Setting._fields))


def _to_target(row: Mapping[str, Any]) -> float:
    return math.inf if row["seconds_to_target"] is None else row["seconds_to_target"]


def _shown(setting: Setting) -> str:
    return "/".join(f"{value:.3g}" for value in setting)


def _pinned(cores: Any) -> None:
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, {cores.get()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--seeds", type=int, default=3)
    every = tune.get_config().tune.baselines
    parser.add_argument("--baselines", nargs="*", choices=every, default=every)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--workdir", type=Path, default=Path("workdirs/tune"))
    parser.add_argument("--out", type=Path, default=Path("workdirs/tune.json"))
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for job in range(arguments.jobs):
        cores.put(job % (os.cpu_count() or 1))
    with ProcessPoolExecutor(arguments.jobs, context, _pinned, (cores,)) as pool:
        jobs = [
            pool.submit(measure, case, seed, arguments.baselines, arguments.workdir)
            for case in arguments.cases
            for seed in range(arguments.seeds)
        ]
        table = pd.DataFrame([job.result() for job in jobs])
    within = {
        "picks": table["pick"] <= GOOD,
        "automatic": table["automatic"] <= GOOD,
        "overheads": table["overhead"] <= OVERHEAD,
    }
    publish(table, arguments.out, **{name: float(part.mean()) for name, part in within.items()})
    for name, part in within.items():
        print(f"{part.sum()} of {len(table)} {name} within bounds")


if __name__ == "__main__":
    main()
