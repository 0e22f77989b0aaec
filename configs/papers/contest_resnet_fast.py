"""Claim 50 on a still faster network: do DiLoCo or top-k win on a residual network at 1 Gb/s?

Arms, opponents, seeds and procedure are claim 50's (`configs/slow_network.py`), so that its trials
are found again. Only the network is another, with ten times the bandwidth. An MLP had no winner
there, text had top-k (claim 61).
"""

from typing import Any

from optdyn.configs import contest, slow_network
from optdyn.configs.papers import contest_resnet
from optdyn.configs.slow_network import RESNET, verdict
from optdyn.evidence.contest import measure as measured
from optdyn.evidence.contest import picture
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, contest.SEEDS
FAST = contest.JUDGED
OLD = contest_resnet.CLAIM
CLAIM = OLD._replace(
    number=66,
    sentence=OLD.sentence.replace("twenty times", "twice"),
    source="here; claim 50 asked it of the network with a tenth of the bandwidth",
    measured=OLD.measured.replace(slow_network.SLOW, FAST),
)


def measure(study: Study) -> dict[str, Any]:
    return measured(study, slow_network.of_smaller(RESNET, FAST))
