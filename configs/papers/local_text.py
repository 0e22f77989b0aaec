"""Local parallelism on text: claim 10 on one task, as an estimate (`local_time.py`)."""

from functools import partial

from optdyn.configs.papers import local_time
from optdyn.configs.papers.local_time import one_picture as picture
from optdyn.configs.papers.local_time import one_verdict as verdict

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

CLAIM = local_time.one_claim(
    26,
    "text",
    "a transformer of 4 blocks on the King James Bible (batch 16, 32 characters)",
)
LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}
measure = partial(local_time.one_measured, task="text")
