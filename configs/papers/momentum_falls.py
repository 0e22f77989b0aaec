"""What keeping one group's best momentum costs 16 groups: claim 2, as an estimate.

Problems and tuning are those of `best_momentum.py`, whose rule asks for an order of ladders' rungs.
"""

from typing import Any

from optdyn.configs.papers.best_momentum import GROUPS, TARGETS, measure, picture
from optdyn.evidence.claim import Claim, Verdict, above
from optdyn.evidence.intervals import mean_ratio, shown

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS, BOUND = True, {"small": (4, 20), "full": (4, 20)}, 1.1

CLAIM = Claim(
    number=30,
    sentence="With 16 groups the explicit momentum that is best with one is no longer good",
    source="arXiv 1605.09774, Section 4; claim 2, whose rule asks for an order of rungs",
    measured="updates to a loss with 16 memoryless groups: 0.25 of the MLP 784-32-10 on 4,000 "
    "MNIST images, batch 256, and 0.001 of a noiseless quadratic of condition 10 in 16 "
    "dimensions; arrivals simulated",
    opponent="the best momentum of the ladder -0.8 to 0.95 for 16 groups; every momentum with its "
    "own learning rate, interior",
    rule="Both momenta are chosen by the seeds that choose, 4. Of the median updates with one "
    "group's momentum over those with the best, in the geometric mean over both problems, with a "
    "95 % interval from the seeds that report, 20, drawn again in all alike: confirmed if the "
    "interval is above 1.1, refuted if it is below, open otherwise",
)


def verdict(result: dict[str, Any]) -> Verdict:
    best = {name: result["found"][name]["best"] for name in TARGETS}
    kept, chosen = (
        [updates(result, name, best[name][i]) for name in TARGETS] for i in (0, len(GROUPS) - 1)
    )
    found = mean_ratio(kept, chosen)
    each = "; ".join(
        f"{name}: best {', '.join(f'{m:g}' for m in best[name])} at g = 1, 4, 16, and "
        f"{shown(mean_ratio([a], [b]))}"
        for name, a, b in zip(TARGETS, kept, chosen, strict=True)
    )
    return Verdict(
        above(found, BOUND), f"{shown(found)} of the best's updates ({each}; n = {len(kept[0])})"
    )


def updates(result: dict[str, Any], name: str, momentum: float) -> list[float]:
    """Of 16 groups."""
    cell = (name, GROUPS[-1], momentum)
    [row] = [r for r in result["rows"] if (r["problem"], r["groups"], r["momentum"]) == cell]
    return list(row["updates"])
