"""Claim 19 at 1 Gb/s, its opponents' batch chosen: is a typical method faster?

DiLoCo and top-k were there in claim 66; the other six are new on a residual network
(`configs/serverless.py`).
"""

from typing import Any

from optdyn.configs import contest, serverless
from optdyn.configs.papers import contest_resnet
from optdyn.configs.serverless import verdict
from optdyn.configs.slow_network import RESNET
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.contest import picture
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
NETWORK = contest.JUDGED
CLAIM = serverless.claim(
    69,
    contest_resnet.CLAIM,
    NETWORK,
    "DiLoCo takes 0.76 and top-k 0.994 there (claim 66)",
)


def measure(study: Study) -> dict[str, Any]:
    return measured(study, serverless.of_arms(RESNET, NETWORK))
