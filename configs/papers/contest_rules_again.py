"""Is the best rule of 2024 to 2026 faster than the best older arm at 0.1 Gb/s, on 300 new seeds?

Claim 39 chose settings on 4 seeds, and its interval on 20 others was [0.834, 1.1] around 0.978.
Those of SparseLoCo and of top-k run here as they are.
"""

from typing import Any

from optdyn.configs import contest, race
from optdyn.configs.contest import Chose
from optdyn.configs.papers import contest_rules
from optdyn.configs.papers.contest_share import picture
from optdyn.evidence.arms import MOMENTUM, PERIOD, RATE
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (0, 300), "full": (0, 300)}
SLOW = "0.1 Gb/s"
RULE, ARM = "SparseLoCo", "top-k"
DECAY = "strategy.error_decay"
SETTINGS = {
    RULE: Chose(RULE, {"batch_size": 128, PERIOD: 2}, {RATE: 0.4, DECAY: 0.996875}),
    ARM: Chose(ARM, {"batch_size": 128}, {RATE: 1.4, MOMENTUM: 0.3}),
}

CLAIM = Claim(
    number=45,
    sentence=contest_rules.CLAIM.sentence,
    source="claim 39, which 20 seeds left open",
    measured="simulated seconds, a last meeting of nodes included, to a training loss of 0.1 of "
    f"{race.PROBLEMS['mlp'].what}; 8 workers of log-normal times (30 %), the all-reduce 20 times "
    "as long as the computing (0.1 Gb/s of a ResNet-50)",
    opponent="top-k (1 %) with batches of 128, the best older arm there by the seeds that chose; "
    "SparseLoCo, the best rule, with batches of 128 and meetings every 2 updates. These and rates, "
    "momentum and decay are what claim 39 chose, on seeds that are not in this run",
    rule="Of SparseLoCo's median seconds over those of top-k, over the seeds that report, 300, "
    "with a 95 % interval from seeds drawn in pairs: confirmed if the interval is below 1, refuted "
    "if it is above, open otherwise",
)


def measure(study: Study) -> dict[str, Any]:
    return {"seconds": contest.taken_of_mlp(study, SETTINGS, SLOW)}


def verdict(result: dict[str, Any]) -> Verdict:
    rule, arm = (result["seconds"][name] for name in (RULE, ARM))
    found = ratio(rule, arm)
    return Verdict(
        below(found, 1.0), f"SparseLoCo takes {shown(found)} of top-k's seconds (n = {len(rule)})"
    )
