"""Is half of the best method's speed-up its opponent's batch, on 300 new seeds?

Claim 24 chose settings on 4 seeds. Its interval on 20 others was [0.45, 0.62] around 0.53, so what
decides is no search but more seeds, of those settings:

    share = log(usual / best batch) / log(usual / DiLoCo)
"""

from typing import Any

from matplotlib.figure import Figure

from optdyn.configs import contest, race
from optdyn.configs.contest import Chose
from optdyn.configs.papers import contest_mlp
from optdyn.evidence.arms import MOMENTUM, OUTER, PERIOD, RATE
from optdyn.evidence.claim import Claim, Verdict, above
from optdyn.evidence.contest import HALF
from optdyn.evidence.intervals import ratio, share, shown
from optdyn.evidence.study import Study

LONG, SEEDS = True, {"small": (0, 300), "full": (0, 300)}
LOSS = race.PROBLEMS["mlp"].losses[-1]
USUAL, BEST, OTHER = "usual batch", "best batch", "DiLoCo"
SETTINGS = {
    USUAL: Chose(contest.PLAIN, {"batch_size": 64}, {RATE: 0.2, MOMENTUM: 0.8}),
    BEST: Chose(contest.PLAIN, {"batch_size": 128}, {RATE: 0.4, MOMENTUM: 0.8}),
    OTHER: Chose("DiLoCo", {"batch_size": 8, PERIOD: 32}, {RATE: 0.025, OUTER: 0.9}),
}

CLAIM = Claim(
    number=42,
    sentence=contest_mlp.CLAIM.sentence,
    source="claim 24, which 20 seeds left open",
    measured="simulated seconds, a last meeting of nodes included, to a training loss of 0.1 of "
    f"{race.PROBLEMS['mlp'].what}; 8 workers of log-normal times (30 %), the all-reduce twice as "
    "long as the computing (1 Gb/s of a ResNet-50)",
    opponent="synchronous SGD with batches of 64, the usual, and of 128, its best there; DiLoCo, "
    "the fastest arm there, with batches of 8 and meetings every 32 updates. These and rates and "
    "momenta are what claim 24 chose, on seeds that are not in this run",
    rule="The share is log(usual / best batch) / log(usual / DiLoCo), of medians over the seeds "
    "that report, 300, with a 95 % interval from seeds drawn again in all alike. Confirmed if the "
    "interval is above 0.5, refuted if it is below, open otherwise",
)


def measure(study: Study) -> dict[str, Any]:
    return {"seconds": contest.taken_of_mlp(study, SETTINGS, contest.JUDGED)}


def verdict(result: dict[str, Any]) -> Verdict:
    usual, best, other = (result["seconds"][name] for name in SETTINGS)
    found = share(usual, best, other)
    return Verdict(
        above(found, HALF),
        f"{shown(found)} of the gain of DiLoCo is the opponent's batch: its best takes "
        f"{shown(ratio(best, usual))} of the usual one's seconds, DiLoCo "
        f"{shown(ratio(other, usual))} (n = {len(usual)})",
    )


def picture(result: dict[str, Any], figure: Figure) -> None:
    contest.arrived(result["seconds"], LOSS, figure)
