"""Claim 19 at 0.1 Gb/s, its opponents' batch chosen: is a typical method faster?

DiLoCo and top-k were there in claim 50. Steps and momenta of the others were tuned for claim
69, whose trials are found again (`configs/serverless.py`).
"""

from typing import Any

from optdyn.configs import contest, serverless, slow_network
from optdyn.configs.papers import contest_resnet
from optdyn.configs.serverless import verdict
from optdyn.configs.slow_network import RESNET
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.contest import picture
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
NETWORK = slow_network.SLOW
CLAIM = serverless.claim(
    72,
    contest_resnet.CLAIM,
    NETWORK,
    "DiLoCo takes 0.53 and top-k 0.55 there (claim 50)",
)


def measure(study: Study) -> dict[str, Any]:
    return measured(study, serverless.of_arms(RESNET, NETWORK))
