"""Omnivore's automatic optimizer against the best fixed setting: `python -m tests.benchmarks.tune`.

Both networks on both clusters of `configs/tune.py`, three seeds each. Simulated seconds to the
target of

    pick       the setting that the cold start chose, alone from the start
    automatic  the automatic optimizer, without its probes, and each baseline
    best       the best setting of the grid (`configs/grids/tune.py`)

as ratios to the best; and the overhead, the probes' part of the automatic optimizer's seconds. A
pick is good within a tenth of the best, an overhead up to 15 %.
"""

import argparse
import math
import multiprocessing
from collections.abc import Mapping
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
from research.tuning.automatic import Outcome, Setting
from research.tuning.segments import Cluster
from research.workdir import rows
from tests.benchmarks.record import publish

CASES = [",".join(case) for case in product(tune.MODELS, tune.CLUSTERS)]
GOOD, OVERHEAD = 1.1, 0.15
HOPELESS = 3.0  # times the loss of the best so far, at a quarter of its seconds: not the best


def measure(case: str, seed: int, workdir: Path) -> dict[str, Any]:
    """One row of the table."""
    config = tune.get_config(case)
    config.seed = seed
    folder = workdir / f"{case}-{seed}"
    methods = {row["method"]: row for row in run(config, folder)["methods"]}
    decided = rows(folder / "decisions.jsonl")
    pick = next(_setting(line) for line in decided if line["what"] == "cold start")
    cluster = segments.prepare(config)
    best, seconds = best_of_grid(cluster, config)
    alone = _run(cluster, config, pick, config.tune.seconds)
    return {
        "case": case,
        "seed": seed,
        "best": _shown(best),
        "seconds": seconds,
        "picked": _shown(pick),
        "pick": alone.seconds / seconds if alone.reached else math.inf,
        **{name: _to_target(row) / seconds for name, row in methods.items()},
        "overhead": methods["automatic"]["overhead"],
    }


def best_of_grid(cluster: Cluster, config: ConfigDict) -> tuple[Setting, float]:
    """The grid's best setting for the config's seed, and its seconds to the target.

    A run ends where it cannot be the best any more: at the seconds of the best so far; and at a
    quarter of them, if its loss then is `HOPELESS` times that of the best. Large steps go first,
    since they are fast if they are stable.
    """
    keys = ("strategy.groups", "optimizer.momentum", "optimizer.learning_rate")
    settings = {Setting(*(point[key] for key in keys)) for point in grid.points(config)}
    best, seconds, reference = None, config.tune.seconds, math.inf
    for setting in sorted(settings, key=lambda s: (-s.learning_rate, -s.momentum, s.groups)):
        quarter = _run(cluster, config, setting, seconds / 4)
        if not (quarter.reached or quarter.loss < HOPELESS * reference):
            continue
        whole = _run(cluster, config, setting, seconds)
        if whole.reached and whole.seconds < seconds:
            best, seconds = setting, whole.seconds
            reference = _run(cluster, config, setting, seconds / 4).loss
    assert best, "no setting of the grid reaches the target"
    return best, seconds


def _run(cluster: Cluster, config: ConfigDict, setting: Setting, seconds: float) -> Outcome:
    start = segments.start(cluster)
    return segments.attempt(cluster, start, setting, seconds, config.tune.target)[1]


def _setting(line: Mapping[str, Any]) -> Setting:
    return Setting(*(line[name] for name in Setting._fields))


def _to_target(row: Mapping[str, Any]) -> float:
    return math.inf if row["seconds_to_target"] is None else row["seconds_to_target"]


def _shown(setting: Setting) -> str:
    return "/".join(f"{value:.3g}" for value in setting)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--workdir", type=Path, default=Path("workdirs/tune"))
    parser.add_argument("--out", type=Path, default=Path("workdirs/tune.json"))
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        jobs = [
            pool.submit(measure, case, seed, arguments.workdir)
            for case in arguments.cases
            for seed in range(arguments.seeds)
        ]
        table = pd.DataFrame([job.result() for job in jobs])
    good, cheap = table["pick"] <= GOOD, table["overhead"] <= OVERHEAD
    about = {"good picks": float(good.mean()), "overhead within bounds": float(cheap.mean())}
    publish(table, arguments.out, **about)
    print(f"{good.sum()} of {len(table)} picks within {GOOD:.0%} of the best;", end=" ")
    print(f"{cheap.sum()} of {len(table)} overheads up to {OVERHEAD:.0%}")


if __name__ == "__main__":
    main()
