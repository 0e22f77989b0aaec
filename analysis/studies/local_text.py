"""Local parallelism against pipelined backpropagation on text (arXiv 2012.03837)."""

from functools import partial

from analysis.studies._local import measured, picture, verdict
from optdyn.evidence.claim import Claim

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}

CLAIM = Claim(
    number=26,
    sentence="(text) Local parallelism reaches a training loss sooner than pipelined "
    "backpropagation where parallel compute abounds",
    source="arXiv 2012.03837, abstract; claim 10, whose rule is about two tasks at once",
    measured="updates to a training loss of 2.05, times simulated seconds an update on four "
    "devices with free links, of a transformer of 4 blocks on the King James Bible (batch 16, 32 "
    "characters), at most 500 updates",
    opponent="backpropagation pipelined by 1F1B in 16 micro-batches on the same four devices; "
    "Adam with a learning rate tuned for each variant. Data parallelism, whose exchange is free "
    "as links are, is told beside it",
    rule="Judged is the local variant (chunked, overlapping or greedy) of the least median time "
    "on the seeds that choose, 4. Of the ratio of median times on the seeds that report, 20, its "
    "over 1F1B's, with a 95 % interval from seeds drawn in pairs: confirmed if the interval is "
    "below 1, refuted if it is above, open otherwise",
)

measure = partial(measured, task="text")
