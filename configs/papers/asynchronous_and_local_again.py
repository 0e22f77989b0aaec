"""Claim 51 on 300 new seeds: asynchronous+local against the best of its opponents."""

from typing import Any

from optdyn.configs import combined
from optdyn.configs.combined import FIRST, picture_again, verdict_again
from optdyn.configs.contest import Chose
from optdyn.evidence.arms import MOMENTUM, RATE
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (0, 300), "full": (0, 300)}
JOINED, OTHER = "asynchronous+local", FIRST
SETTINGS = {
    JOINED: Chose(JOINED, {"batch_size": 8}, {RATE: 0.1625, MOMENTUM: -0.3}),
    OTHER: Chose(OTHER, {"batch_size": 64, "strategy.arrivals": 1}, {RATE: 0.1, MOMENTUM: 0.8}),
}
CLAIM = combined.claim_again(53, "free", 51, OTHER)
picture, verdict = picture_again, verdict_again


def measure(study: Study) -> dict[str, Any]:
    return combined.measure_again(study, "free", SETTINGS)
