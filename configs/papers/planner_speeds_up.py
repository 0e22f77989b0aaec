"""Claim 9 as one estimate against one bound, on 120 seeds: does planning speed up real training?

Of 5 seeds its interval was [0.842, 1.49] around 1.08. If that is the ratio, about 120 seeds tell it
from 1. What is measured is `planner`'s: seconds by the wall clock on all cores, in turn.
"""

from typing import Any

from optdyn.configs.papers import planner
from optdyn.configs.papers.planner import DEFAULT, is_default, measure, picture
from optdyn.evidence.claim import Claim, Verdict, above
from optdyn.evidence.intervals import ratio, shown

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (4, 120), "full": (4, 120)}
BOUND = 1.05  # less is no speed-up that anybody would plan for

CLAIM = Claim(
    number=44,
    sentence="Choosing the mini-batch and the algorithms of convolutions makes real training at "
    "least 5 % faster",
    source=f"{planner.CLAIM.source}; claim 9, which 5 seeds left open",
    measured=planner.CLAIM.measured,
    opponent=f"{planner.CLAIM.opponent}. The plan knows 4 seeds at three mini-batches",
    rule="Of the default's seconds over the plan's, in medians over the seeds that report, 120, "
    "with a 95 % interval from seeds drawn in pairs: confirmed if the interval is above 1.05, "
    "refuted if it is below, open otherwise. Where the plan is the default, the ratio is 1",
)


def verdict(result: dict[str, Any]) -> Verdict:
    seconds, (batch, lowering) = result["seconds"], result["arms"]["planned"]
    same = is_default(result)
    found = (1.0, 1.0, 1.0) if same else ratio(seconds["default"], seconds["planned"])
    told = "the plan is the default" if same else f"the plan is mini-batch {batch} with {lowering}"
    said = f"mini-batch {DEFAULT} takes {shown(found)} of the planned one's seconds; {told}"
    return Verdict(above(found, BOUND), f"{said} (n = {len(seconds['default'])})")
