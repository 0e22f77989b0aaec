"""The time at the predicted number of groups, over that at the best number (`_groups.py`)."""

from typing import Any

from analysis.studies._groups import GROUPS, measure, picture
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import mean_ratio, shown

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS, BOUND = True, {"small": (4, 20), "full": (4, 20)}, 1.1

CLAIM = Claim(
    number=33,
    sentence="The number of groups that is predicted from one synchronous run takes at most a "
    "tenth more time than the best",
    source="arXiv 1606.04487, Section 5; claim 4",
    measured="simulated seconds to a training loss of 0.25 of the MLP 784-32-10 on 4,000 MNIST "
    "images, batches 4, 16, 64, 1 to 16 groups of 16 memoryless workers on four clusters: 12 cells",
    opponent="the number of groups of the least median seconds on the seeds that choose, 4; every "
    "number with its own rate and momentum, interior",
    rule="Of the predicted number's median seconds over those of the best, in the geometric mean "
    "over the 12 cells, with a 95 % interval from the seeds that report, 20, drawn again in all "
    "alike: confirmed if the interval is below 1.1, refuted if it is above, open otherwise",
)


def verdict(result: dict[str, Any]) -> Verdict:
    rows = result["rows"]
    picked, best = (
        [row["seconds"][str(row[which])] for row in rows] for which in ("picked", "best")
    )
    found = mean_ratio(picked, best)
    same = sum(row["picked"] == row["best"] for row in rows)
    worst = max(row["picked over best"][0] for row in rows)
    interior = sum(all(row["interior"].values()) for row in rows)
    return Verdict(
        below(found, BOUND),
        f"{shown(found)} of the best's seconds, {worst:.2f} at worst; the same number in {same} of "
        f"{len(rows)} cells (all {len(GROUPS)} numbers interior in {interior}, n = "
        f"{len(best[0])})",
    )
