"""Local parallelism against pipelined backpropagation on images (arXiv 2012.03837)."""

from functools import partial

from analysis.studies._local import LONG, OPPONENT, RULE, SEEDS, measure_task, picture, verdict
from optdyn.evidence.claim import Claim

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

CLAIM = Claim(
    number=27,
    sentence="(vision) Local parallelism reaches a training loss sooner than pipelined "
    "backpropagation where parallel compute abounds",
    source="arXiv 2012.03837, abstract; claim 10, whose rule is about two tasks at once",
    measured="updates to a training loss of 0.1, times simulated seconds an update on four "
    "devices with free links, of a residual perceptron of 4 blocks, 128 wide, on 4,000 MNIST "
    "images of 14 x 14 pixels (batch 64), at most 500 updates",
    opponent=OPPONENT,
    rule=RULE,
)

measure = partial(measure_task, task="vision")
