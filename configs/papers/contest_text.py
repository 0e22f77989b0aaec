"""Claim 20 with opponents that choose their batch: does a slow network's best arm win on text?

The contest's procedure on a smaller transformer than the race's (`configs/slow_network.py`).
"""

from typing import Any

from optdyn.configs import contest, slow_network
from optdyn.configs.slow_network import TEXT, verdict
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.contest import picture
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
CLAIM = slow_network.claim(
    43,
    TEXT,
    "of claim 20, whose opponent had two batches to choose from",
    "a transformer of 2 blocks, 16 wide, on 4,000 sequences of 32 characters of the King James "
    "Bible, Adam",
    "b1",
)


def measure(study: Study) -> dict[str, Any]:
    return measured(study, slow_network.of_smaller(TEXT))
