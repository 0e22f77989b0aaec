"""The report's section of loss against cost: the settings that no other equals for less.

    simulated_seconds   on the simulated cluster
    sequential          updates x sequential_flops, the longest chain on any hardware
    total               updates x total_flops, the work of one device

A setting's loss after an update is the median of its seeds, infinite for one that has diverged. On
a *front* are settings and updates that no other equals for less or beats for as much.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from optdyn.report import figures, run_tables
from optdyn.report.curves import RunComparison, looks_of_kinds
from optdyn.report.page import Picture, Section, number

FLOPS = {"sequential": "sequential_flops", "total": "total_flops"}  # columns of runs, an update
COSTS = {
    "simulated_seconds": "simulated seconds",
    "sequential": "sequential FLOPs",
    "total": "total FLOPs",
}
REGIONS = 8  # stretches of a cost with one winner that are said in words
SETTINGS = 60  # drawn thinly below their front, at most


class Front(NamedTuple):
    label: str
    colour: Any
    dashes: str
    best: pd.DataFrame  # rows on the front
    settings: pd.DataFrame  # rows of all its settings, named in the column `setting`


def section(comparison: RunComparison) -> Section | None:
    """Returns the section of a front for each kind of method, and of who is best when."""
    table = levels(comparison.runs, comparison.log, ["setting", "kind"])
    table = table[table["simulated_seconds"] > 0]
    if table["setting"].nunique() < 2:
        return None
    costs = [c for c in COSTS if c in table and table[c].notna().all()]
    if {"sequential", "total"} <= set(costs) and (table["sequential"] == table["total"]).all():
        costs.remove("sequential")
    looks = {
        kind: look
        for kind, look in looks_of_kinds(comparison.runs).items()
        if kind in set(table["kind"])
    }
    thin = table["setting"].nunique() <= SETTINGS
    pictures = []
    for cost in costs:
        best = fronts(table, cost, "kind")
        lines = [
            Front(kind, *look, best[best["kind"] == kind], table[table["kind"] == kind])
            for kind, look in looks.items()
        ]
        ends = "; ".join(f"{line.label} gets to {line.best['loss'].iloc[-1]:.3g}" for line in lines)
        alt = f"Pareto fronts of training loss against {COSTS[cost]}. {ends}."
        figure = picture(lines, cost, COSTS[cost], thin)
        pictures.append(Picture(figures.uri(figure), alt))
    text = (
        "Pareto fronts: the lowest loss, median over seeds, that any setting of a kind has had for "
        "so much or less; bands are from the least to the most of its seeds."
    )
    if titles := run_tables.titles_within_kinds(comparison.runs, comparison.keys):
        text += f" Settings of one kind differ in {', '.join(titles)}."
    text += " Thin lines are the settings." if thin else ""
    points = [line for cost in costs if (line := _winners(table, cost, list(looks)))]
    return Section("Loss against cost", points, text=text, pictures=pictures)


def _winners(table: pd.DataFrame, cost: str, kinds: Sequence[str]) -> str:
    """Returns the kind of the lowest loss by ranges of cost; '' without any, or of many ranges."""
    found = regions(table, cost, "kind", kinds)
    if not 0 < len(found) <= REGIONS:
        return ""
    winners = (f"{kind} from {number(start)} to {number(end)}" for kind, start, end in found)
    return f"Lowest loss by {COSTS[cost]}: {'; '.join(winners)}."


@matplotlib.rc_context(figures.STYLE)
def picture(lines: Sequence[Front], cost: str, label: str, settings: bool = True) -> Figure:
    """Draws fronts of loss against a cost, with the range over seeds; settings are thin lines."""
    figure, axes = figures.new()
    best = pd.concat([line.best for line in lines])
    for line in lines:
        for _, setting in line.settings.groupby("setting") if settings else ():
            x, loss = figures.thin(setting)[[cost, "loss"]].to_numpy().T
            axes.plot(x, loss, color=line.colour, alpha=0.35, lw=0.6)
        # The last of a front holds for as long as its kind was trained.
        last = line.best.tail(1).assign(**{cost: line.settings[cost].max()})
        steps = pd.concat([line.best, last])
        x, high = steps[cost], steps["high"].replace(np.inf, np.nan)
        axes.fill_between(x, steps["low"], high, step="post", color=line.colour, alpha=0.15, lw=0)
        axes.plot(
            x,
            steps["loss"],
            color=line.colour,
            drawstyle="steps-post",
            ls=figures.DASHES[line.dashes],
            marker=figures.MARKERS[line.dashes],
            markevery=list(range(0, len(steps) - 1, max(len(steps) // 12, 1))),
            ms=4,
            label=line.label,
        )
    low, top = best["low"].min(), best["loss"].max()
    figures.loss_scale(axes, low, 1.05 * top if top > 0 else top)
    axes.set(xscale="log", xlabel=label, ylabel="training loss")
    figures.legend(figure)
    return figure


def levels(runs: pd.DataFrame, log: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Returns a row a setting and log point after update 0 with a finite median of the losses.

    Settings are the distinct values of the columns `by`. The columns are `by`, `step`,
    `simulated_seconds` (median), `sequential` and `total` (FLOPs until then) if the runs have them,
    `loss`, its least `low` and most `high` over `seeds` runs.
    """
    costs = {cost: column for cost, column in FLOPS.items() if column in runs}
    runs = runs.assign(number=runs.groupby(list(by), sort=False, dropna=False).ngroup())
    log = log.loc[log["step"] > 0, ["point", "step", "simulated_seconds", "train_loss"]]
    members = runs[["number", "point", "status"]]
    places = members.merge(log)[["number", "step"]].drop_duplicates()
    rows = places.merge(members).merge(log, "left", ["point", "step"])
    # A run that diverged has a null and then nothing; others may have got less far.
    lost = rows["train_loss"].isna() & (rows["status"] == "diverged")
    rows = rows.assign(train_loss=rows["train_loss"].mask(lost, np.inf))
    losses = (
        rows.dropna(subset=["train_loss"])
        .groupby(["number", "step"], as_index=False)
        .agg(
            simulated_seconds=("simulated_seconds", "median"),
            loss=("train_loss", "median"),
            low=("train_loss", "min"),
            high=("train_loss", "max"),
            seeds=("train_loss", "size"),
        )
    )
    settings = runs.drop_duplicates("number")[["number", *by, *costs.values()]]
    table = settings.merge(losses[np.isfinite(losses["loss"])])
    for cost, column in costs.items():
        table[cost] = table["step"] * pd.to_numeric(table[column])
    return table[[*by, "step", "simulated_seconds", *costs, "loss", "low", "high", "seeds"]]


def front(cost: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Returns the indices, by cost, of points that no other equals for less.

    The first of equal points stands for them.
    """
    order = np.lexsort((loss, cost))
    best = np.minimum.accumulate(loss[order])
    return order[np.diff(best, prepend=np.inf) < 0]


def fronts(table: pd.DataFrame, cost: str, by: str) -> pd.DataFrame:
    """Returns the rows of `levels` that are on the front of their value of `by`, in its order."""
    groups = [group for _, group in table.groupby(by, sort=False)]
    found = [rows.iloc[front(rows[cost].to_numpy(), rows["loss"].to_numpy())] for rows in groups]
    return pd.concat([table.iloc[:0], *found])


def losses_at(
    table: pd.DataFrame, cost: str, by: str, names: Sequence[str], budgets: np.ndarray
) -> np.ndarray:
    """Returns the median, least and most loss on fronts at some costs, (3, names, budgets).

    NaN before a front's first log point, and after the end of its settings' training.
    """
    best = fronts(table, cost, by)
    losses = np.full((3, len(names), len(budgets)), np.nan)
    for i, name in enumerate(names):
        rows = best[best[by] == name]
        place = np.searchsorted(rows[cost], budgets, side="right") - 1
        known = (place >= 0) & (budgets <= table.loc[table[by] == name, cost].max())
        losses[:, i, known] = rows[["loss", "low", "high"]].to_numpy().T[:, place[known]]
    return losses


def regions(
    table: pd.DataFrame, cost: str, by: str, names: Sequence[str]
) -> list[tuple[str, float, float]]:
    """Returns (name, from, to): whose loss is lowest from one cost to another, exactly.

    Only costs count to which two names or more were trained; of equals the first is the lowest.
    """
    ends = table.groupby(by)[cost].max()
    places = np.union1d(fronts(table, cost, by)[cost], ends)
    losses = losses_at(table, cost, by, names, places)[0]
    known = np.isfinite(losses).sum(axis=0) > 1
    places, lowest = places[known], np.nan_to_num(losses[:, known], nan=np.inf).argmin(axis=0)
    starts = np.flatnonzero(np.diff(lowest, prepend=-1))
    until = [*places[starts[1:]], *places[-1:]]
    return [
        (names[lowest[start]], float(places[start]), float(end))
        for start, end in zip(starts, until, strict=True)
    ]
