"""Whether steering momentum by the meter beats 0.9 kept: of claim 16, as an estimate.

Problems, arms and tuning are those of `steered_momentum.py`.
"""

from typing import Any

from optdyn.configs.papers.steered_momentum import ARMS, TARGETS, measure, picture
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import mean_ratio, shown

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}

CLAIM = Claim(
    number=37,
    sentence="Momentum that the meter steers to a total of 0.9 takes fewer updates than 0.9 kept",
    source="this project's meter; claim 16, whose rule is about four things at once",
    measured="updates with 16 memoryless groups: MLP 784-32-10 on 4,000 MNIST images, batch 64, to "
    "a training loss of 0.1; noisy quadratic of 64 dimensions and condition 100, batch 16, to "
    "0.645; arrivals simulated",
    opponent="0.9 kept; momentum 0 kept, tuned momentum and YellowFin's closed loop are told "
    "beside it; every arm with its own learning rate, interior",
    rule="Of steered momentum's median updates over those of 0.9 kept, in the geometric mean over "
    "both problems, with a 95 % interval from the seeds that report, 20, drawn again in all alike: "
    "confirmed if the interval is below 1, refuted if it is above, open otherwise",
)


def verdict(result: dict[str, Any]) -> Verdict:
    of = {(row["problem"], row["arm"]): row["updates"] for row in result["rows"]}
    over = {
        arm: mean_ratio([of[p, "steered"] for p in TARGETS], [of[p, arm] for p in TARGETS])
        for arm in ARMS[:-1]
    }
    found = over.pop("0.9 kept")
    others = ", ".join(f"{arm} {shown(each)}" for arm, each in over.items())
    totals = ", ".join(f"{name} {each['total']:.3f}" for name, each in result["found"].items())
    interior = sum(row["interior"] for row in result["rows"])
    return Verdict(
        below(found, 1.0),
        f"{shown(found)} of the updates; over {others}; totals {totals} ({interior} of "
        f"{len(result['rows'])} interior, n = {len(of['mlp', 'steered'])})",
    )
