"""Claim 20 at 0.1 Gb/s, its opponents' batch chosen: is a typical method faster?

DiLoCo and top-k were there in claim 61. Steps and momenta of the others were tuned for claim
68, whose trials are found again (`configs/serverless.py`).
"""

from typing import Any

from optdyn.configs import contest, serverless, slow_network
from optdyn.configs.papers import contest_text
from optdyn.configs.serverless import verdict
from optdyn.configs.slow_network import TEXT
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.contest import picture
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
NETWORK = slow_network.SLOW
CLAIM = serverless.claim(
    71,
    contest_text.CLAIM,
    NETWORK,
    "DiLoCo takes 0.41 and top-k 0.31 there (claim 61)",
)


def measure(study: Study) -> dict[str, Any]:
    return measured(study, serverless.of_arms(TEXT, NETWORK))
