"""Whether momentum below 0 is better than none for 16 groups: of claim 2, as an estimate.

Problems and tuning are those of `best_momentum.py`.
"""

from typing import Any

from optdyn.configs.papers.best_momentum import TARGETS, measure, picture
from optdyn.configs.papers.momentum_falls import updates
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import mean_ratio, shown

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}

CLAIM = Claim(
    number=31,
    sentence="With 16 groups explicit momentum below 0 is better than none",
    source="arXiv 1605.09774, Section 4; claim 2",
    measured="updates to a loss with 16 memoryless groups, as of claim 30",
    opponent="momentum 0, with its own learning rate, interior",
    rule="The momentum below 0 is the best of -0.8, -0.6, -0.3 by the seeds that choose, 4. Of its "
    "median updates over those of momentum 0, in the geometric mean over both problems, with a 95 "
    "% interval from the seeds that report, 20, drawn again in all alike: confirmed if the "
    "interval is below 1, refuted if it is above, open otherwise",
)


def verdict(result: dict[str, Any]) -> Verdict:
    chosen = [result["found"][name]["below"] for name in TARGETS]
    negative = [updates(result, *each) for each in zip(TARGETS, chosen, strict=True)]
    none = [updates(result, name, 0.0) for name in TARGETS]
    found = mean_ratio(negative, none)
    each = "; ".join(
        f"{name}: {m:g} takes {shown(mean_ratio([a], [b]))}"
        for name, m, a, b in zip(TARGETS, chosen, negative, none, strict=True)
    )
    return Verdict(
        below(found, 1.0), f"{shown(found)} of the updates of none ({each}; n = {len(none[0])})"
    )
