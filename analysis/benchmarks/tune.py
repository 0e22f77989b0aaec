"""`launch.tune` against tuned synchronous training: `python -m analysis.benchmarks.tune`.

Two fixed settings of each case of `configs/tune.py` are tuned on seeds 3 and 4: of one group
(`synchronous`), and of any number (`best`). On other seeds, in simulated seconds to the target:

    MODE           with its probes and measurements, over the tuned synchronous without any
    pick           the setting that the mode first trained with, from the start, over `best`
    at 4x, 2x      the mode, and the best fixed setting, over the synchronous one, to 4 and 2 times
                   the target

The default mode should be at most 1.15 in the median where asynchrony cannot win by the rule of
`configs/tune.py`, and 0.8 where it can; a pick is good within a tenth. In drawn cases it can win
where the best fixed setting takes at most 0.8. Interrupted, the same command goes on.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.benchmarks.record import RECORDS, options, publish
from analysis.studies.automatic_speedup import (
    START,
    STEPS,
    attempt,
    of_mode,
    seconds_to_target,
    setting,
)
from configs import tune as cases
from optdyn.base.files import read_rows
from optdyn.base.trees import Json
from optdyn.cli.tune import result, tune
from optdyn.evidence import arms
from optdyn.evidence.study import Study, cores, pool_on_cores
from optdyn.experiment import Config
from optdyn.tune.choice import Choice

Curve = Sequence[Sequence[float]]

CHOOSE, REPORT = (3, 4), (30, 31, 32)
GOOD = 1.1  # of a pick, over the best fixed setting
ON_THE_WAY = 4, 2  # times the target
PAYS = 0.8  # of the drawn cases: the best fixed setting over the synchronous one


def fixed(study: Study, case: str) -> dict[str, Any]:
    """Returns the best setting of one group and of all numbers, and whether both are interior."""
    config = cases.get_config(case)
    found = {1: tuned(study, config, 1)}
    pace, g = cases.pace(config, 1), 2
    while config.cluster.nodes % g == 0:
        if cases.pace(config, g) < pace / 1.1:
            pace, found[g] = cases.pace(config, g), tuned(study, config, g)
        g *= 2
    best = min(found, key=lambda g: found[g].cost)
    settings = {"synchronous": setting(found[1]), "best": setting(found[best], best)}
    return settings | {"interior": all(found[g].interior for g in (1, best))}


def tuned(study: Study, config: Config, groups: int) -> arms.Tuned:
    step, momentum = START[8 if config.batch_size <= 16 else 64]
    chosen = config.with_({"method.groups": groups}, steps=STEPS)
    arm = arms.sgd(chosen, step / groups**0.5, momentum if groups == 1 else 0.0)
    return arms.tuned(study, arm, config.tune.target, "seconds")


def measure(
    case: str, seed: int, modes: Sequence[str], best: dict[str, Any], workdir: Path
) -> dict[str, Any]:
    config = cases.get_config(case)
    target = config.tune.target
    fixed = {name: attempt(config, seed, best[name]).curve for name in ("synchronous", "best")}
    opponent, least = (_first(curve, target) for curve in fixed.values())
    row = {
        "case": case,
        "seed": seed,
        "synchronous s": opponent,
        "best": _shown(best["best"]),
        "best s": least,
        "interior": best["interior"],
    }
    opponents = {times: _first(fixed["synchronous"], times * target) for times in ON_THE_WAY}
    for times, seconds in opponents.items():
        row[f"best at {times}x"] = _first(fixed["best"], times * target) / seconds
    for mode in modes:
        folder = workdir / f"{case}-{seed}-{mode}"
        found = tune(of_mode(case, mode).with_(seed=seed), folder)["tuned"]
        lines = read_rows(folder / "decisions.jsonl")
        row[mode] = _reached(found["with_probes"]) / opponent
        row[f"{mode} overhead"] = found["overhead"]
        row[f"{mode} picked"] = found["picked"]
        row[f"{mode} pick"] = seconds_to_target(config, seed, _parsed(found["picked"])) / least
        for times, seconds in opponents.items():
            row[f"{mode} at {times}x"] = _with_probes(lines, times * target) / seconds
    return row


def can_win(table: pd.DataFrame) -> pd.Series:
    """Returns whether asynchrony can win, by row: by `configs/tune.py`, or a drawn case's seeds."""
    gain = (table["best s"] / table["synchronous s"]).groupby(table["case"]).transform("median")
    known = {case: cases.can_win(case) for case in set(table["case"]) & set(cases.CASES)}
    return pd.Series([known.get(c, g <= PAYS) for c, g in zip(table["case"], gain, strict=True)])


def _first(curve: Curve, loss: float) -> float:
    return next((seconds for seconds, seen in curve if seen <= loss), math.inf)


def _with_probes(lines: Sequence[Json], loss: float) -> float:
    """Returns the seconds of a mode to a loss, with its probes until then."""
    for i, line in enumerate(lines):
        seconds = _first(line.get("curve", ()), loss)
        if seconds < math.inf:
            until = {**line, "seconds": seconds, "reached": True}
            return float(result([*lines[:i], until])["with_probes"])
    return math.inf


def _parsed(shown: str) -> Choice:
    g, momentum, rate = shown.split("/")
    return Choice(int(g), float(momentum), float(rate))


def _shown(setting: Choice) -> str:
    return "/".join(f"{value:.3g}" for value in setting)


def _reached(value: float | None) -> float:
    return math.inf if value is None else value


def main() -> None:
    parser = options(__doc__, RECORDS / "tune_cpu.json")
    parser.add_argument(
        "--cases", nargs="+", choices=(*cases.CASES, *cases.DRAWN), default=cases.CASES
    )
    parser.add_argument("--modes", nargs="+", default=("predictive", "omnivore"))
    parser.add_argument("--choose", nargs="+", type=int, default=CHOOSE)
    parser.add_argument("--report", nargs="+", type=int, default=REPORT)
    parser.add_argument("--workdir", type=Path, default=Path("workdirs/tune"))
    arguments = parser.parse_args()
    with Study(arguments.workdir, "small", arguments.choose, arguments.report) as study:
        settings = study.map(lambda case: fixed(study, case), arguments.cases)
    best = dict(zip(arguments.cases, settings, strict=True))
    with pool_on_cores(cores()) as pool:
        jobs = [
            pool.submit(measure, case, seed, arguments.modes, best[case], arguments.workdir)
            for case in arguments.cases
            for seed in arguments.report
        ]
        table = pd.DataFrame([job.result() for job in jobs])
    default, can = table[arguments.modes[0]], can_win(table)
    table.insert(1, "can win", can)
    found = {
        "cannot win, median": float(default[~can].median()),
        "can win, median": float(default[can].median()),
        "not arriving": int((default == math.inf).sum()),
        "good picks": float((table[f"{arguments.modes[0]} pick"] <= GOOD).mean()),
    }
    publish(table, arguments.out, **found)
    print(found)


if __name__ == "__main__":
    main()
