"""Claim 46 on 300 new seeds: daso+dynamic_batch against the best of its opponents."""

from typing import Any

from optdyn.configs import combined
from optdyn.configs.combined import MOST, picture_again, verdict_again
from optdyn.configs.contest import Chose
from optdyn.evidence.arms import MOMENTUM, RATE
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (0, 300), "full": (0, 300)}
JOINED, OTHER = "daso+dynamic_batch", "dynamic_batch"
SETTINGS = {
    JOINED: Chose(JOINED, {"batch_size": 32, MOST: 1}, {RATE: 0.2, MOMENTUM: 0.6}),
    OTHER: Chose(OTHER, {"batch_size": 64}, {RATE: 0.2, MOMENTUM: 0.6}),
}
CLAIM = combined.claim_again(48, "unequal", 46, OTHER)
picture, verdict = picture_again, verdict_again


def measure(study: Study) -> dict[str, Any]:
    return combined.measure_again(study, "unequal", SETTINGS)
