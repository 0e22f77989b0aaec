"""Is the combination faster than its parts and than the best synchronous training?

What is measured, and the rule, are in `configs/combined.py`.
"""

from typing import Any

from optdyn.configs import combined, contest
from optdyn.configs.combined import verdict
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.contest import picture
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

CLAIM = combined.claim(51, "free")
LONG, SEEDS = True, contest.SEEDS


def measure(study: Study) -> dict[str, Any]:
    return measured(study, combined.of("free"))
