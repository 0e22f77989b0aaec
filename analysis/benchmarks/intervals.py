"""The share of intervals that contain the truth: `python -m analysis.benchmarks.intervals`.

Made-up studies have two arms of `SETTINGS` rungs. A setting's log median grows with the squared
distance from the best rung, and log-normal times share half of their variance with their seed.
`CHOOSE` seeds choose and `REPORT` seeds report; the truth is the ratio of the best medians:

    plain       the interval of `ratio`, which knows nothing of how settings were chosen
    at best     that of `ratio_at_best`, which draws the seeds that choose again too
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.benchmarks.record import RECORDS, options, publish
from optdyn.evidence.intervals import ratio, ratio_at_best

SETTINGS, CHOOSE, REPORT = 9, 4, 20
CURVES = (0.005, 0.1)  # of the logarithm of a median, by the squared distance in rungs
DEVIATIONS = (0.05, 0.3)  # of the logarithm of a time
RATIO, SHARED = 0.8, 0.5  # of the arms' least medians; of the variance that is of the seed
STUDIES = 2000
AIM = (0.93, 0.97)
Interval = tuple[float, float, float]


class SimulatedArm(NamedTuple):
    report: np.ndarray  # (REPORT,) times at the chosen setting
    tried: np.ndarray  # (SETTINGS, CHOOSE) times
    best: float  # median at the best setting


def study(
    rng: np.random.Generator, curve: float, deviation: float
) -> tuple[SimulatedArm, SimulatedArm]:
    """Returns two arms on the same seeds."""
    seeds = rng.normal(size=CHOOSE + REPORT) * deviation * np.sqrt(SHARED)
    rungs, sides = np.arange(SETTINGS), list[SimulatedArm]()
    for least in (RATIO, 1.0):
        medians = least * np.exp(curve * (rungs - rng.uniform(2, SETTINGS - 3)) ** 2)
        noise = rng.normal(size=(SETTINGS, len(seeds))) * deviation * np.sqrt(1 - SHARED)
        times = medians[:, None] * np.exp(seeds + noise)
        tried = times[:, :CHOOSE]
        chosen = np.median(tried, axis=1).argmin()
        sides.append(SimulatedArm(times[chosen, CHOOSE:], tried, float(medians.min())))
    return sides[0], sides[1]


WAYS: dict[str, Callable[[SimulatedArm, SimulatedArm], Interval]] = {
    "plain": lambda a, b: ratio(a.report, b.report),
    "at best": lambda a, b: ratio_at_best(a.report, b.report, a.tried, b.tried),
}


def measure(studies: int, seed: int = 0) -> pd.DataFrame:
    """Returns a row a way: the share of intervals with the truth in them, and the median width."""
    rng = np.random.default_rng(seed)
    found = dict[str, list[Interval]]({way: [] for way in WAYS})
    truths = list[float]()
    for _ in range(studies):
        curve, deviation = (np.exp(rng.uniform(*np.log(ends))) for ends in (CURVES, DEVIATIONS))
        one, other = study(rng, float(curve), float(deviation))
        truths.append(one.best / other.best)
        for way, interval in WAYS.items():
            found[way].append(interval(one, other))
    rows = []
    for way, intervals in found.items():
        _, low, high = np.transpose(intervals)
        covered = float(np.mean((low <= truths) & (truths <= high)))
        width = float(np.median(high / low))
        row = {"interval": way, "studies": studies, "covered": covered, "high / low": width}
        rows.append({**row, "below": float(np.mean(high < truths))})
    return pd.DataFrame(rows)


def main() -> None:
    parser = options(__doc__, RECORDS / "intervals.json")
    parser.add_argument("--studies", type=int, default=STUDIES)
    arguments = parser.parse_args()
    publish(measure(arguments.studies), arguments.out, benchmark="intervals", aim=AIM)


if __name__ == "__main__":
    main()
