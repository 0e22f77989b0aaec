"""What a loss costs, in two pictures: efficiencies of methods, and fronts of loss against cost."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from optdyn.report import figures
from optdyn.report.figures import LossCurve


class Front(NamedTuple):
    """What no setting of one kind equals for less, from `fronts.levels`."""

    label: str
    colour: Any
    dashes: str
    best: pd.DataFrame  # rows on the front
    every: pd.DataFrame  # rows of all its settings, which the column `setting` tells apart


@matplotlib.rc_context(figures.STYLE)
def plane(curves: Sequence[LossCurve], target: float) -> Figure:
    """Updates to the target (statistical efficiency) against seconds an update (hardware).

    Their product is the time to the target: it is the same along the dotted lines.
    """
    figure, axes = figures.new()
    runs = pd.concat([curve.runs.assign(number=i) for i, curve in enumerate(curves)])
    runs["seconds"] = runs["seconds_to_target"] / runs["updates_to_target"]
    x = runs.groupby("number")["seconds"].median()
    y = runs.groupby("number")["updates_to_target"].agg(["median", "min", "max"])
    left, right = x.min() / 1.4, x.max() * 1.4
    low, high = y["min"].min() / 1.4, y["max"].max() * 1.4
    for time in nice(left * low, right * high):
        ends = np.clip([time / high, time / low], left, right)
        axes.plot(ends, time / ends, color=figures.GREY, lw=0.7, ls=":", zorder=1)
        if ends[1] > ends[0]:
            place: Any = {"ha": "right", "va": "bottom", "size": 9, "color": figures.GREY}
            axes.annotate(f"{time:g} s", (ends[1], time / ends[1]), **place)
    for i, curve in enumerate(curves):
        error = [[y["median"][i] - y["min"][i]], [y["max"][i] - y["median"][i]]]
        style: Any = {"color": curve.colour, "capsize": 3, "ls": ""}
        axes.errorbar([x[i]], [y["median"][i]], error, **style)
        marker = figures.MARKERS[curve.dashes]
        axes.plot(x[i], y["median"][i], marker, color=curve.colour, ms=7, label=curve.label)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, high))
    for axis, ratio in ((axes.xaxis, right / left), (axes.yaxis, high / low)):
        figures.log_ticks(axis)
        if ratio <= 5:
            axis.set_major_locator(MaxNLocator(4))
    axes.set(xlabel="simulated seconds an update", ylabel=f"updates to a loss of {target:.3g}")
    figures.legend(figure)
    return figure


@matplotlib.rc_context(figures.STYLE)
def fronts(lines: Sequence[Front], cost: str, label: str, settings: bool = True) -> Figure:
    """Fronts of loss against a cost, with the range over seeds; thin lines are all settings."""
    figure, axes = figures.new()
    best = pd.concat([line.best for line in lines])
    for line in lines:
        for _, one in line.every.groupby("setting") if settings else ():
            x, loss = figures.thin(one)[[cost, "loss"]].to_numpy().T
            axes.plot(x, loss, color=line.colour, alpha=0.35, lw=0.6)
        # The last of a front holds for as long as its kind was trained.
        its = pd.concat([line.best, line.best.tail(1).assign(**{cost: line.every[cost].max()})])
        x, high = its[cost], its["high"].replace(np.inf, np.nan)
        axes.fill_between(x, its["low"], high, step="post", color=line.colour, alpha=0.15, lw=0)
        axes.plot(
            x,
            its["loss"],
            color=line.colour,
            drawstyle="steps-post",
            ls=figures.DASHES[line.dashes],
            marker=figures.MARKERS[line.dashes],
            markevery=list(range(0, len(its) - 1, max(len(its) // 12, 1))),
            ms=4,
            label=line.label,
        )
    low, top = best["low"].min(), best["loss"].max()
    figures.loss_scale(axes, low, 1.05 * top if top > 0 else top)
    axes.set(xscale="log", xlabel=label, ylabel="training loss")
    figures.legend(figure)
    return figure


def nice(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... between the two; of many only powers of ten."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    subs = (1, 2, 5) if len(decades) < 7 else (1,)
    return [s * 10.0**d for d in decades for s in subs if low <= s * 10.0**d <= high]
