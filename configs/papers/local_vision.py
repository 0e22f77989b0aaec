"""Local parallelism on images: claim 10 on one task, as an estimate (`local_time.py`)."""

from functools import partial

from optdyn.configs.papers import local_time
from optdyn.configs.papers.local_time import one_picture as picture
from optdyn.configs.papers.local_time import one_verdict as verdict

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

CLAIM = local_time.one_claim(
    27,
    "vision",
    "a residual perceptron of 4 blocks, 128 wide, on 4,000 MNIST images of 14 x 14 pixels (batch "
    "64)",
)
LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}
measure = partial(local_time.one_measured, task="vision")
