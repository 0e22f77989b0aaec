"""The report's pictures: each function draws one and returns it as a `data:` URI of an SVG.

Colours go with the method (viridis over the number of groups, Okabe-Ito for what has no groups),
line styles with the momentum policy, so that neither is the only sign of anything: every curve is
also in the legend.
"""

import base64
import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, ScalarFormatter

OKABE_ITO = ("#D55E00", "#000000", "#CC79A7", "#E69F00", "#56B4E9", "#009E73", "#0072B2")
DASHES: dict[str, Any] = {
    "solid": "-",
    "dashed": (0, (5, 2)),
    "dotted": (0, (1, 1.3)),
    "dash-dotted": (0, (6, 2, 1, 2)),
}
STYLE: Any = {  # matplotlib's rcParams
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "grid.alpha": 0.3,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "svg.hashsalt": "optdyn",  # the same numbers give the same file
}


class Curve(NamedTuple):
    """One setting."""

    label: str
    colour: Any
    dashes: str  # a key of DASHES
    log: pd.DataFrame  # log points of its seeds, with the column `point`


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
    curves: Sequence[Curve], clock: str, label: str, target: float, diverged: Collection[str]
) -> str:
    """Training loss against a clock (a column of the log): median of the seeds, and their range."""
    figure, axes = _new()
    log = pd.concat([curve.log for curve in curves]).dropna(subset=["train_loss"])
    for curve in curves:
        steps = curve.log.groupby("step")
        x, loss = steps[clock].median(), steps["train_loss"]
        dashes = DASHES[curve.dashes]
        axes.plot(x, loss.median(), color=curve.colour, ls=dashes, label=curve.label)
        if curve.log["point"].nunique() > 1:
            axes.fill_between(x, loss.min(), loss.max(), color=curve.colour, alpha=0.18, lw=0)
    ends = log.groupby("point").tail(1)
    ends = ends[ends["point"].isin(diverged)]
    if len(ends):
        x, loss = ends[clock], ends["train_loss"]
        axes.plot(x, loss, "x", color="#D55E00", ms=9, mew=2.5, zorder=5, label="diverged")
    if np.isfinite(target):
        axes.axhline(target, color="#666666", lw=1, ls=":", label=f"target, {target:.3g}")
    low, high = log["train_loss"].min(), log["train_loss"].max()
    # A run on its way to infinity would hide the others.
    top = min(1.2 * high, 2 * abs(log.groupby("point")["train_loss"].first().max()))
    if low > 0 and top > 3 * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    if top > low:
        axes.set_ylim(top=top)
    axes.set(xlabel=label, ylabel="training loss")
    _legend(figure)
    return _svg(figure)


@matplotlib.rc_context(STYLE)
def staleness(counts: np.ndarray, groups: int | None) -> str:
    """Share of the updates at each staleness; over it the geometric law of mean g - 1, given g."""
    figure, axes = _new(width=4.2, height=2.6)
    share = counts / counts.sum()
    shown = int(np.searchsorted(np.cumsum(share), 0.999)) + 1  # the far tail would hide the rest
    k = np.arange(shown)
    axes.bar(k, share[:shown], width=0.9, color="#56B4E9", label="simulated")
    if groups:
        law = (1 - 1 / groups) ** k / groups
        axes.plot(k, law, ".-", color="#D55E00", lw=1.2, ms=4, label="geometric law")
        axes.legend()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="staleness (updates)", ylabel="share of updates")
    return _svg(figure)


@matplotlib.rc_context(STYLE)
def implicit_momentum(fits: pd.DataFrame) -> str:
    """Fitted momentum with its interval, and least squares, against the number of groups.

    Columns: `groups`, `momentum`, `low`, `high`, `least_squares`.
    """
    figure, axes = _new()
    most = max(fits["groups"].max(), 2)
    g = np.geomspace(1, most, 200)
    axes.plot(g, 1 - 1 / g, color="#666666", lw=1.2, label="theory, 1 − 1/g")
    # Several fits at one g stand side by side.
    x = fits["groups"] * 1.03 ** fits.groupby("groups").cumcount()
    axes.plot(x, fits["least_squares"], "D", color="#E69F00", mfc="none", label="least squares")
    error = np.abs(fits[["low", "high"]].sub(fits["momentum"], axis=0)).T
    axes.errorbar(
        x,
        fits["momentum"],
        error,
        fmt="o",
        color="#0072B2",
        capsize=4,
        label="fitted, 95 % interval",
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(fits["groups"].unique()))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="compute groups g", ylabel="implicit momentum")
    _legend(figure)
    return _svg(figure)


def _new(width: float = 6.2, height: float = 3.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _legend(figure: Figure) -> None:
    """Below the axes, and room for it."""
    labels = figure.axes[0].get_legend_handles_labels()[1]
    columns = 2 if max(map(len, labels)) <= 36 else 1
    figure.set_figheight(figure.get_figheight() + 0.2 * -(-len(labels) // columns))
    figure.legend(loc="outside lower center", ncols=columns)


def _svg(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()
