"""Claim 20 at 1 Gb/s, its opponents' batch chosen: is a typical method faster?

Gossip, PowerSGD, AD-PSGD, DiLoCo and top-k were there in claims 61 and 65; local SGD, SlowMo and
DASO are new on text (`configs/serverless.py`).
"""

from typing import Any

from optdyn.configs import contest, serverless
from optdyn.configs.papers import contest_text
from optdyn.configs.serverless import verdict
from optdyn.configs.slow_network import TEXT
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.contest import picture
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
NETWORK = contest.JUDGED
CLAIM = serverless.claim(
    68,
    contest_text.CLAIM,
    NETWORK,
    "five of the eight take 0.63, 0.66, 0.89, 0.93 and 1.19 there (claims 61 and 65)",
)


def measure(study: Study) -> dict[str, Any]:
    return measured(study, serverless.of_arms(TEXT, NETWORK))
