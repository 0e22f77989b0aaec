"""The pictures: each function draws one, of the report and the notebooks alike.

Colours go with the method (viridis over the number of groups, Okabe-Ito for what has no groups),
line styles and markers with the momentum policy, so that neither is the only sign of anything:
every curve is also in the legend. Bands are the range over seeds, lines their median.
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
    """One setting."""

    label: str
    colour: Any
    dashes: str  # a key of DASHES
    log: pd.DataFrame  # log points of its seeds, with the column `point`
    runs: pd.DataFrame  # its seeds


class Series(NamedTuple):
    """A figure against another, with its interval or its spread over seeds."""

    label: str
    colour: Any
    dashes: str  # a key of DASHES
    table: pd.DataFrame  # x, value, low, high
    joined: bool = True  # by a line


def spread(runs: pd.DataFrame, x: str, column: str) -> pd.DataFrame:
    """The table of a `Series`: the column's median, least and most at each x."""
    found = runs.groupby(x)[column].agg(["median", "min", "max"]).reset_index()
    return found.set_axis(["x", "value", "low", "high"], axis=1)


def by_step(log: pd.DataFrame, clock: str, column: str) -> pd.DataFrame:
    """The `spread` of a column at each step, against the median of a clock there; `thin`."""
    at = log.groupby("step")[clock].median()
    return thin(spread(log, "step", column).assign(x=at.to_numpy()))


def thin(table: pd.DataFrame) -> pd.DataFrame:
    """The rows thinned evenly to at most about `POINTS`, the last with them."""
    last = len(table) - 1
    return table.iloc[np.unique(np.linspace(0, last, min(len(table), POINTS)).round().astype(int))]


def colours(places: Mapping[str, float]) -> dict[str, Any]:
    """A colour for each name, given its number of groups, NaN if it has none."""
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
    """A logged figure, the training loss, against a clock: another column of the log.

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
    gone = {p for c in curves for p in c.runs.loc[c.runs["status"] == "diverged", "point"]}
    ends = log[log["point"].isin(gone)].groupby("point").tail(1)
    low, high = log[column].min(), log[column].max()
    # A run on its way to infinity would hide the others.
    top = min(1.2 * high, 2 * abs(log.groupby("point")[column].first().max()))
    if len(ends):
        where = ends[column].clip(upper=top)  # at the rim, if it left the picture
        cross: Any = {"color": VERMILION, "ms": 9, "mew": 2.5, "ls": "", "marker": "x"}
        axes.plot(ends[clock], where, zorder=5, clip_on=False, **cross)
        axes.plot([], [], label="diverged", **cross)
    if np.isfinite(target):
        axes.axhline(target, color=GREY, lw=1, ls=":", label=f"target, {target:.3g}")
    loss_scale(axes, low, top)
    axes.set(xlabel=label, ylabel=name)
    legend(figure)
    return figure


def band(axes: Axes, series: Series) -> None:
    """A line of the values, and a band between the ends of their intervals."""
    label, colour, dashes, table, _ = series
    axes.plot(table["x"], table["value"], color=colour, ls=DASHES[dashes], label=label)
    if (table["high"] > table["low"]).any():
        axes.fill_between(table["x"], table["low"], table["high"], color=colour, alpha=0.18, lw=0)


def loss_scale(axes: Axes, low: float, top: float) -> None:
    """Logarithmic where losses go over more than half a decade, and up to `top`."""
    if low > 0 and top > 3 * low:
        axes.set_yscale("log")
        log_ticks(axes.yaxis, top < 1e3 * low)
    if top > low:
        axes.set_ylim(top=top)


def nice(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... between the two; of many only powers of ten."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    subs = (1, 2, 5) if len(decades) < 7 else (1,)
    return [s * 10.0**d for d in decades for s in subs if low <= s * 10.0**d <= high]


def log_ticks(axis: Axis, many: bool = True) -> None:
    """Numbers at powers of ten, and, if `many`, at two and five times these."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if many else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


@matplotlib.rc_context(STYLE)
def course(series: Sequence[Series], x: str, y: str, log: bool = False) -> Figure:
    """Lines with their bands, against `x`; `log`: on scales that are logarithmic where it helps."""
    figure, axes = new()
    for one in series:
        band(axes, one._replace(table=one.table.replace(np.inf, np.nan)))
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
    """Share of the updates at each staleness; over it the geometric law of mean g - 1, given g."""
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
    """Figures with their intervals against another, labelled `x` and `y`, and lines of theory.

    `log` is the base of x's scale if that is logarithmic; then those at one x stand side by side.
    """
    figure, axes = new()
    for i, (label, (at, value)) in enumerate((theory or {}).items()):
        axes.plot(at, value, color=GREY, lw=1.2, ls=list(DASHES.values())[i], label=label)
    for i, one in enumerate(series):
        label, colour, dashes, table, joined = one
        if joined and len(table) > MARKED:
            band(axes, one)
            continue
        shift = 1.03 ** (i - (len(series) - 1) / 2) if log else 1.0
        error = np.abs(table[["low", "high"]].sub(table["value"], axis=0)).T
        style: Any = {"color": colour, "ls": DASHES[dashes] if joined else "", "label": label}
        style |= {"marker": MARKERS[dashes], "ms": 5, "capsize": 3 if error.any(axis=None) else 0}
        axes.errorbar(table["x"] * shift, table["value"], error.fillna(0), **style)
    ticks = sorted(set(pd.concat([its.table["x"] for its in series])))
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
    """An empty picture of so many inches: text of 11 points is read on a phone at full width."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def legend(figure: Figure) -> None:
    """Below the axes, and room for it."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    labels = [textwrap.shorten(label, 3 * WIDE, placeholder=" …") for label in labels]
    labels = [textwrap.fill(label, WIDE) for label in labels]
    columns = 2 if max(map(len, labels)) <= WIDE // 2 - 2 else 1
    rows = sum(1 + label.count("\n") for label in labels) / columns
    figure.set_figheight(figure.get_figheight() + 0.2 * np.ceil(rows))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def svg(figure: Figure) -> str:
    """The text of an SVG file."""
    text = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def png(figure: Figure) -> bytes:
    """A PNG of 128 colours, 700 pixels wide as `new` makes pictures."""
    drawn, file = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(drawn, format="png", dpi=140)
    Image.open(drawn).convert("RGB").quantize(128).save(file, format="png", optimize=True)
    return file.getvalue()


def uri(figure: Figure) -> str:
    """The SVG as a `data:` URI."""
    return page.uri(svg(figure).encode())
