"""Claim 21 under two laws that it left out: moderate log-normal times, and outages.

The arms, the network and the procedure are claim 21's (`waiting.py`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from optdyn.configs.papers import waiting
from optdyn.configs.papers.waiting import BOUND, arms, measured, picture, verdict
from optdyn.evidence.arms import Arm
from optdyn.evidence.claim import Claim
from optdyn.evidence.study import Study
from optdyn.grid import Point

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, waiting.SEEDS
CHANCE, LONGER = 0.02, 50.0  # of an outage, and times as long as a gradient without one
LAWS: Mapping[str, Point] = {
    "log-normal": {"cluster.service": "lognormal", "cluster.variation": 0.3},
    "outages": {"cluster.service": "optdyn.configs.papers.waiting_more:outages"},
}

CLAIM = Claim(
    number=55,
    sentence="(log-normal times, outages) Whoever waits for the fastest takes at most a tenth more "
    "time than the best of asynchronous methods",
    source="arXiv 2602.03802; claim 21, which had neither",
    measured="simulated seconds to a training loss of 0.25 of an MLP 784-32-10 on 4,000 MNIST "
    "images, 8 workers, gradients of 8 examples, free links; log-normal times with a deviation of "
    f"0.3 times the mean, and workers of whom one gradient in {1 / CHANCE:.0f} takes "
    f"{1 + LONGER:.0f} times as long as the others, as in an outage",
    opponent=waiting.CLAIM.opponent,
    rule="As of claim 21: under each law the best that waits and the best that does not are those "
    "of the least median seconds on the seeds that choose, 4. Of the ratio of their median seconds "
    "on the seeds that report, 20, in the geometric mean over the two laws, with a 95 % interval "
    f"from seeds drawn again in all alike: confirmed if the interval is below {BOUND:g}, refuted "
    "if it is above, open otherwise",
)


def outages() -> Callable[[np.random.Generator, Any], np.ndarray]:
    """Services of mean 1, of which `CHANCE` take 1 + `LONGER` times as long as the others."""
    usual = 1 / (1 + CHANCE * LONGER)
    return lambda rng, shape: usual * (1 + LONGER * (rng.random(shape) < CHANCE))


def arm_of(law: str, name: str) -> Arm:
    """As under memoryless times, and searched from there."""
    arm = waiting.arm_of("exponential", name)
    return arm._replace(config=arm.config.with_(LAWS[law]))


def measure(study: Study) -> dict[str, Any]:
    return measured(study, {law: {name: arm_of(law, name) for name in arms()} for law in LAWS})
