"""Claim 47 on 300 new seeds: daso+asynchronous against the best of its opponents."""

from typing import Any

from optdyn.configs import combined
from optdyn.configs.combined import FIRST, MOST, picture_again, verdict_again
from optdyn.configs.contest import Chose
from optdyn.evidence.arms import MOMENTUM, RATE
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (0, 300), "full": (0, 300)}
JOINED, OTHER = "daso+asynchronous", FIRST
SETTINGS = {
    JOINED: Chose(JOINED, {"batch_size": 8, MOST: 64}, {RATE: 0.025, MOMENTUM: 0.6}),
    OTHER: Chose(OTHER, {"batch_size": 64, "strategy.arrivals": 2}, {RATE: 0.1, MOMENTUM: 0.8}),
}
CLAIM = combined.claim_again(49, "eight", 47, OTHER)
picture, verdict = picture_again, verdict_again


def measure(study: Study) -> dict[str, Any]:
    return combined.measure_again(study, "eight", SETTINGS)
