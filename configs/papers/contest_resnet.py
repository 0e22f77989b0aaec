"""Claim 19 with opponents that choose their batch: does a slow network's best arm win on a
residual network?

The contest's procedure on a smaller residual network than the race's (`configs/slow_network.py`).
"""

from typing import Any

from optdyn.configs import contest, slow_network
from optdyn.configs.slow_network import RESNET, verdict
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.contest import picture
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
CLAIM = slow_network.claim(
    50,
    RESNET,
    "of claim 19, whose opponent had two batches to choose from",
    "a residual network of 4 and 8 channels on 4,000 MNIST images of 14 x 14, SGD with momentum",
    "momentum",
)


def measure(study: Study) -> dict[str, Any]:
    return measured(study, slow_network.of_smaller(RESNET))
