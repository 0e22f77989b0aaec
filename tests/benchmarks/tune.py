"""`launch.tune` against tuned synchronous training: `python -m tests.benchmarks.tune`.

Every case of `configs/tune.py`, seeds 0, 1, 2. Two fixed settings are tuned on the seeds 3 and 4,
by pattern search until both neighbours on every ladder are worse: of one group, momentum and
learning rate (`synchronous`); of any groups, those too (`best`). On the reporting seeds, in
simulated seconds to the target,

    MODE           with its probes and measurements, over the tuned synchronous without any
    BASELINE       the same: other ways to choose, with as many seconds of probes as the mode
    pick           the setting that the mode trained for longest, alone from the start, over `best`

Where asynchrony cannot win by the rule of `configs/tune.py` the default mode is to be at most 1.15
in the median, where it can, at most 0.8, and every run is to arrive; a pick is good within a tenth.
Interrupted, the same command goes on.
"""

import argparse
import math
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd

from configs import tune as cases
from launch.tune import tune
from research.evidence import arms
from research.evidence.study import Study, cores
from research.tuning import segments
from research.tuning.setting import Setting
from tests.benchmarks.record import publish

CHOOSE, REPORT = (3, 4), (0, 1, 2)
GOOD, CANNOT, CAN = 1.1, 1.15, 0.8
STEPS = 8000  # of a trial, at most
START = {8: (0.125, 0.0), 64: (1.0, 0.9)}  # by batch: long-run step and momentum, searched from
LONGER = 5
GROUPS = "strategy.groups"


def fixed(study: Study, case: str) -> dict[str, Any]:
    """The best setting of one group and the best of all, each with whether it is interior."""
    config = cases.get_config(case)
    config.strategy.groups, config.steps = 1, STEPS
    one = arms.sgd(config, *START[config.batch_size])
    many = one._replace(
        ladders={GROUPS: groups, **one.ladders},
        start={GROUPS: 2 if cases.can_win(case) else 0, **one.start},
    )
    found = {}
    for name, arm in (("synchronous", one), ("best", many)):
        tuned = arms.tuned(study, arm, config.tune.target, "seconds")
        found[name] = {**tuned.point, "interior": tuned.interior}
    return found


def groups(i: int) -> int:
    """1, 2, 4, ... as many as there are workers."""
    return min(2 ** max(i, 0), cases.WORKERS)


def seconds(case: str, seed: int, setting: Setting) -> float:
    """Of this setting alone, from the start to the target, at the log points of `launch.tune`."""
    config = cases.get_config(case)
    config.seed = seed
    cluster = segments.prepare(config)
    start, target = segments.start(cluster), config.tune.target
    _, outcome = segments.attempt(cluster, start, setting, config.tune.seconds, target)
    return outcome.seconds if outcome.reached else math.inf


def measure(
    case: str, seed: int, modes: Sequence[str], best: dict[str, Any], workdir: Path
) -> dict[str, Any]:
    """One row of the table."""
    one, any_ = (_setting(best[name]) for name in ("synchronous", "best"))
    least, synchronous = seconds(case, seed, any_), seconds(case, seed, one)
    row = {
        "case": case,
        "can win": cases.can_win(case),
        "seed": seed,
        "synchronous s": synchronous,
        "best": _shown(any_),
        "best s": least,
        "interior": best["synchronous"]["interior"] and best["best"]["interior"],
    }
    for number, mode in enumerate(modes):
        config = cases.get_config(case)
        config.seed, config.tune.mode = seed, mode
        if number:
            config.tune.baselines = ()
        if mode == "omnivore":  # all of its epochs are equally long
            config.tune.epoch_seconds *= LONGER
        methods = tune(config, workdir / f"{case}-{seed}-{mode}")["methods"]
        for name, its in ((its["method"], its) for its in methods):
            row[name] = _reached(its["with_probes"]) / synchronous
        row[f"{mode} overhead"] = methods[0]["overhead"]
        row[f"{mode} picked"] = methods[0]["picked"]
        row[f"{mode} pick"] = seconds(case, seed, _parsed(methods[0]["picked"])) / least
    return row


def _setting(found: dict[str, Any]) -> Setting:
    return Setting(found.get(GROUPS, 1), found[arms.MOMENTUM], found[arms.RATE])


def _parsed(shown: str) -> Setting:
    g, momentum, rate = shown.split("/")
    return Setting(int(g), float(momentum), float(rate))


def _shown(setting: Setting) -> str:
    return "/".join(f"{value:.3g}" for value in setting)


def _reached(value: float | None) -> float:
    return math.inf if value is None else value


def _pinned(numbers: Any) -> None:
    """A process to a core: threads that share cores take several times as long."""
    os.sched_setaffinity(0, {numbers.get()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=cases.CASES, default=cases.CASES)
    parser.add_argument("--modes", nargs="+", default=("predictive", "omnivore"))
    parser.add_argument("--choose", nargs="+", type=int, default=CHOOSE)
    parser.add_argument("--report", nargs="+", type=int, default=REPORT)
    parser.add_argument("--workdir", type=Path, default=Path("workdirs/tune"))
    parser.add_argument("--out", type=Path, default=Path("tests/benchmarks/records/tune_cpu.json"))
    given = parser.parse_args()
    with Study(given.workdir, "small", given.choose, given.report) as study:
        best = dict(
            zip(given.cases, study.map(lambda c: fixed(study, c), given.cases), strict=True)
        )
    context = multiprocessing.get_context("spawn")
    numbers = context.Queue()
    for core in sorted(os.sched_getaffinity(0)):
        numbers.put(core)
    with ProcessPoolExecutor(cores(), context, _pinned, (numbers,)) as pool:
        jobs = [
            pool.submit(measure, case, seed, given.modes, best[case], given.workdir)
            for case in given.cases
            for seed in given.report
        ]
        table = pd.DataFrame([job.result() for job in jobs])
    default = table[given.modes[0]]
    can = table["can win"].astype(bool)
    found = {
        "cannot win, median": float(default[~can].median()),
        "can win, median": float(default[can].median()),
        "not arriving": int((default == math.inf).sum()),
        "good picks": float((table[f"{given.modes[0]} pick"] <= GOOD).mean()),
    }
    publish(table, given.out, **found)
    print(found)


if __name__ == "__main__":
    main()
