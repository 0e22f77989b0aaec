"""The charts that a page draws itself (`page.js`): the series of its pictures, as JSON values.

x, y      name of the axis, `log` as it starts, `positive` if it can be logarithmic
series    label, colour, dash; x ascending, y, and from low to high over seeds; null: nothing
level     a loss drawn across; `lanes` and `bars` are those of a Gantt chart
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex

from optdyn.analysis.figures import Curve, by_step, thin
from optdyn.analysis.tradeoffs import Front

DASH = {"solid": "", "dashed": "6 3", "dotted": "2 2", "dash-dotted": "8 3 2 3"}
FAINT = 5  # of so many points of a background line one is drawn


def losses(
    curves: Sequence[Curve],
    clock: str,
    label: str,
    target: float = np.nan,
    others: Sequence[pd.DataFrame] = (),
    column: str = "train_loss",
    name: str = "training loss",
) -> dict[str, Any]:
    """The picture of `figures.losses`, with the same arguments."""
    series = [
        {"label": "others", "colour": "#999999", "faint": True, **_line(one, clock, False)}
        for one in (by_step(log, clock, column).iloc[::FAINT] for log in others)
    ]
    tables = [(curve, by_step(curve.log, clock, column)) for curve in curves]
    log = pd.concat([curve.log for curve in curves])
    top = 2 * abs(log.groupby("point")[column].first().max())  # beyond, a run is on its way away
    found = chart([*series, *map(_seeded, tables)], label, name)
    found["x"]["log"] = False
    found["y"]["top"] = _round(top)
    return found if np.isnan(target) else found | {"level": _round(target)}


def course(
    tables: Sequence[tuple[Curve, pd.DataFrame]], x: str, y: str, log: bool
) -> dict[str, Any]:
    """The picture of `figures.course`, with the same arguments."""
    found = chart([_seeded(table) for table in tables], x, y)
    if not log:
        found["x"]["log"] = found["y"]["log"] = False
    return found


def fronts(lines: Sequence[Front], cost: str, label: str) -> dict[str, Any]:
    """The picture of `tradeoffs.fronts`: each loss holds until the next lower one."""
    series = []
    for line in lines:
        its = pd.concat([line.best, line.best.tail(1).assign(**{cost: line.every[cost].max()})])
        corners = thin(its).loc[:, [cost, "loss", "low", "high"]]
        corners = corners.iloc[np.repeat(np.arange(len(corners)), 2)]
        x = corners[cost].to_numpy()
        corners = corners.iloc[:-1].assign(**{cost: x[1:]})
        named = corners.rename(columns={"loss": "median"})
        curve = Curve(line.label, line.colour, line.dashes, line.best, line.best.iloc[:0])
        series.append(_seeded((curve, named)) | {"step": True})
    found = chart(series, label, "training loss")
    found["x"]["log"] = found["x"]["positive"]
    return found


def gantt(bars: pd.DataFrame, lanes: Sequence[str]) -> dict[str, Any]:
    """The picture of `figures.gantt`, with the same arguments."""
    most = max(bars["staleness"].max(), 1)
    found = chart([], "simulated seconds", "")
    found["lanes"] = list(lanes)
    found["bars"] = [
        [lane, _round(start), _round(end), text, _round(staleness / most)]
        for lane, start, end, staleness, text in bars.itertuples(index=False)
    ]
    return found


def chart(series: Sequence[Mapping[str, Any]], x: str, y: str) -> dict[str, Any]:
    """Axes are logarithmic where values go over more than half a decade."""
    shown = [its for its in series if its["x"]]
    axes = {
        "x": _axis(x, (value for its in shown for value in its["x"])),
        "y": _axis(y, (value for its in shown for value in its["y"])),
    }
    return {**axes, "series": shown}


def _axis(name: str, values: Iterable[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None and value != 0]
    positive = bool(known) and min(known) > 0
    return {
        "name": name,
        "positive": positive,
        "log": positive and max(known) > 3 * min(known),
    }


def _seeded(found: tuple[Curve, pd.DataFrame]) -> dict[str, Any]:
    curve, table = found
    diverged = int((curve.runs["status"] == "diverged").sum()) if len(curve.runs) else 0
    label = curve.label + (f" ({diverged} diverged)" if diverged else "")
    look = {"label": label, "colour": to_hex(curve.colour), "dash": DASH[curve.dashes]}
    return {**look, **_line(table, table.columns[0])}


def _line(table: pd.DataFrame, x: str, band: bool = True) -> dict[str, Any]:
    table = table[np.isfinite(table["median"])]
    columns = {"x": x, "y": "median"}
    if band and (table["high"] > table["low"]).any():
        columns |= {"low": "low", "high": "high"}
    return {name: [_round(value) for value in table[key]] for name, key in columns.items()}


def _round(value: float) -> float | None:
    """Four digits; null for what is no number."""
    return float(f"{value:.4g}") if np.isfinite(value) else None
