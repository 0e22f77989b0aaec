"""Claim 50 on a faster network: do DiLoCo or top-k win on a residual network at 0.3 Gb/s, too?

Arms, opponents, seeds and procedure are claim 50's (`configs/slow_network.py`), so that its trials
are found again. Only the network is another, with three times the bandwidth.
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
BETWEEN = "0.3 Gb/s"
OLD = contest_resnet.CLAIM
CLAIM = OLD._replace(
    number=63,
    sentence=OLD.sentence.replace("twenty", "6.7"),
    source="here; claim 50 asked it of the network with a third of the bandwidth",
    measured=OLD.measured.replace(slow_network.SLOW, BETWEEN),
)


def measure(study: Study) -> dict[str, Any]:
    return measured(study, slow_network.of_smaller(RESNET, BETWEEN))
