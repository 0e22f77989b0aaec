"""Local parallelism against pipelined backpropagation on text (arXiv 2012.03837)."""

from functools import partial

from analysis.studies._local import LONG, OPPONENT, RULE, SEEDS, measure_task, picture, verdict
from optdyn.evidence.claim import Claim

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

CLAIM = Claim(
    number=26,
    sentence="(text) Local parallelism reaches a training loss sooner than pipelined "
    "backpropagation where parallel compute abounds",
    source="arXiv 2012.03837, abstract; claim 10, whose rule is about two tasks at once",
    measured="updates to a training loss of 2.05, times simulated seconds an update on four "
    "devices with free links, of a transformer of 4 blocks on the King James Bible (batch 16, 32 "
    "characters), at most 500 updates",
    opponent=OPPONENT,
    rule=RULE,
)

measure = partial(measure_task, task="text")
