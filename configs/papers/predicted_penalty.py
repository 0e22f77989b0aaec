"""How far predictions of staleness's cost are off: claim 15, as an estimate against one bound.

Cells, predictions and tuning are those of `when_asynchrony_pays.py`, on its CNN, which nothing was
fitted on. Its rule has two bounds, and between them it decides nothing.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from optdyn.configs.papers import when_asynchrony_pays as pays
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import drawn_again, shown
from optdyn.evidence.study import Study

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}
MODEL, BOUND = "cnn", 1.5

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


def measure(study: Study) -> dict[str, Any]:
    found = pays.measured(study, [cell for cell in pays.cells(study.scale) if cell.model == MODEL])
    alone = {row["batch"]: row["updates"] for row in found["synchronous"]}
    return found | {"factor": factor(found["cells"], alone)}


def factor(rows: list[dict[str, Any]], alone: dict[int, list[float]]) -> tuple[float, float, float]:
    """The median error factor of the cells, and its interval."""
    updates = np.array([row["updates"] for row in rows])
    synchronous = np.array([alone[row["batch"]] for row in rows])
    predicted = np.array([row["predicted"] for row in rows])

    def median(seeds: np.ndarray) -> float:
        taken, of = (np.median(each[:, seeds], axis=1) for each in (updates, synchronous))
        off = np.abs(np.log(predicted) - np.log(taken / of))
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
