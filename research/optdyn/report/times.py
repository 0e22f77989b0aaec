"""Time to a loss, of every loss: a target is one choice among many, and this shows the others."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from optdyn.report import efficiency
from optdyn.report.figures import LossCurve

LOSSES = 40
CLOCKS = {"updates": "updates", "seconds": "simulated seconds"}


def lowest(curve: LossCurve) -> float:
    """Training loss that its median run gets to."""
    return float(curve.log.groupby("point")["train_loss"].min().median())


def targets(curves: Sequence[LossCurve]) -> np.ndarray:
    """Losses, ascending, from the lowest that a curve gets to, to just below every start.

    In equal ratios, or in equal steps if they are not all above 0; empty if nothing is learnt.
    """
    log = pd.concat([curve.log for curve in curves]).dropna(subset=["train_loss"])
    start = log.groupby("point")["train_loss"].first().min()
    end = min(map(lowest, curves))
    if not end < start:
        return np.empty(0)
    space = np.geomspace if end > 0 else np.linspace
    return space(end, start, LOSSES + 1)[:-1]


def table(curve: LossCurve, losses: np.ndarray, clock: str) -> pd.DataFrame:
    """`loss`, and the `median`, `low` and `high` over seeds of the updates or seconds to it.

    Infinite where a seed does not get there; one that diverged never does.
    """
    place, lost = list(CLOCKS).index(clock), np.full_like(losses, np.inf)
    gone = set(curve.runs.loc[curve.runs["status"] == "diverged", "point"])
    every = [
        lost if point in gone else [it.value[place] for it in efficiency.crossings(log, losses)]
        for point, log in curve.log.groupby("point")
    ]
    taken = np.array(every, float)
    return pd.DataFrame(
        {
            "loss": losses,
            "median": np.median(taken, axis=0),
            "low": taken.min(axis=0),
            "high": taken.max(axis=0),
        }
    )
