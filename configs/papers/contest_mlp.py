"""The contest on an MLP: what is left of the race where every arm has its best batch.

What is measured, and the rule, are in `configs/contest.py`.
"""

from typing import Any

from optdyn.configs import contest
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.contest import picture, verdict
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

CLAIM = contest.claim(24, "mlp")
LONG, SEEDS = True, contest.SEEDS


def measure(study: Study) -> dict[str, Any]:
    return measured(study, contest.contest("mlp"))
