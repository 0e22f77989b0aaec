"""The project's search beside a library's: `python -m tests.benchmarks.search`.

Arms of the contest (`analysis/studies/contest.py`), by updates to its last loss, and three ways to
set them:

    axes       the search as it was until November 2026: from one start, one ladder at a time
    ours       `optdyn.evidence.arms.tuned`
    sampler    optuna's TPE on the same ladders, with `TIMES` as many settings as ours tried

Each chooses on the same seeds, the sampler and the axes on the first four. All three settings then
run on `REPORT` seeds that chose nothing. The ratio is of medians, with a 95 % interval from seeds
drawn in pairs: ours are good if the sampler's are never better by more than 5 %. Interrupted, the
same command goes on.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd

from analysis.studies import contest
from optdyn.evidence.arms import SEARCHED, SLACK, Arm, Search, at, point, tuned
from optdyn.evidence.intervals import ratio
from optdyn.evidence.study import Job, Study
from optdyn.evidence.trial import to_loss
from optdyn.grid import Point
from tests.benchmarks.record import publish

ARMS = ("synchronous", "local SGD", "AD-PSGD", "DiLoCo")
CHOOSE, REPORT, TIMES, BETTER = range(16), range(500, 520), 4, 1.05
WIDTH = 8  # rungs on either side of the start that the sampler may take


def axes(study: Study, arm: Arm, target: float) -> Point:
    """The least cost that is found one ladder at a time, from where the arm starts."""
    search, costs = Search(study, arm, target, "updates", "updates"), dict[tuple[int, ...], float]()
    best = tuple(arm.start.values())
    while True:
        every = [best]
        for k in range(len(best)):
            every += [(*best[:k], best[k] + by, *best[k + 1 :]) for by in (-1, 1)]
        new = [rungs for rungs in every if rungs not in costs]
        most = min([arm.config.steps, *(SLACK * cost for cost in costs.values())])
        for rungs, curves in zip(new, search.run(new, CHOOSE[:SEARCHED], most), strict=True):
            costs[rungs] = float(np.median([to_loss(curve, target) for curve in curves]))
        least = min(every, key=costs.__getitem__)
        if least == best or not costs[least] < costs[best]:
            return point(arm, best)
        best = least


def sampled(study: Study, arm: Arm, target: float, settings: int) -> Point:
    """The least cost that TPE finds in so many settings on the arm's ladders."""
    search = Search(study, arm, target, "updates", "updates")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=0)
    asked = optuna.create_study(sampler=sampler)
    asked.enqueue_trial({key: arm.start[key] for key in arm.ladders})
    best = float(arm.config.steps)

    def cost(trial: optuna.Trial) -> float:
        nonlocal best
        rungs = tuple(
            trial.suggest_int(key, arm.start[key] - WIDTH, arm.start[key] + WIDTH)
            for key in arm.ladders
        )
        most = min(SLACK * best, arm.config.steps)
        (curves,) = search.run([rungs], CHOOSE[:SEARCHED], most)
        found = float(np.median([to_loss(curve, target) for curve in curves]))
        best = min(best, found)
        return found if np.isfinite(found) else 10.0 * arm.config.steps

    asked.optimize(cost, n_trials=settings)
    return point(arm, [asked.best_params[key] for key in arm.ladders])


def measure(study: Study, name: str) -> dict[str, Any]:
    """One row of the table."""
    arm, target = contest.arm_of(name), contest.LOSSES[-1]
    ours = tuned(study, arm, target)
    settings: Mapping[str, Point] = {
        "axes": axes(study, arm, target),
        "ours": ours.point,
        "sampler": sampled(study, arm, target, TIMES * len(ours.tried)),
    }
    times = {
        way: [
            to_loss(curve, target)
            for curve in study.trials(Job(at(arm.config, setting, seed), target) for seed in REPORT)
        ]
        for way, setting in settings.items()
    }
    row: dict[str, Any] = {"arm": name, "tried": len(ours.tried), "interior": ours.interior}
    for way, setting in settings.items():
        row |= {way: float(np.median(times[way])), f"{way}, set": _shown(setting)}
    for way in ("axes", "sampler"):
        row[f"{way} / ours"], row[f"{way} low"], row[f"{way} high"] = ratio(
            times[way], times["ours"]
        )
    row["range"] = {key: [f"{x:.3g}" for x in ends] for key, ends in ours.range.items()}
    row["good"] = row["sampler / ours"] >= 1 / BETTER
    return row


def _shown(setting: Point) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value:.4g}" for key, value in setting.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--workdir", type=Path, default=Path("workdirs/search"))
    parser.add_argument("--arms", default=",".join(ARMS))
    default = Path(__file__).with_name("records") / "search.json"
    parser.add_argument("--out", type=Path, default=default)
    given = parser.parse_args()
    with Study(given.workdir, "search", CHOOSE, REPORT) as study:
        names = given.arms.split(";" if ";" in given.arms else ",")
        rows = study.map(lambda name: measure(study, name), names)
    table = pd.DataFrame(rows)
    publish(table, given.out, benchmark="search", times=TIMES)


if __name__ == "__main__":
    main()
