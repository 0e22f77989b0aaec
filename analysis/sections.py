"""What the report says of trained runs: the table, the curves, and the sentences beside them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import efficiency, figures
from analysis.efficiency import MOMENTUM
from analysis.page import Cell, Column, Picture, Table, cell, number

NAME, GROUPS = "strategy.name", "strategy.groups"
TITLES = {
    NAME: "strategy",
    GROUPS: "groups g",
    MOMENTUM: "momentum",
    "optimizer.learning_rate": "learning rate",
    "train_loss": "final training loss",
    "test_accuracy": "test accuracy",
    "updates_to_target": "updates to target (statistical efficiency)",
    "simulated_seconds_per_step": "simulated seconds an update (hardware efficiency)",
    "seconds_to_target": "simulated seconds to target (their product)",
}


def headline(runs: pd.DataFrame, keys: Sequence[str]) -> Table:
    """One row a setting, with the median of its seeds."""
    keys = [key for key in keys if key != "seed"]
    seeds = _seeded(runs)
    shown = [f for f in efficiency.FIGURES if f in runs and np.isfinite(_floats(runs[f])).any()]
    columns = [Column(TITLES.get(k, k), any(isinstance(v, str) for v in runs[k])) for k in keys]
    columns += [Column("status", text=True), *(Column(TITLES[figure]) for figure in shown)]
    rows = []
    for _, group in runs.groupby("setting", sort=False):
        status = counted(group["status"]) if seeds else group["status"].iloc[0]
        bad = set(group["status"]) != {"completed"}
        row = [cell(group[key].iloc[0]) for key in keys]
        rows.append([*row, Cell(status, status, bad), *(_of_seeds(group[f]) for f in shown)])
    return Table("Runs", columns, rows)


def conclusions(runs: pd.DataFrame, keys: Sequence[str], target: float, given: bool) -> list[str]:
    """The target, and who gets there first by either clock."""
    if not np.isfinite(target):
        return []
    several = runs["setting"].nunique() > 1
    why = "the lowest that every method here reaches" if several else "the lowest reached"
    if _tuned(runs):
        why += " at its best learning rate"
    if _seeded(runs):
        why += " with the worst of its seeds"
    lines = [f"Target: a training loss of {number(target)}, {'as asked for' if given else why}."]
    clocks = {"updates": "updates", "seconds": "simulated seconds"}
    settings = runs.groupby("setting")[[f"{clock}_to_target" for clock in clocks]].median()
    for clock, unit in clocks.items() if several else ():
        column = settings[f"{clock}_to_target"]
        first = runs[runs["setting"] == column.idxmin()].iloc[0]
        if np.isfinite(column.min()):
            name = describe(first, varying(runs, keys))
            lines.append(f"Fewest {unit} to the target: {number(column.min())}, {name}.")
    return lines


def notes(runs: pd.DataFrame, target: float) -> list[str]:
    """How to read the table."""
    lines = []
    if np.isfinite(target):
        lines.append(
            "Updates and seconds to the target are interpolated linearly between log points; a run "
            "that diverged has not reached it."
        )
    if _seeded(runs):
        lines.append("Of several seeds the table has the median, in brackets least and most.")
    return lines


def losses(
    runs: pd.DataFrame, log: pd.DataFrame, keys: Sequence[str], target: float
) -> tuple[str, list[Picture]]:
    """Training loss against both clocks, one curve a method."""
    logged = runs[runs["point"].isin(log["point"])]
    if logged.empty:
        return "", []
    best = efficiency.best(logged)
    colours = figures.colours(dict(zip(best["place"], _floats(best[GROUPS]), strict=True)))
    dashes, policies = _policies(best)
    tuned = _tuned(runs)
    labels = [key for key in varying(logged, keys) if tuned or not efficiency.tunes(key)]
    curves = [
        figures.Curve(
            describe(group.iloc[0], labels),
            colours[group["place"].iloc[0]],
            dashes[group[MOMENTUM].iloc[0]],
            log[log["point"].isin(group["point"])],
        )
        for _, group in best.groupby("method", sort=False)
    ]
    note = "Loss of the training set (5,000 examples of it at most) at the current parameters."
    if tuned:
        note += " Each method with its best setting: the fewest updates to the target."
    if _seeded(best):
        note += " Several seeds: their median, and a band from least to most."
    note += policies
    diverged = set(best.loc[best["status"] == "diverged", "point"])
    pictures = [
        Picture(
            figures.losses(curves, clock, name, target, diverged),
            f"Training loss against {name}. {_spoken(curves)}",
        )
        for clock, name in (("step", "updates"), ("simulated_seconds", "simulated seconds"))
    ]
    return note, pictures


def describe(values: Mapping[str, Any], keys: Sequence[str]) -> str:
    """A setting in words: `sync, momentum 0.9`; asynchronous runs go by their groups, `g = 4`."""
    known = {key: cell(values[key]).shown for key in keys if not pd.isna(values[key])}
    if GROUPS in known:
        known.pop(NAME, None)
    phrases = {NAME: "{}", GROUPS: "g = {}"}
    return ", ".join(
        phrases.get(key, TITLES.get(key, key) + " {}").format(value) for key, value in known.items()
    )


def varying(runs: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """The keys that tell these settings apart, in the order of `keys`; the strategy always."""
    return [k for k in keys if k == NAME or (k != "seed" and runs[k].nunique(dropna=False) > 1)]


def counted(statuses: Iterable[str]) -> str:
    """`3 completed, 1 diverged`."""
    return ", ".join(f"{n} {status}" for status, n in Counter(statuses).items())


def _tuned(runs: pd.DataFrame) -> bool:
    """Whether some method was tried at several learning rates, or the like."""
    return runs["setting"].nunique() > runs["method"].nunique()


def _seeded(runs: pd.DataFrame) -> bool:
    return bool(runs["setting"].duplicated().any())


def _policies(runs: pd.DataFrame) -> tuple[dict[float, str], str]:
    """A line style for each momentum, and the sentences that say what the styles mean.

    A momentum used at every place is a policy, with a style of its own; the others were chosen
    for their places and share one.
    """
    places = runs.groupby(MOMENTUM)["place"].nunique()
    fixed = sorted(places.index[places == runs["place"].nunique()], reverse=True)
    styles = [list(figures.DASHES)[i % len(figures.DASHES)] for i in range(len(fixed) + 1)]
    dashes = {m: styles[fixed.index(m) if m in fixed else -1] for m in places.index}
    if len(dashes) == 1:
        return dashes, ""
    said = [f"momentum {number(m)} throughout" for m in fixed]
    if len(fixed) < len(dashes):
        said.append("momentum chosen for the number of groups")
    both = zip(styles, said, strict=False)
    return dashes, "".join(f" {style.capitalize()}: {what}." for style, what in both)


def _spoken(curves: Collection[figures.Curve]) -> str:
    """The curves for who cannot see them."""
    ends = {
        curve.label: curve.log.dropna(subset=["train_loss"]).groupby("point")["train_loss"].last()
        for curve in curves
    }
    return (
        "; ".join(f"{label} ends at {cell(end.median()).shown}" for label, end in ends.items())
        + "."
    )


def _of_seeds(values: pd.Series) -> Cell:
    values = _floats(values)
    low, high = (cell(float(f"{end:.3g}")).shown for end in (values.min(), values.max()))
    middle = cell(values.median(skipna=False))
    return middle._replace(range=f"{low} – {high}") if low != high else middle


def _floats(values: pd.Series) -> pd.Series:
    return pd.to_numeric(values).astype(float)
