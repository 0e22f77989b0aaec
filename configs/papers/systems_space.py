"""Whether the space of trade-offs has more than named systems: claim 14, as an estimate.

Settings, clusters and tuning are those of `systems.py`, all of them: with --scale=small one setting
stands for the whole space.
"""

from collections.abc import Mapping
from typing import Any

from optdyn.configs.papers import systems
from optdyn.configs.papers.systems import picture
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import mean_ratio, ratio, shown
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (2, 5), "full": (4, 20)}

CLAIM = Claim(
    number=29,
    sentence="The space of trade-offs has a setting that takes less time than every popular system",
    source="arXiv 1606.04487, Sections 1 and 4; claim 14, in which one setting stood for the space",
    measured="simulated seconds to a training loss of 0.4 of a CNN of 4 and 8 channels on 4,000 "
    "MNIST images, batch 32, 16 memoryless workers, on two clusters: stragglers only, and a server "
    "of the dense layers that saturates; 2, 4 and 8 groups, merged and not, with --scale=full",
    opponent="the best of the settings that named systems stand for; every setting with its own "
    "rate and momentum, interior",
    rule="On each cluster the best named setting and the best other one are those of the least "
    "median seconds on the seeds that choose. Of the ratio of median seconds of the other over the "
    "named on the seeds that report, in the geometric mean over both clusters, with a 95 % "
    "interval from seeds drawn again in all alike: confirmed if the interval is below 1, refuted "
    "if it is above, open otherwise. It is decided with --scale=full: 4 seeds choose, 20 report",
)


def measure(study: Study) -> dict[str, Any]:
    return systems.measure(study)


def best(rows: list[dict[str, Any]], named: bool) -> dict[str, Any]:
    return min((row for row in rows if row["named"] == named), key=lambda row: row["chosen_by"])


def mean(result: Mapping[str, Any]) -> tuple[float, float, float]:
    each = [found["rows"] for found in result["clusters"].values()]
    other, named = (
        [best(rows, is_named)["seconds"] for rows in each] for is_named in (False, True)
    )
    return mean_ratio(other, named)


def verdict(result: Mapping[str, Any]) -> Verdict:
    found, parts = mean(result), []
    for cluster, each in result["clusters"].items():
        other, named = (best(each["rows"], is_named) for is_named in (False, True))
        over = shown(ratio(other["seconds"], named["seconds"]))
        parts.append(f"{cluster}: {other['setting']} over {named['setting']} {over}")
    return Verdict(below(found, 1.0), f"{shown(found)} in the mean; {'; '.join(parts)}")
