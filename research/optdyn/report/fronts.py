"""Fronts of training loss against what it cost: the settings that no other equals for less.

    simulated_seconds   on the simulated cluster
    sequential          updates x sequential_flops: what waits for one another on any hardware
    total               updates x total_flops: what one device has to do

A *setting* is all that a run's config says but the seed; its loss after an update is the median of
its seeds, infinite for one that has diverged. On a *front* are the settings and updates that no
other equals for less of a cost or beats for as much.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

FLOPS = {"sequential": "sequential_flops", "total": "total_flops"}  # columns of runs, an update


def levels(runs: pd.DataFrame, log: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """One row a setting and log point after update 0, where the median of the losses is finite.

    `runs` and `log` as `tables.load` has them; settings are what differs in the columns `by`.
    Columns: `by`, `step`, `simulated_seconds` (median), `sequential` and `total` (FLOPs until then)
    if the runs have them, `loss`, its least `low` and most `high` over `seeds` runs.
    """
    costs = {cost: column for cost, column in FLOPS.items() if column in runs}
    runs = runs.assign(number=runs.groupby(list(by), sort=False, dropna=False).ngroup())
    log = log.loc[log["step"] > 0, ["point", "step", "simulated_seconds", "train_loss"]]
    members = runs[["number", "point", "status"]]
    places = members.merge(log)[["number", "step"]].drop_duplicates()
    every = places.merge(members).merge(log, "left", ["point", "step"])
    # A run that diverged has a null and then nothing; others may have got less far.
    lost = every["train_loss"].isna() & (every["status"] == "diverged")
    every = every.assign(train_loss=every["train_loss"].mask(lost, np.inf))
    every = every.dropna(subset=["train_loss"])
    losses = every.groupby(["number", "step"], as_index=False).agg(
        simulated_seconds=("simulated_seconds", "median"),
        loss=("train_loss", "median"),
        low=("train_loss", "min"),
        high=("train_loss", "max"),
        seeds=("train_loss", "size"),
    )
    settings = runs.drop_duplicates("number")[["number", *by, *costs.values()]]
    table = settings.merge(losses[np.isfinite(losses["loss"])])
    for cost, column in costs.items():
        table[cost] = table["step"] * pd.to_numeric(table[column])
    return table[[*by, "step", "simulated_seconds", *costs, "loss", "low", "high", "seeds"]]


def front(cost: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Indices of the points that no other is as good as in both and better in one, by their cost.

    Of equals it has the first.
    """
    order = np.lexsort((loss, cost))
    best = np.minimum.accumulate(loss[order])
    return order[np.diff(best, prepend=np.inf) < 0]


def fronts(table: pd.DataFrame, cost: str, by: str) -> pd.DataFrame:
    """The rows of `levels` that are on the front of their value of `by`, front after front."""
    groups = [group for _, group in table.groupby(by, sort=False)]
    found = [its.iloc[front(its[cost].to_numpy(), its["loss"].to_numpy())] for its in groups]
    return pd.concat([table.iloc[:0], *found])


def at(
    table: pd.DataFrame, cost: str, by: str, names: Sequence[str], budgets: np.ndarray
) -> np.ndarray:
    """(3, names, budgets): median, least and most loss on each name's front, at so much cost.

    Up to its first log point nothing is known, nor beyond what it was trained to: NaN.
    """
    best = fronts(table, cost, by)
    losses = np.full((3, len(names), len(budgets)), np.nan)
    for i, name in enumerate(names):
        its = best[best[by] == name]
        place = np.searchsorted(its[cost], budgets, side="right") - 1
        known = (place >= 0) & (budgets <= table.loc[table[by] == name, cost].max())
        losses[:, i, known] = its[["loss", "low", "high"]].to_numpy().T[:, place[known]]
    return losses


def regions(
    table: pd.DataFrame, cost: str, by: str, names: Sequence[str]
) -> list[tuple[str, float, float]]:
    """Whose loss is the lowest from one cost to another, exactly: between the fronts' points.

    Only costs count that two names or more were trained to; of equals the first name is the lowest.
    """
    ends = table.groupby(by)[cost].max()
    places = np.union1d(fronts(table, cost, by)[cost], ends)
    losses = at(table, cost, by, names, places)[0]
    known = np.isfinite(losses).sum(axis=0) > 1
    places, lowest = places[known], np.nan_to_num(losses[:, known], nan=np.inf).argmin(axis=0)
    starts = np.flatnonzero(np.diff(lowest, prepend=-1))
    until = [*places[starts[1:]], *places[-1:]]
    return [
        (names[lowest[start]], float(places[start]), float(end))
        for start, end in zip(starts, until, strict=True)
    ]
