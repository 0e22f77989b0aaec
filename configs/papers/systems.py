"""Named systems are points of one space of trade-offs, and none of them looks for the best point.

The space: the number of compute groups, whether the dense layers are merged on one server, and how
far groups may run ahead. A system's place in it is a setting here, *as commonly stated* of it; what
is timed is that setting on a simulated cluster, not the system. Every setting has a learning rate
and a momentum of its own, so that what is compared is the place in the space and nothing else.

    synchronous all-reduce (Horovod, FireCaffe)            one group
    asynchronous parameter servers (DistBelief, MXNet)     a group a worker, dense layers stale
    merged dense layers, asynchronous (Project Adam)       a group a worker, dense layers fresh
    stale synchronous (Petuum)                             a group a worker, at most 3 updates ahead
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from optdyn.configs import problems
from optdyn.evidence.arms import at, reported, sgd, tuned
from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.study import Study
from optdyn.evidence.trial import to_loss
from optdyn.experiment import Experiment
from optdyn.grid import Point

CLAIM = Claim(
    number=14,
    sentence="Popular systems lie inside the space of trade-offs but do not optimize in it",
    source="arXiv 1606.04487, Sections 1 and 4",
    measured="simulated seconds to a training loss of 0.4 of a CNN of 4 and 8 channels on 4,000 "
    "MNIST images, batch 32, 16 memoryless workers, on two clusters: stragglers only, and a server "
    "of the dense layers that saturates",
    opponent="the settings that named systems stand for; every setting with its own rate and "
    "momentum, interior",
    rule="Chosen is the setting of least seconds on the seeds that choose. Confirmed if on both "
    "clusters it is no named system's and takes fewer seconds than each of them on the other seeds "
    "(intervals below 1); refuted if on both it is a named one or takes no fewer (intervals not "
    "below 1); open otherwise",
)
ALL, DENSE = problems.WORKERS, ("hidden0", "classifier")
SYSTEMS: dict[str, Point] = {
    "synchronous all-reduce": {"strategy.groups": 1},
    "asynchronous servers": {"strategy.groups": ALL},
    "asynchronous, merged": {"strategy.groups": ALL, "strategy.fresh": DENSE},
    "stale synchronous": {"strategy.groups": ALL, "strategy.staleness_bound": 3},
}
BETWEEN = {"small": (4,), "full": (2, 4, 8)}
TARGET, UPDATES = 0.4, 2500  # a loss that 16 groups reach in far fewer updates than that
CLUSTERS: dict[str, Point] = {
    "stragglers": {"cluster.seconds_per_example": 1 / 32},  # a batch takes a worker a second
    "saturating server": {
        "cluster.pieces.conv_compute": 1.0,
        "cluster.pieces.fc": 0.05,  # on the server where merged
        "cluster.pieces.fc_network": 0.15,
    },
}
STEPS = {1: 0.3, 4: 0.15, ALL: 0.1}  # long-run steps that searches start from


def settings(cluster: str, scale: str) -> dict[str, Point]:
    """Named systems, and what lies between; a bound on being ahead only where nobody queues."""
    named = {
        name: point
        for name, point in SYSTEMS.items()
        if cluster == "stragglers" or "strategy.staleness_bound" not in point
    }
    between: dict[str, Point] = {}
    for g in BETWEEN[scale]:
        if scale == "full":
            between[f"{g} groups"] = {"strategy.groups": g}
        between[f"{g} groups, merged"] = {"strategy.groups": g, "strategy.fresh": DENSE}
    return {**named, **between}


def config_of(cluster: str, setting: Point) -> Experiment:
    config = problems.network("cnn", 32).with_(steps=UPDATES)
    return at(config, {**CLUSTERS[cluster], **setting}, 0)


def measure(study: Study) -> dict[str, Any]:
    arms = [
        (cluster, name, point)
        for cluster in CLUSTERS
        for name, point in settings(cluster, study.scale).items()
    ]

    def run(arm: tuple[str, str, Point]) -> dict[str, Any]:
        cluster, name, setting = arm
        step = STEPS.get(setting["strategy.groups"], STEPS[4])
        chosen = sgd(config_of(cluster, setting), step, 0.3)
        found = tuned(study, chosen, TARGET, "seconds")
        curves = reported(study, chosen, found.point, TARGET)
        return {
            "cluster": cluster,
            "setting": name,
            "named": name in SYSTEMS,
            "tuned": found.point,
            "interior": found.interior,
            "chosen_by": found.cost,
            "updates": [to_loss(curve, TARGET) for curve in curves],
            "seconds": [to_loss(curve, TARGET, "seconds") for curve in curves],
        }

    rows = study.map(run, arms)
    return {"clusters": {cluster: _of(rows, cluster) for cluster in CLUSTERS}}


def _of(rows: list[dict[str, Any]], cluster: str) -> dict[str, Any]:
    here = [row for row in rows if row["cluster"] == cluster]
    best = min(here, key=lambda row: row["chosen_by"])
    over = {r["setting"]: ratio(best["seconds"], r["seconds"]) for r in here if r is not best}
    return {"rows": here, "chosen": best["setting"], "named": best["named"], "over": over}


def verdict(result: dict[str, Any]) -> Verdict:
    wins, parts = [], []
    for cluster, found in result["clusters"].items():
        over = {name: value for name, value in found["over"].items() if name in SYSTEMS}
        wins.append(not found["named"] and all(high < 1 for _, _, high in over.values()))
        each = ", ".join(f"{shown(value)} of {name}" for name, value in over.items())
        parts.append(f"{cluster}: {found['chosen']} takes {each}")
    word = "confirmed" if all(wins) else "open" if any(wins) else "refuted"
    return Verdict(word, "; ".join(parts))


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots(1, len(CLUSTERS))
    for ax, (cluster, found) in zip(axes, result["clusters"].items(), strict=True):
        rows = sorted(found["rows"], key=lambda row: -float(np.median(row["seconds"])))
        for y, row in enumerate(rows):
            colour = "#D55E00" if row["named"] else "#0072B2"
            ax.plot(row["seconds"], [y] * len(row["seconds"]), "|", color=colour, ms=9)
            ax.plot(np.median(row["seconds"]), y, "o", color=colour, ms=5)
        ax.set_yticks(range(len(rows)), [row["setting"] for row in rows], fontsize=8)
        ax.set(xscale="log", title=cluster, xlabel="simulated seconds")
