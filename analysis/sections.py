"""What each section of the report says: tables, pictures and sentences, ready to be laid out."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import efficiency, figures
from analysis.efficiency import MOMENTUM
from analysis.tables import Point

NAME, GROUPS, RATE = "strategy.name", "strategy.groups", "optimizer.learning_rate"
TITLES = {
    NAME: "strategy",
    GROUPS: "groups",
    MOMENTUM: "momentum",
    RATE: "learning rate",
    "train_loss": "final train loss",
    "test_accuracy": "test accuracy",
    "updates_to_target": "updates to target: statistical efficiency",
    "simulated_seconds_per_step": "simulated seconds an update: hardware efficiency",
    "seconds_to_target": "simulated seconds to target: their product",
}
CLOCKS = {"step": "updates", "simulated_seconds": "simulated seconds"}


class Column(NamedTuple):
    title: str
    text: bool = False


class Cell(NamedTuple):
    shown: str
    sort: Any
    bad: bool = False
    range: str = ""


class Table(NamedTuple):
    label: str
    columns: list[Column]
    rows: list[list[Cell]]


class Picture(NamedTuple):
    src: str
    alt: str
    caption: str = ""


def headline(
    runs: pd.DataFrame, keys: Sequence[str], target: float, given: bool
) -> dict[str, Any]:
    """One row a setting, with the median of its seeds, and what to conclude."""
    keys = [k for k in keys if k != "seed"]
    shown = [f for f in efficiency.FIGURES if f in runs and np.isfinite(runs[f].astype(float)).any()]
    seeds = len(runs) > runs["setting"].nunique()
    columns = [Column(TITLES.get(k, k), text=runs[k].map(type).eq(str).any()) for k in keys]
    columns += [Column("status", text=True)] + [Column(TITLES[f]) for f in shown]
    rows = []
    for _, group in runs.groupby("setting", sort=False):
        statuses = Counter(group["status"])
        status = ", ".join(f"{n} {s}" for s, n in statuses.items()) if seeds else group["status"].iloc[0]
        row = [cell(group[k].iloc[0]) for k in keys]
        row.append(Cell(status, status, bad=set(statuses) != {"completed"}))
        rows.append(row + [_middle(group[f].astype(float)) for f in shown])
    counts = ", ".join(f"{n} {s}" for s, n in Counter(runs["status"]).items())
    lead = [f"{len(runs)} run{'s' * (len(runs) > 1)}: {counts}."]
    if np.isfinite(target):
        why = "as asked for" if given else "the lowest that every method reaches, each with the best of its learning rates and the worst of its seeds"
        lead.append(f"Target: a training loss of {number(target)}, {why}.")
        lead += _fewest(runs, keys)
    notes = [
    ]
    return {"lead": lead, "headline": Table("Runs", columns, rows), "notes": notes}


def number(value: float) -> str:
    """Four digits, no exponent below a million."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def cell(value: Any) -> Cell:
    """A value of a config or of a fit."""
    if value is None or value != value:
        return Cell("–", "Infinity")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Cell("not reached" if value == np.inf else number(value), str(value).replace("inf", "Infinity"))
    return Cell(str(value), str(value))
