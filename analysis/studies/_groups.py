"""Seconds to a loss at each number of groups on four clusters, and the number that is predicted.

Seconds to a loss are SE(g) x HE(g), updates times seconds an update. The prediction takes HE(g)
from the arrivals and SE(g) = SE(1) P_SE(g) from one synchronous run (`tune/prediction.py`).
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis.studies import _problems as problems
from optdyn.evidence.arms import Tuned, reported, sgd, tuned
from optdyn.evidence.intervals import ratio
from optdyn.evidence.study import Job, Study
from optdyn.evidence.trial import to_loss
from optdyn.experiment import Config
from optdyn.train.grid import Point
from optdyn.tune import prediction

GROUPS = (1, 2, 4, 8, 16)
BATCHES = {4: 0.06, 16: 0.24, 64: 0.8}  # the long-run step that searches of one group start from
CLUSTERS: dict[str, Point] = {  # seconds of a batch on one worker; a group's k share or exchange it
    "stragglers": {"cluster.pieces.conv_compute": 1.0},
    "saturating server": {
        "cluster.pieces.conv_compute": 1.0,
        "cluster.pieces.fc_network": 0.15,
    },
    "slow server": {
        "cluster.pieces.conv_compute": 1.0,
        "cluster.pieces.fc_network": 0.3,
    },
    "slow network": {
        "cluster.pieces.conv_compute": 1.0,
        "cluster.pieces.conv_network": 1 / 64,
    },
}
ARRIVALS = 4000  # that seconds an update are of


def config_of(cluster: str, batch: int, groups: int) -> Config:
    return problems.network("mlp", batch, groups).with_(CLUSTERS[cluster], seed=0)


def measure(study: Study) -> dict[str, Any]:
    cells = [(cluster, batch) for cluster in CLUSTERS for batch in BATCHES]

    def run(arm: tuple[str, int, int]) -> tuple[Tuned, list[float]]:
        _, batch, g = arm
        chosen = sgd(config_of(*arm), BATCHES[batch] / g**0.5, 0.3)
        found = tuned(study, chosen, problems.TARGET, "seconds")
        curves = reported(study, chosen, found.point, problems.TARGET)
        return found, [to_loss(curve, problems.TARGET, "seconds") for curve in curves]

    keys = [(*cell, g) for cell in cells for g in GROUPS]
    found = dict(zip(keys, study.map(run, keys), strict=True))
    rows = []
    for cell in cells:
        arms = {g: found[(*cell, g)] for g in GROUPS}
        best = min(GROUPS, key=lambda g: arms[g][0].cost)
        expected = _predicted(study, *cell, arms[1][0])
        picked = min(expected, key=lambda g: expected[g])
        seconds = {g: values for g, (_, values) in arms.items()}
        rows.append(
            {
                "cluster": cell[0],
                "batch": cell[1],
                "seconds": {str(g): seconds[g] for g in GROUPS},
                "interior": {str(g): arms[g][0].interior for g in GROUPS},
                "chosen_by": {str(g): arms[g][0].cost for g in GROUPS},
                "settings": {str(g): arms[g][0].point for g in GROUPS},
                "best": best,
                "best over 1": ratio(seconds[best], seconds[1]),
                "best over 16": ratio(seconds[best], seconds[16]),
                "predicted": {str(g): expected[g] for g in GROUPS},
                "picked": picked,
                "picked over best": ratio(seconds[picked], seconds[best]),
            }
        )
    return {"rows": rows}


def _predicted(study: Study, cluster: str, batch: int, one: Tuned) -> dict[int, float]:
    """Returns the predicted seconds to the loss over those of one group."""
    config = config_of(cluster, batch, 1).with_(one.point, seed=study.choose[0])
    [curve] = study.trials([Job(config, problems.TARGET)])
    updates = max(round(to_loss(curve, problems.TARGET)), 1)
    measured = prediction.MeasuredLoss(
        *study.remember(
            f"{cluster} {batch} {one.point} {updates} {study.choose[0]}",
            lambda: list(prediction.measure(config, updates)),
        )
    )
    pace = {g: _pace(config_of(cluster, batch, g)) for g in GROUPS}
    penalty = {
        g: prediction.penalty(
            measured, batch, prediction.stability(config_of(cluster, batch, g), g)
        )
        for g in GROUPS
    }
    return {g: float(pace[g] / pace[1] * penalty[g]) for g in GROUPS}


def _pace(config: Config) -> float:
    """Returns HE(g), simulated seconds an update."""
    drawn = config.with_(steps=ARRIVALS)
    line = drawn.timeline(steps_per_epoch=1, update_bytes=0)
    return float(line.seconds[-1]) / ARRIVALS


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots(1, len(CLUSTERS), sharey=True)
    for ax, cluster in zip(axes, CLUSTERS, strict=True):
        for batch, colour in zip(BATCHES, ("#0072B2", "#009E73", "#D55E00"), strict=True):
            [row] = [r for r in result["rows"] if (r["cluster"], r["batch"]) == (cluster, batch)]
            seconds = np.array([row["seconds"][str(g)] for g in GROUPS])
            seconds = seconds / np.median(seconds[0])
            median = np.median(seconds, axis=1)
            ax.plot(GROUPS, median, "o-", color=colour, ms=4, label=f"batch {batch}")
            ax.fill_between(
                GROUPS, seconds.min(axis=1), seconds.max(axis=1), color=colour, alpha=0.15, lw=0
            )
            model = [row["predicted"][str(g)] for g in GROUPS]
            ax.plot(GROUPS, model, "x--", color=colour, ms=5, lw=0.8)
        ax.set(xscale="log", yscale="log", title=cluster, xlabel="groups (x: predicted)")
        ax.set_xticks(GROUPS, [str(g) for g in GROUPS])
        ax.minorticks_off()
    axes[0].set_ylabel("simulated seconds over one group's")
    axes[0].legend()
