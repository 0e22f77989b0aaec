"""Staleness costs updates only where the step is not limited by gradient noise.

The question behind "does asynchrony pay" is what it costs in updates, P_SE(g, B), with both sides
tuned. The model says (`research/tuning/prediction.py`)

    P_SE(g, B) = 1 + kappa lambda alpha_max / (a*(g, law) (1 + B_noise / B))

with noise scale, sharpness and step from one synchronous run at batch 64 and a* from the arrivals
alone. kappa was fitted on the perceptron; the verdict is of the CNN, which no fit has seen. Every
cell is tuned, one group too: long-run step and momentum, until both neighbours of both are worse.
"""

from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from optdyn.analysis import figures
from optdyn.analysis.penalties import MODELS, TARGET
from optdyn.config import usual
from optdyn.evidence.arms import at, reported, sgd, tuned
from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.intervals import ratio
from optdyn.evidence.study import Study
from optdyn.evidence.trial import to_loss
from optdyn.experiment import Experiment
from optdyn.setup import Cluster
from optdyn.tuning import prediction
from optdyn.tuning.prediction import Measured, penalty, stability

CLAIM = Claim(
    number=15,
    sentence=(
        "Staleness costs updates only where the step is not limited by gradient noise: the penalty "
        "P_SE of g groups follows from one synchronous run and the law of the arrivals."
    ),
    source="here, from arXiv 1605.09774 (staleness) and 1812.06162 (gradient noise scale)",
    measured=(
        "updates to training loss 0.25, 4,000 MNIST images, MLP 784-32-10 and CNN (4, 8)-32, "
        "batches 1 to 256, up to 32 groups, constant and memoryless service; real gradients, "
        "simulated arrivals"
    ),
    opponent="one group at the same batch, its own long-run step and momentum tuned alike",
    rule=(
        "error factor of a cell: max(predicted / measured, measured / predicted) of P_SE. Over the "
        "cells of the CNN, which no constant was fitted on: confirmed if its median is at most "
        "1.25 and all arms are interior, refuted if it is above 1.5, open between"
    ),
)
LAWS = {"exponential": "o", "constant": "s", "lognormal": "^"}  # and their markers
REFERENCE = 64  # batch of the synchronous run that is measured along
# About what is measured on the perceptron: where searches start, and how long runs may take.
USUAL, UPDATES = Measured(noise_scale=80.0, sharpness=4.0, step=3.0), 60
LONGEST = 3  # times the usual updates
MOST = 1000  # updates that are measured along, if one group missed


class Cell(NamedTuple):
    model: str
    batch: int
    groups: int
    law: str


def cells(scale: str) -> list[Cell]:
    """All with more than one group."""
    if scale == "small":
        both = [(16, "exponential"), (4, "constant")]
        maps = {"mlp": ((1, 16, 256), both), "cnn": ((4, 64), both)}
    else:
        every = [(g, law) for law in ("exponential", "constant", "lognormal") for g in (4, 16, 32)]
        maps = {"mlp": ((1, 4, 16, 64, 256), every), "cnn": ((1, 4, 16, 64), every)}
    return [
        Cell(model, batch, groups, law)
        for model, (batches, kinds) in maps.items()
        for groups, law in kinds
        for batch in batches
    ]


def measure(study: Study) -> dict[str, Any]:
    """Every cell tuned and run on the reporting seeds, beside what the synchronous run predicts."""
    return measured(study, cells(study.scale))


def measured(study: Study, chosen: list[Cell]) -> dict[str, Any]:
    """The same of some of the cells."""
    alone = {Cell(c.model, batch, 1, "constant") for c in chosen for batch in (c.batch, REFERENCE)}
    every = sorted(alone) + chosen
    limits = {c: stability(config_of(c), c.groups) for c in every}
    arms = dict(zip(every, study.map(partial(_arm, study, limits), every), strict=True))
    found = {model: _measured(study, model, arms) for model in {c.model for c in chosen}}
    rows = []
    for cell in chosen:
        sync = arms[cell._replace(groups=1, law="constant")]
        rows.append(
            {
                **cell._asdict(),
                **arms[cell],
                "limit": limits[cell],
                "interior": arms[cell]["interior"] and sync["interior"],
                "penalty": ratio(arms[cell]["updates"], sync["updates"]),
                "predicted": penalty(found[cell.model], cell.batch, limits[cell]),
            }
        )
    return {
        "cells": rows,
        "synchronous": [{**c._asdict(), **arms[c]} for c in sorted(alone)],
        "measured": {model: one._asdict() for model, one in found.items()},
    }


def config_of(cell: Cell) -> Experiment:
    method = {"strategy.name": "asynchronous", "strategy.groups": cell.groups}
    return usual().with_(
        {"data.train_evaluated": 1000, **MODELS[cell.model], **method},
        batch_size=cell.batch,
        cluster=Cluster(nodes=cell.groups, service=cell.law),
    )


def _arm(study: Study, limits: dict[Cell, float], cell: Cell) -> dict[str, Any]:
    """The cell at its best: updates of the reporting seeds, infinite where they missed."""
    factor = penalty(USUAL, cell.batch, limits[cell]) * (1 + USUAL.noise_scale / cell.batch)
    config = config_of(cell).with_(steps=round(LONGEST * UPDATES * factor))
    quick = cell.groups == 1 and cell.batch >= REFERENCE
    arm = sgd(config, USUAL.step / 4 / factor, 0.8 if quick else 0.3)
    best = tuned(study, arm, TARGET)
    curves = reported(study, arm, best.point, TARGET)
    return {
        "point": best.point,
        "interior": best.interior,
        "updates": [to_loss(curve, TARGET) for curve in curves],
    }


def _measured(study: Study, model: str, arms: dict[Cell, dict[str, Any]]) -> Measured:
    """The mean over the choosing seeds of what one synchronous run shows."""
    cell = Cell(model, REFERENCE, 1, "constant")
    point, taken = arms[cell]["point"], float(np.median(arms[cell]["updates"]))
    updates = round(min(taken, MOST))
    each = [
        study.remember(
            f"{model} {REFERENCE} {point} {updates} {seed}",
            lambda seed=seed: prediction.measure(at(config_of(cell), point, seed), updates),
        )
        for seed in study.choose
    ]
    return Measured(*np.mean(each, axis=0).tolist())


def errors(result: dict[str, Any], model: str) -> np.ndarray:
    """Error factors of the model's cells, from 1 up; infinite where an arm missed."""
    rows = [row for row in result["cells"] if row["model"] == model]
    ratios = np.array([row["predicted"] / row["penalty"][0] for row in rows])
    return np.where(ratios > 0, np.maximum(ratios, 1 / np.maximum(ratios, 1e-9)), np.inf)


def verdict(result: dict[str, Any]) -> Verdict:
    outside, inside = errors(result, "cnn"), errors(result, "mlp")
    middle = float(np.median(outside))
    rows = [row for row in result["cells"] if row["model"] == "cnn"]
    interior = sum(row["interior"] for row in rows)
    word = "refuted" if middle > 1.5 else "open"
    if middle <= 1.25 and interior == len(rows):
        word = "confirmed"
    penalties = [row["penalty"][0] for row in rows]
    return Verdict(
        word,
        f"P_SE from {min(penalties):.2f} to {max(penalties):.2f} on {len(rows)} cells of the CNN "
        f"({interior} interior), predicted within a factor {middle:.2f} in the median and "
        f"{outside.max():.2f} at most (MLP, fitted: {np.median(inside):.2f}, {inside.max():.2f})",
    )


def picture(result: dict[str, Any], figure: Figure) -> None:
    """Measured penalties, and lines of what is predicted, over the batch."""
    every = figure.subplots(1, 2, sharey=True)
    batches = np.geomspace(1, 256, 50)
    kinds = sorted({(row["law"], row["groups"]) for row in result["cells"]})
    looks = list(zip(kinds, cycle(figures.OKABE_ITO), strict=False))
    for axes, model in zip(every, MODELS, strict=True):
        found = result["measured"][model]
        for (law, groups), colour in looks:
            label = f"{groups} groups, {law}"
            axes.plot([], [], LAWS[law], color=colour, label=label)  # the legend is of one model
            kind = {"model": model, "law": law, "groups": groups}
            rows = [row for row in result["cells"] if kind.items() <= row.items()]
            if not rows:
                continue
            middle, low, high = np.array([row["penalty"] for row in rows]).T
            bars = np.clip([middle - low, high - middle], 0, None)
            axes.errorbar([row["batch"] for row in rows], middle, bars, fmt=LAWS[law], color=colour)
            curve = penalty(Measured(**found), batches, rows[0]["limit"])
            axes.plot(batches, curve, color=colour, lw=1)
        noise = found["noise_scale"]
        axes.axvline(noise, color=figures.GREY, lw=1, ls=":", label="noise scale")
        axes.set(xscale="log", yscale="log", xlabel="batch", title=model.upper())
    every[0].set_ylabel("updates over those of one group")
    figures.legend(figure)
