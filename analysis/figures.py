"""The report's pictures: each function draws one and returns it as a `data:` URI of an SVG.

Colours go with the method (viridis over the number of groups, Okabe-Ito for what has no groups),
line styles with the momentum policy, so that neither is the only sign of anything: every curve is
also in the legend.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullLocator, ScalarFormatter

OKABE_ITO = ("#D55E00", "#000000", "#CC79A7", "#E69F00", "#56B4E9", "#009E73", "#0072B2")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)))
STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "grid.alpha": 0.3,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "svg.hashsalt": "optdyn",  # the same numbers give the same file
}


class Curve(NamedTuple):
    """One setting: the log points of its seeds."""

    label: str
    colour: Any
    dashes: Any
    log: pd.DataFrame  # metrics of all seeds, with the column point
    diverged: frozenset[str]  # points


class Histogram(NamedTuple):
    """Updates by staleness; `groups` is None where theory has no law."""

    title: str
    counts: np.ndarray
    groups: int | None


def colours(methods: Mapping[str, int | None]) -> dict[str, Any]:
    """A colour for each method's name, given its number of groups if it has one."""
    groups = sorted({g for g in methods.values() if g is not None})
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, max(len(groups), 1)))
    others = [name for name, g in methods.items() if g is None]
    return {
        name: OKABE_ITO[others.index(name) % len(OKABE_ITO)] if g is None else shades[groups.index(g)]
        for name, g in methods.items()
    }


@matplotlib.rc_context(STYLE)
def losses(curves: Sequence[Curve], clock: str, label: str, target: float) -> str:
    """Training loss against a clock (a column of the log): median of the seeds, their range."""
    figure, axes = _new(legend=len(curves) + 1)
    log = pd.concat([curve.log for curve in curves])
    for curve in curves:
        steps = curve.log.groupby("step")
        x, loss = steps[clock].median(), steps["train_loss"]
        axes.plot(x, loss.median(), color=curve.colour, ls=curve.dashes, label=curve.label)
        if curve.log["point"].nunique() > 1:
            axes.fill_between(
                x, loss.min(), loss.max(), color=curve.colour, alpha=0.18, linewidth=0
            )
    logs = log.dropna(subset=["train_loss"]).groupby("point")
    diverged = frozenset().union(*(curve.diverged for curve in curves))
    ends = logs.tail(1)
    ends = ends[ends["point"].isin(diverged)]
    if len(ends):
        axes.plot(
            ends[clock], ends["train_loss"], "x", color="#D55E00", ms=9, mew=2.5, label="diverged"
        )
    if np.isfinite(target):
        axes.axhline(target, color="#666666", lw=1, ls=(0, (2, 2)), label=f"target {target:.3g}")
    if log["train_loss"].min() > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))
    start = logs["train_loss"].first().max()  # a run on its way to infinity would hide the rest
    axes.set_ylim(top=min(2 * abs(start), 1.2 * log["train_loss"].max()))
    axes.set(xlabel=label, ylabel="training loss")
    return _finish(figure)


@matplotlib.rc_context(STYLE)
def staleness(histogram: Histogram) -> str:
    """Share of the updates at each staleness, with the geometric law of mean g - 1 over it."""
    figure, axes = _new(width=4.2, height=2.7)
    share = histogram.counts / histogram.counts.sum()
    shown = int(np.searchsorted(np.cumsum(share), 0.999)) + 1  # the far tail would hide the rest
    axes.bar(np.arange(shown), share[:shown], width=0.9, color="#56B4E9", label="simulated")
    if histogram.groups:
        k, p = np.arange(shown), 1 / histogram.groups
        axes.plot(k, p * (1 - p) ** k, ".-", color="#D55E00", lw=1.2, ms=4, label="geometric law")
        axes.legend()
    axes.set(title=histogram.title, xlabel="staleness (updates)", ylabel="share of updates")
    return _finish(figure)


@matplotlib.rc_context(STYLE)
def implicit_momentum(fits: pd.DataFrame) -> str:
    """Fitted momentum with its interval, and least squares, against the number of groups.

    Columns: `groups`, `momentum`, `low`, `high`, `least_squares`.
    """
    figure, axes = _new(legend=3)
    most = max(fits["groups"].max(), 2)
    g = np.geomspace(1, most, 200)
    axes.plot(g, 1 - 1 / g, color="#666666", lw=1.2, label="theory, 1 - 1/g")
    # Several fits at one g stand side by side.
    x = fits["groups"] * 1.03 ** fits.groupby("groups").cumcount()
    axes.plot(x, fits["least_squares"], "D", color="#E69F00", mfc="none", label="least squares")
    error = np.abs(fits[["low", "high"]].sub(fits["momentum"], axis=0)).T
    axes.errorbar(
        x, fits["momentum"], error, fmt="o", color="#0072B2", capsize=4, label="fitted, interval"
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(fits["groups"].unique()))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="compute groups g", ylabel="implicit momentum")
    return _finish(figure)


def _new(width: float = 5.8, height: float = 3.6, legend: int = 0) -> tuple[Figure, Axes]:
    """A figure with room below for so many legend entries in two columns."""
    figure = Figure(figsize=(width, height + 0.21 * -(-legend // 2)), layout="constrained")
    return figure, figure.add_subplot()


def _finish(figure: Figure) -> str:
    if figure.axes[0].get_legend() is None and figure.axes[0].get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=2)
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()
