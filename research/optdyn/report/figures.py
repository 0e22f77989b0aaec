"""The pictures of the report and the notebooks.

Colours go with the method, line styles and markers with the momentum policy, and all curves are in
the legend, so that no sign is the only one. Bands are the range over seeds, lines their median.
"""

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator
from PIL import Image

from optdyn.report import page

OKABE_ITO = ("#D55E00", "#000000", "#CC79A7", "#E69F00", "#56B4E9", "#009E73", "#0072B2")
GREY, VERMILION, BLUE = "#666666", "#D55E00", "#0072B2"
DASHES: dict[str, Any] = {
    "solid": "-",
    "dashed": (0, (5, 2)),
    "dotted": (0, (1, 1.3)),
    "dash-dotted": (0, (6, 2, 1, 2)),
}
MARKERS = dict(zip(DASHES, "os^D", strict=True))
STYLE: Any = {  # matplotlib's rcParams
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "grid.alpha": 0.3,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "svg.hashsalt": "optdyn",  # the same numbers give the same file
}
MARKED = 10  # figures of a series that have a marker and a bar each; more are a line and a band
POINTS = 200  # of a line, at most: more cannot be told apart
WIDE = 52  # characters of a legend's line


class LossCurve(NamedTuple):
    label: str
    colour: Any
    dashes: str  # a key of DASHES
    log: pd.DataFrame  # log points of its seeds, with the column `point`
    runs: pd.DataFrame  # its seeds


class Series(NamedTuple):
    """A figure by another, with its interval or its spread over seeds."""

    label: str
    colour: Any
    dashes: str  # a key of DASHES
    table: pd.DataFrame  # x, value, low, high
    joined: bool = True  # by a line


def spread(runs: pd.DataFrame, x: str, column: str) -> pd.DataFrame:
    """Returns the table of a `Series`: the column's median, least and most at each x."""
    table = runs.groupby(x)[column].agg(["median", "min", "max"]).reset_index()
    return table.set_axis(["x", "value", "low", "high"], axis=1)


def by_step(log: pd.DataFrame, clock: str, column: str) -> pd.DataFrame:
    """Returns the `thin` `spread` of a column at each step, by the median of a clock there."""
    times = log.groupby("step")[clock].median()
    return thin(spread(log, "step", column).assign(x=times.to_numpy()))


def thin(table: pd.DataFrame) -> pd.DataFrame:
    """Returns at most `POINTS` rows, evenly spaced, with the last."""
    last = len(table) - 1
    return table.iloc[np.unique(np.linspace(0, last, min(len(table), POINTS)).round().astype(int))]


def colours(places: Mapping[str, float]) -> dict[str, Any]:
    """Returns a colour for each name by its number of groups, NaN if it has none."""
    ordered = sorted((g, name) for name, g in places.items() if not np.isnan(g))
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, max(len(ordered), 1)))
    others = [name for name, g in places.items() if np.isnan(g)]
    return {name: shade for (_, name), shade in zip(ordered, shades, strict=False)} | {
        name: OKABE_ITO[i % len(OKABE_ITO)] for i, name in enumerate(others)
    }


@matplotlib.rc_context(STYLE)
def losses(
    curves: Sequence[LossCurve],
    clock: str,
    label: str,
    target: float = np.nan,
    others: Sequence[pd.DataFrame] = (),
    column: str = "train_loss",
    name: str = "training loss",
) -> Figure:
    """Draws a logged figure, by default the training loss, against another column of the log.

    `others` are the logs of settings that stay in the background.
    """
    figure, axes = new()
    for i, log in enumerate(others):
        middle = by_step(log, clock, column)
        note = f"{len(others)} others" if i == 0 else None
        axes.plot(middle["x"], middle["value"], color="#c4c4c4", lw=0.7, zorder=1, label=note)
    for curve in curves:
        band(axes, Series(*curve[:3], by_step(curve.log, clock, column)))
    log = pd.concat([curve.log for curve in curves] + list(others)).dropna(subset=[column])
    runs = pd.concat([curve.runs for curve in curves])
    diverged = runs.loc[runs["status"] == "diverged", "point"]
    ends = log[log["point"].isin(diverged)].groupby("point").tail(1)
    low, high = log[column].min(), log[column].max()
    # A run on its way to infinity would hide the others.
    top = min(1.2 * high, 2 * abs(log.groupby("point")[column].first().max()))
    if len(ends):
        heights = ends[column].clip(upper=top)  # at the rim, if it left the picture
        cross: Any = {"color": VERMILION, "ms": 9, "mew": 2.5, "ls": "", "marker": "x"}
        axes.plot(ends[clock], heights, zorder=5, clip_on=False, **cross)
        axes.plot([], [], label="diverged", **cross)
    if np.isfinite(target):
        axes.axhline(target, color=GREY, lw=1, ls=":", label=f"target, {target:.3g}")
    loss_scale(axes, low, top)
    axes.set(xlabel=label, ylabel=name)
    legend(figure)
    return figure


def band(axes: Axes, series: Series) -> None:
    """Draws a line of the values, and a band between the ends of their intervals."""
    label, colour, dashes, table, _ = series
    axes.plot(table["x"], table["value"], color=colour, ls=DASHES[dashes], label=label)
    if (table["high"] > table["low"]).any():
        axes.fill_between(table["x"], table["low"], table["high"], color=colour, alpha=0.18, lw=0)


def loss_scale(axes: Axes, low: float, top: float) -> None:
    """Makes y logarithmic where losses go over more than half a decade, and end at `top`."""
    if low > 0 and top > 3 * low:
        axes.set_yscale("log")
        log_ticks(axes.yaxis, top < 1e3 * low)
    if top > low:
        axes.set_ylim(top=top)


def nice(low: float, high: float) -> list[float]:
    """Returns 1, 2, 5, 10, ... between the two; only powers of ten if there are many."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    subs = (1, 2, 5) if len(decades) < 7 else (1,)
    return [s * 10.0**d for d in decades for s in subs if low <= s * 10.0**d <= high]


def log_ticks(axis: Axis, many: bool = True) -> None:
    """Labels powers of ten, and, if `many`, two and five times these."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if many else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


@matplotlib.rc_context(STYLE)
def course(series: Sequence[Series], x: str, y: str, log: bool = False) -> Figure:
    figure, axes = new()
    for line in series:
        band(axes, line._replace(table=line.table.replace(np.inf, np.nan)))
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)) if log else ():
        low, high = axes.dataLim.intervalx if name == "x" else axes.dataLim.intervaly
        if low > 0 and high > 3 * low:
            axes.set(**{f"{name}scale": "log"})
            log_ticks(axis, high < 200 * low)
    axes.set(xlabel=x, ylabel=y)
    legend(figure)
    return figure


@matplotlib.rc_context(STYLE)
def staleness(counts: np.ndarray, groups: int | None) -> Figure:
    """Draws the share of updates at each staleness; with `groups`, also the geometric law."""
    figure, axes = new(width=4.0, height=2.5)
    share = counts / counts.sum()
    shown = int(np.searchsorted(np.cumsum(share), 0.999)) + 1  # the far tail would hide the rest
    k = np.arange(shown)
    axes.bar(k, share[:shown], width=0.9, color="#56B4E9", label="simulated")
    if groups:
        law = (1 - 1 / groups) ** k / groups
        axes.plot(k, law, ".-", color=VERMILION, lw=1.2, ms=4, label="geometric law")
        axes.legend(loc="upper right")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="staleness (updates)", ylabel="share of updates")
    return figure


@matplotlib.rc_context(STYLE)
def against(
    series: Sequence[Series],
    x: str,
    y: str,
    theory: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    log: int = 0,
) -> Figure:
    """Draws figures with their intervals, and lines of theory.

    `log` is the base of a logarithmic x; figures at one x then stand side by side.
    """
    figure, axes = new()
    for i, (label, line) in enumerate((theory or {}).items()):
        axes.plot(*line, color=GREY, lw=1.2, ls=list(DASHES.values())[i], label=label)
    for i, (label, colour, dashes, table, joined) in enumerate(series):
        if joined and len(table) > MARKED:
            band(axes, series[i])
            continue
        shift = 1.03 ** (i - (len(series) - 1) / 2) if log else 1.0
        error = np.abs(table[["low", "high"]].sub(table["value"], axis=0)).T
        style: Any = {"color": colour, "ls": DASHES[dashes] if joined else "", "label": label}
        style |= {"marker": MARKERS[dashes], "ms": 5, "capsize": 3 if error.any(axis=None) else 0}
        axes.errorbar(table["x"] * shift, table["value"], error.fillna(0), **style)
    ticks = sorted(set(pd.concat([line.table["x"] for line in series])))
    if log:
        axes.set_xscale("log", base=log)
    if len(ticks) <= MARKED:
        axes.set_xticks(ticks)
        axes.xaxis.set_minor_locator(NullLocator())
    elif not log and all(tick == round(tick) for tick in ticks):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel=x, ylabel=y)
    legend(figure)
    return figure


def new(width: float = 5.0, height: float = 3.1) -> tuple[Figure, Axes]:
    """Returns an empty picture, in inches; 11 points are legible on a phone."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def legend(figure: Figure) -> None:
    """Puts the legend below the axes, and makes room for it."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    labels = [textwrap.shorten(label, 3 * WIDE, placeholder=" …") for label in labels]
    labels = [textwrap.fill(label, WIDE) for label in labels]
    columns = 2 if max(map(len, labels)) <= WIDE // 2 - 2 else 1
    rows = sum(1 + label.count("\n") for label in labels) / columns
    figure.set_figheight(figure.get_figheight() + 0.2 * np.ceil(rows))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def svg(figure: Figure) -> str:
    text = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def png(figure: Figure) -> bytes:
    """Returns a PNG of 128 colours, 700 pixels wide for a picture of `new`."""
    drawn, file = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(drawn, format="png", dpi=140)
    Image.open(drawn).convert("RGB").quantize(128).save(file, format="png", optimize=True)
    return file.getvalue()


def uri(figure: Figure) -> str:
    return page.uri(svg(figure).encode())
