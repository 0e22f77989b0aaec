"""Keeping momentum 0.9 makes asynchrony look worse than it is: by how much?

One arm keeps 0.9, which suits synchronous training, and the other tunes it; both tune the rate.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis.studies import _problems as problems
from optdyn.evidence.arms import MOMENTUM, reported, sgd, tuned
from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.study import Study
from optdyn.evidence.trial import to_loss

CLAIM = Claim(
    number=3,
    sentence="Keeping momentum 0.9 makes asynchrony look worse than it is",
    source="arXiv 1606.04487, Section 5",
    measured="updates to training losses of 1, 0.5 and 0.25 with 16 memoryless groups: MLP "
    "784-32-10 at batches 8 and 64, CNN of 4 and 8 channels at batch 32, 4,000 MNIST images; "
    "arrivals simulated",
    opponent="the same groups with momentum tuned, and one group with momentum tuned; every arm "
    "with its own learning rate, interior",
    rule="Confirmed if 0.9 kept takes more updates to 0.25 than a tuned momentum in every one of "
    "the three (intervals above 1); refuted if in none; otherwise open",
)
CELLS = {  # network, batch: long-run steps that searches of 1 and 16 groups start from
    ("mlp", 8): (0.16, 0.08),
    ("mlp", 64): (0.8, 0.2),
    ("cnn", 32): (0.3, 0.1),
}
KINDS = ("one group, tuned", "16 groups, tuned", "16 groups, 0.9")


def measure(study: Study) -> dict[str, Any]:
    arms = [(*cell, kind) for cell in CELLS for kind in KINDS]

    def run(arm: tuple[str, int, str]) -> dict[str, Any]:
        network, batch, kind = arm
        one, many = CELLS[network, batch]
        if kind == "one group, tuned":
            chosen = sgd(problems.network(network, batch), one, 0.6)
        elif kind == "16 groups, tuned":
            chosen = sgd(problems.network(network, batch, 16), many, 0.0)
        else:
            kept = problems.network(network, batch, 16).with_({MOMENTUM: 0.9}, seed=0)
            chosen = sgd(kept, many)
        found = tuned(study, chosen, problems.TARGET)
        curves = reported(study, chosen, found.point, problems.TARGET)
        return {
            "network": network,
            "batch": batch,
            "arm": kind,
            "setting": found.point,
            "interior": found.interior,
            "neighbours": found.neighbours,
            "updates": {
                str(loss): [to_loss(curve, loss) for curve in curves] for loss in problems.LOSSES
            },
        }

    rows = study.map(run, arms)
    ratios = []
    for network, batch in CELLS:
        updates_of = {
            r["arm"]: r["updates"] for r in rows if (r["network"], r["batch"]) == (network, batch)
        }
        for loss in map(str, problems.LOSSES):
            one, many, kept = (updates_of[kind][loss] for kind in KINDS)
            ratios.append(
                {
                    "network": network,
                    "batch": batch,
                    "loss": loss,
                    "kept over tuned": ratio(kept, many),
                    "kept over one group": ratio(kept, one),
                    "tuned over one group": ratio(many, one),
                }
            )
    return {"rows": rows, "ratios": ratios}


def verdict(result: dict[str, Any]) -> Verdict:
    last = [row for row in result["ratios"] if row["loss"] == str(problems.TARGET)]
    above = [row["kept over tuned"][1] > 1 for row in last]
    by = "; ".join(
        f"{row['network']}, batch {row['batch']}: {shown(row['kept over tuned'])} times the "
        f"updates of a tuned momentum, which takes {shown(row['tuned over one group'])} of one "
        "group's"
        for row in last
    )
    word = "confirmed" if all(above) else "open" if any(above) else "refuted"
    return Verdict(word, by)


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    looks = {"kept over one group": "#D55E00", "tuned over one group": "#0072B2"}
    last = [row for row in result["ratios"] if row["loss"] == str(problems.TARGET)]
    for shift, (name, colour) in zip((-0.08, 0.08), looks.items(), strict=True):
        value, low, high = np.array([row[name] for row in last], float).T
        high = np.where(np.isfinite(high), high, 2 * value)
        x = np.arange(len(last)) + shift
        label = "momentum 0.9 kept" if "kept" in name else "momentum tuned"
        error = [np.maximum(value - low, 0), np.maximum(high - value, 0)]
        axes.errorbar(x, value, error, fmt="o", color=colour, capsize=3, label=label)
    axes.axhline(1, color="#666666", lw=0.8)
    names = [f"{row['network']}, batch {row['batch']}" for row in last]
    axes.set_xticks(range(len(last)), names)
    axes.set_yscale("log")
    axes.set_ylabel("updates of 16 groups over one group")
    axes.legend()
