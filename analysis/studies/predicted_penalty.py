"""The predicted cost of staleness in updates, P_SE(g, B), against the measured one.

The prediction (`tune/prediction.py`)

    P_SE(g, B) = 1 + kappa lambda alpha_max / (a*(g, law) (1 + B_noise / B))

has noise scale, sharpness and step from one synchronous run and a* from the arrivals. kappa was
fitted on a perceptron; the verdict is of a CNN.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

import optdyn as od
from optdyn.evidence.arms import reported, sgd, tuned
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import drawn_again, ratio, shown
from optdyn.evidence.study import Study
from optdyn.evidence.trial import to_loss
from optdyn.tune import prediction
from optdyn.tune.prediction import MeasuredLoss, penalty, stability

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}
MODEL, BOUND = "cnn", 1.5
NETWORK = od.CNN(channels=(4, 8), hidden=(32,))
TARGET = 0.25  # training loss
REFERENCE = 64  # batch of the synchronous run that is measured along
# About what is measured on the perceptron: where searches start, and how long runs may take.
MLP_LOSS, UPDATES = MeasuredLoss(noise_scale=80.0, sharpness=4.0, step=3.0), 60
LONGEST = 3  # times these updates
MOST = 1000  # updates that are measured along, if one group missed

CLAIM = Claim(
    number=28,
    sentence="What staleness costs is predicted from one synchronous run and the law of the "
    "arrivals within a factor of 1.5 in the median",
    source="here; claim 15, whose rule has two bounds",
    measured="updates to training loss 0.25, 4,000 MNIST images, CNN (4, 8)-32, batches 4 and 64, "
    "16 groups of memoryless and 4 of constant service (more cells with --scale=full); real "
    "gradients, simulated arrivals",
    opponent="one group at the same batch, its own long-run step and momentum tuned alike",
    rule="The error factor of a cell is max(predicted / measured, measured / predicted) of P_SE, "
    "a ratio of median updates. Of the cells' median factor, with a 95 % interval from the seeds "
    "that report, 20, drawn again in all cells alike: confirmed if the interval is below 1.5, "
    "refuted if it is above, open otherwise",
)


class PenaltyCase(NamedTuple):
    batch: int
    groups: int
    law: str


def cells(scale: str) -> list[PenaltyCase]:
    """Returns the cases with more than one group."""
    batches = (4, 64) if scale == "small" else (1, 4, 16, 64)
    kinds = [(16, "exponential"), (4, "constant")]
    if scale != "small":
        kinds = [(g, law) for law in ("exponential", "constant", "lognormal") for g in (4, 16, 32)]
    return [PenaltyCase(batch, groups, law) for groups, law in kinds for batch in batches]


def predict(cell: PenaltyCase) -> dict[str, Any]:
    return {"model": MODEL, **cell._asdict()}


def config_of(cell: PenaltyCase) -> od.Experiment:
    return od.Experiment(
        model=NETWORK,
        data=od.MNIST5k(train_evaluated=250),
        method=od.Asynchronous(groups=cell.groups),
        batch_size=cell.batch,
        cluster=od.Cluster(nodes=cell.groups, service=od.Law.named(cell.law)),
    )


def measure(study: Study) -> dict[str, Any]:
    chosen = cells(study.scale)
    synchronous = {
        PenaltyCase(batch, 1, "constant") for c in chosen for batch in (c.batch, REFERENCE)
    }
    cases = sorted(synchronous) + chosen
    limits = {c: stability(config_of(c), c.groups) for c in cases}
    arms = dict(zip(cases, study.map(partial(_arm, study, limits), cases), strict=True))
    found = _measured(study, arms)
    rows = []
    for cell in chosen:
        sync = arms[cell._replace(groups=1, law="constant")]
        rows.append(
            {
                **predict(cell),
                **arms[cell],
                "limit": limits[cell],
                "interior": arms[cell]["interior"] and sync["interior"],
                "penalty": ratio(arms[cell]["updates"], sync["updates"]),
                "predicted": penalty(found, cell.batch, limits[cell]),
            }
        )
    references = [{**predict(c), **arms[c]} for c in sorted(synchronous)]
    return {
        "cells": rows,
        "synchronous": references,
        "measured": {MODEL: found._asdict()},
        "factor": factor(rows, {row["batch"]: row["updates"] for row in references}),
    }


def _arm(study: Study, limits: dict[PenaltyCase, float], cell: PenaltyCase) -> dict[str, Any]:
    factor = penalty(MLP_LOSS, cell.batch, limits[cell]) * (1 + MLP_LOSS.noise_scale / cell.batch)
    config = config_of(cell).with_(steps=round(LONGEST * UPDATES * factor))
    quick = cell.groups == 1 and cell.batch >= REFERENCE
    arm = sgd(config, MLP_LOSS.step / 4 / factor, 0.8 if quick else 0.3)
    best = tuned(study, arm, TARGET)
    curves = reported(study, arm, best.point, TARGET)
    return {
        "point": best.point,
        "interior": best.interior,
        "updates": [to_loss(curve, TARGET) for curve in curves],
    }


def _measured(study: Study, arms: dict[PenaltyCase, dict[str, Any]]) -> MeasuredLoss:
    """Returns the mean over the choosing seeds of a synchronous run's measurement."""
    cell = PenaltyCase(REFERENCE, 1, "constant")
    point, updates_to_target = arms[cell]["point"], float(np.median(arms[cell]["updates"]))
    updates = round(min(updates_to_target, MOST))
    losses = [
        study.remember(
            f"{MODEL} {REFERENCE} {point} {updates} {seed}",
            lambda seed=seed: prediction.measure(config_of(cell).with_(point, seed=seed), updates),
        )
        for seed in study.choose
    ]
    return MeasuredLoss(*np.mean(losses, axis=0).tolist())


def factor(
    rows: list[dict[str, Any]], synchronous: dict[int, list[float]]
) -> tuple[float, float, float]:
    """Returns the median error factor of the cells, and its interval."""
    updates = np.array([row["updates"] for row in rows])
    base = np.array([synchronous[row["batch"]] for row in rows])
    predicted = np.array([row["predicted"] for row in rows])

    def median(seeds: np.ndarray) -> float:
        above, below = (np.median(counts[:, seeds], axis=1) for counts in (updates, base))
        off = np.abs(np.log(predicted) - np.log(above / below))
        return float(np.exp(np.median(off)))

    return drawn_again(median, updates.shape[1])


def verdict(result: dict[str, Any]) -> Verdict:
    factors = sorted(max(p := r["predicted"] / r["penalty"][0], 1 / p) for r in result["cells"])
    interior = sum(row["interior"] for row in result["cells"])
    return Verdict(
        below(result["factor"], BOUND),
        f"within a factor of {shown(result['factor'])} in the median of {len(factors)} cells, "
        f"{factors[0]:.2f} to {factors[-1]:.2f} ({interior} interior, n = "
        f"{len(result['cells'][0]['updates'])})",
    )


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    for row in result["cells"]:
        value, low, high = row["penalty"]
        label = f"{row['groups']} groups, {row['law']}, batch {row['batch']}"
        axes.errorbar(
            row["predicted"], value, [[value - low], [high - value]], fmt="o", label=label
        )
    ends = np.array([1.0, max(row["predicted"] for row in result["cells"]) * BOUND])
    axes.plot(ends, ends, color="#666666", lw=0.8)
    axes.fill_between(ends, ends / BOUND, ends * BOUND, color="#666666", alpha=0.1)
    axes.set(xscale="log", yscale="log", xlabel="predicted P_SE", ylabel="measured P_SE")
    axes.legend(fontsize=7)
