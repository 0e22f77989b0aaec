"""Claim 59 on 80 new seeds: does rate times curvature predict the fifth optimizer within 1.25?

Twenty seeds left it open, at 1.34 [1.22, 1.43]. Settings, law, and what is measured are the same.
"""

from optdyn.configs.papers import law_of_curvature
from optdyn.configs.papers.law_of_curvature import measure, picture, verdict
from optdyn.evidence.claim import Claim

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (0, 80), "full": (0, 80)}

CLAIM = Claim(
    number=64,
    sentence=law_of_curvature.CLAIM.sentence,
    source="claim 59, which 20 seeds left open",
    measured=law_of_curvature.CLAIM.measured,
    opponent=law_of_curvature.CLAIM.opponent,
    rule=law_of_curvature.CLAIM.rule.replace("the seeds that report, 20,", "80 seeds,"),
)
