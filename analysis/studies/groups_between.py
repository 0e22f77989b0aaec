"""A predicted number of groups between one and all, against both ends (`_groups.py`)."""

from typing import Any

from analysis.studies._groups import GROUPS, measure, picture
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import mean_ratio, shown

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}
ENDS = (GROUPS[0], GROUPS[-1])

CLAIM = Claim(
    number=32,
    sentence="Where a number of groups strictly between one and all is predicted, it is faster "
    "than both",
    source="arXiv 1606.04487, Sections 4 and 5; claim 4, whose rule asks for one cell of many",
    measured="simulated seconds to a training loss of 0.25 of the MLP 784-32-10 on 4,000 MNIST "
    "images, batches 4, 16, 64, 1 to 16 groups of 16 memoryless workers on four clusters",
    opponent="the better of one group and 16, by the seeds that choose; every number of groups "
    "with its own rate and momentum, interior",
    rule="In the cells in which the model predicts 2, 4 or 8 groups: of the predicted number's "
    "median seconds over those of the better end, in the geometric mean over these cells, with a "
    "95 % interval from the seeds that report, 20, drawn again in all alike: confirmed if the "
    "interval is below 1, refuted if it is above, open otherwise, or if there is no such cell",
)


def verdict(result: dict[str, Any]) -> Verdict:
    rows = [row for row in result["rows"] if row["picked"] not in ENDS]
    if not rows:
        return Verdict("open", "no number between is predicted in any cell")
    ends = [min(ENDS, key=lambda g: row["chosen_by"][str(g)]) for row in rows]
    picked = [row["seconds"][str(row["picked"])] for row in rows]
    best = [row["seconds"][str(end)] for row, end in zip(rows, ends, strict=True)]
    found = mean_ratio(picked, best)
    cells = "; ".join(
        f"{row['cluster']}, batch {row['batch']}: {row['picked']} groups take "
        f"{shown(mean_ratio([a], [b]))} of {end}'s"
        for row, end, a, b in zip(rows, ends, picked, best, strict=True)
    )
    return Verdict(
        below(found, 1.0), f"{shown(found)} of the seconds ({cells}; n = {len(best[0])})"
    )
