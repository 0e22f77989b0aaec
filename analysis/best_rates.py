"""The best setting of each arm of a finished grid: `python analysis/best_rates.py WORKDIR`.

The points of such grids, as `grids/gossip`, are named ARM, rate and seed. The best is by the median
training loss over seeds, of the mean of nodes where the log has it.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

SETTING = ["optimizer.momentum", "optimizer.learning_rate"]
SHOWN = ("mean_loss", "train_loss", "node_distance", "simulated_seconds")


def rows(results: pd.DataFrame) -> list[str]:
    """Returns a line of a Markdown table for each arm of a `results.csv`."""
    results = results.assign(
        arm=results["point"].str.replace(r"([-,][\d.]+(e-\d+)?)+$", "", regex=True)
    )
    loss = "mean_loss" if "mean_loss" in results else "train_loss"
    results[loss] = results[loss].where(results["status"] == "completed", np.inf)
    setting = [key for key in SETTING if key in results]
    lines = []
    for arm, runs in results.groupby("arm", sort=False):
        medians = runs.groupby(setting)[loss].median()
        best = runs.set_index(setting).loc[[medians.idxmin()]]
        cells = [
            f"{best[name].median():.3g} ({best[name].min():.3g} to {best[name].max():.3g})"
            for name in SHOWN
            if name in best
        ]
        where = ", ".join(f"{value:.3g}" for value in np.atleast_1d(medians.idxmin()))
        lines.append(
            f"| {arm} | {where} | {' | '.join(cells)} | {best['sent_bytes'].median() / 1e6:.3g} |"
        )
    return lines


if __name__ == "__main__":
    print("\n".join(rows(pd.read_csv(Path(sys.argv[1]) / "results.csv"))))
