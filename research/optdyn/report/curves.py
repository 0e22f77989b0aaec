"""The report's comparisons of trained runs: losses by two clocks, efficiencies, fronts."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from optdyn.report import efficiency, figures, run_tables, tables
from optdyn.report.efficiency import MOMENTUM
from optdyn.report.figures import DASHES, OKABE_ITO, LossCurve, Series
from optdyn.report.page import Picture, Section, cell, number
from optdyn.report.relevant_keys import with_relevant_keys
from optdyn.report.run_tables import (
    GROUPS,
    LINES,
    describe,
    distinguishing_keys,
    figure_cell,
    floats,
    has_seeds,
    has_tuning,
)
from optdyn.report.tables import Point

WORST = 2  # of the curves that a picture names, where there are too many
BACKGROUND = 40  # more that it draws in grey
LOSSES = 40  # that a time to them is drawn for
ALONG = {  # columns of the log that a page draws, where a run has them
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
    "learning_rate": "learning rate",
    "staleness_mean": "mean staleness",
}
CLOCKS = {"updates": "updates", "seconds": "simulated seconds"}
Look = tuple[object, str]  # colour, and a key of DASHES


class RunComparison(NamedTuple):
    runs: pd.DataFrame  # `run_tables.prepare`, with updates and seconds to the target
    log: pd.DataFrame
    keys: list[str]  # of the config, that the runs are told apart by
    target: float
    why: str  # the target is what it is
    curves: list[LossCurve]
    others: list[pd.DataFrame]  # logs of the methods that no curve names
    note: str  # how to read the curves


def compared(points: Sequence[Point], target: float = np.nan) -> RunComparison:
    """Compares trained runs by a target; NaN: the loss of `run_tables.target`.

    Raises `TableError` if a run starts at or below a named target.
    """
    points = with_relevant_keys(points)
    keys, log = tables.columns(points), tables.metrics(points)
    drawn = (*tables.LOGGED, *ALONG)
    log = log[["point", *(column for column in drawn if column in log)]]
    runs, why = run_tables.prepare(tables.runs(points, keys), keys, log), "as asked for"
    if np.isnan(target):
        target, why = run_tables.target(runs, log)
    else:
        efficiency.check_target(target, log)
    runs = efficiency.with_target(runs, log, target)
    drawn_curves = ([], [], "") if log.empty else curves(runs, log, keys)
    return RunComparison(runs, log, keys, target, why, *drawn_curves)


def curves(
    runs: pd.DataFrame, log: pd.DataFrame, keys: Sequence[str]
) -> tuple[list[LossCurve], list[pd.DataFrame], str]:
    """Returns a curve for each method at its best setting, others' logs, and a note on both."""
    best = efficiency.best(runs[runs["point"].isin(log["point"])])
    labels = [
        key
        for key in distinguishing_keys(runs, keys)
        if has_tuning(runs) or not efficiency.is_tuned(key)
    ]
    members = dict(list(best.groupby("setting", sort=False)))
    order = list(members)
    looks, note = _looks(best)
    background: list[str] = []
    if len(order) > LINES:
        ranks = efficiency.ranked(best)
        order, rest = ranks[: LINES - WORST] + ranks[-WORST:], ranks[LINES - WORST : -WORST]
        background = rest[:: -(-len(rest) // BACKGROUND)]
        note = (
            f" Of {len(ranks):,} methods the best {LINES - WORST} have a colour and, at the end of "
            f"the legend, the worst {WORST}; {len(background)} of the others are grey."
        )
    if len({(str(looks[s][0]), looks[s][1]) for s in order}) < len(order):
        looks = {s: (OKABE_ITO[i % 7], list(DASHES)[i // 7]) for i, s in enumerate(order)}
        note = note if background else ""
    named = [_curve(members[setting], log, labels, looks[setting]) for setting in order]
    return named, [_logs(members[setting], log) for setting in background], note


def best_of_kinds(comparison: RunComparison) -> list[LossCurve]:
    """Returns a curve for the setting of each kind that is first at the target, by seconds."""
    labels, found = distinguishing_keys(comparison.runs, comparison.keys), []
    logged = comparison.runs[comparison.runs["point"].isin(comparison.log["point"])]
    for kind, look in looks_of_kinds(comparison.runs).items():
        runs = logged[logged["kind"] == kind]
        seconds = runs.groupby("setting")["seconds_to_target"].median()
        if np.isfinite(seconds.min()):
            found.append(
                _curve(runs[runs["setting"] == seconds.idxmin()], comparison.log, labels, look)
            )
    return found


def losses(comparison: RunComparison) -> Section:
    """Returns the section of training loss against both clocks."""
    text = "Loss of the training set (5,000 examples of it at most) at the current parameters."
    if has_tuning(comparison.runs):
        text += " Each method with its best setting: the fewest updates to the target."
    if any(has_seeds(curve.runs) for curve in comparison.curves):
        text += " Several seeds: their median, and a band from least to most."
    final = {
        curve.label: curve.log.dropna(subset=["train_loss"]).groupby("point")["train_loss"].last()
        for curve in comparison.curves
    }
    ends = "; ".join(f"{label} ends at {cell(end.median()).shown}" for label, end in final.items())
    pictures = [
        Picture(
            figures.uri(
                figures.losses(comparison.curves, clock, name, comparison.target, comparison.others)
            ),
            f"Training loss against {name}. {ends}.",
        )
        for clock, name in (("step", "updates"), ("simulated_seconds", "simulated seconds"))
    ]
    return Section("Training loss", text=text + comparison.note, pictures=pictures)


def time_to_losses(comparison: RunComparison) -> Section | None:
    """Returns the section of updates and seconds to any loss; None if no run learns."""
    losses, pictures = losses_to_reach(comparison.curves), []
    for clock, name in CLOCKS.items() if len(losses) else ():
        found = [
            (curve, series)
            for curve in comparison.curves
            if np.isfinite((series := times(curve, losses, clock))["value"]).any()
        ]
        if not found:
            return None
        lowest = "; ".join(f"{c.label} gets to {number(_lowest_loss(c))}" for c, _ in found)
        figure = figures.course(
            [Series(*curve[:3], series) for curve, series in found],
            "training loss to reach",
            f"{name} to it",
            log=True,
        )
        alt = f"{name.capitalize()} to a training loss, against that loss. {lowest}."
        pictures.append(Picture(figures.uri(figure), alt))
    text = (
        "How long it takes to each loss below that of the start: medians over seeds, and a band "
        "from least to most, where most seeds get there. Linear between log points. A curve that "
        "is lower everywhere is faster whatever the target."
    )
    return Section("Time to a loss", text=text, pictures=pictures) if pictures else None


def times(curve: LossCurve, losses: np.ndarray, clock: str) -> pd.DataFrame:
    """Returns the `Series` table of updates or seconds to each loss; infinite if a seed misses."""
    place = list(CLOCKS).index(clock)
    diverged = set(curve.runs.loc[curve.runs["status"] == "diverged", "point"])
    clocks = np.array(
        [
            np.full_like(losses, np.inf)
            if point in diverged
            else [crossing.value[place] for crossing in efficiency.crossings(log, losses)]
            for point, log in curve.log.groupby("point")
        ],
        float,
    )
    ends = {"low": clocks.min(axis=0), "high": clocks.max(axis=0)}
    return pd.DataFrame({"x": losses, "value": np.median(clocks, axis=0), **ends})


def losses_to_reach(found: Sequence[LossCurve]) -> np.ndarray:
    """Returns ascending losses from the lowest of any curve to below all starts; maybe none."""
    log = pd.concat([curve.log for curve in found]).dropna(subset=["train_loss"])
    start = log.groupby("point")["train_loss"].first().min()
    end = min(map(_lowest_loss, found))
    if not end < start:
        return np.empty(0)
    space = np.geomspace if end > 0 else np.linspace
    return space(end, start, LOSSES + 1)[:-1]


def _lowest_loss(curve: LossCurve) -> float:
    return float(curve.log.groupby("point")["train_loss"].min().median())


def along(comparison: RunComparison) -> Section | None:
    """Returns the section of other logged figures by update: tests, learning rate, staleness."""
    pictures = []
    for column, name in ALONG.items():
        found = [c for c in comparison.curves if column in c.log and c.log[column].notna().any()]
        rates = [curve.log.groupby("point")[column].nunique() for curve in found]
        is_constant = column == "learning_rate" and not any((n > 1).any() for n in rates)
        is_fresh = column == "staleness_mean" and not any(c.log[column].max() > 0 for c in found)
        if not found or is_constant or is_fresh:
            continue
        series = [
            Series(*curve[:3], figures.by_step(curve.log, "step", column).dropna(subset="value"))
            for curve in found
        ]
        ends = "; ".join(f"{s.label} ends at {number(s.table['value'].iloc[-1])}" for s in series)
        figure = figures.course(series, "updates", name)
        alt = f"{name.capitalize()} against updates. {ends}."
        pictures.append(Picture(figures.uri(figure), alt))
    text = (
        "The same runs on test examples, and what their learning rates were, and their staleness, "
        "a mean since the log point before."
    )
    return Section("Along the way", text=text, pictures=pictures) if pictures else None


def plane(comparison: RunComparison) -> Section | None:
    """Returns the section of both efficiencies, of the methods that reach the target."""
    found = best_of_kinds(comparison) if comparison.others else comparison.curves
    reached = [
        curve
        for curve in found
        if 0 < curve.runs["updates_to_target"].max() < np.inf
        and curve.runs["seconds_to_target"].min() > 0
    ]
    if len(reached) < 2:
        return None
    text = (
        "Updates to the target by the simulated seconds that one takes. Their product, the time to "
        "the target, is the same along each dotted line: down and to the left is better."
    )
    if comparison.others:
        text += " Of each kind of method the setting of least time."
    if len(reached) < len(found):
        text += f" {len(found) - len(reached)} did not reach the target with all seeds."
    figures_in_words = [
        f"{curve.label}: {figure_cell(curve.runs, 'updates_to_target').shown} updates, "
        f"{figure_cell(curve.runs, 'seconds_to_target').shown} seconds"
        for curve in reached
    ]
    alt = f"Updates to the target against seconds an update. {'; '.join(figures_in_words)}."
    picture = Picture(figures.uri(picture_of_plane(reached, comparison.target)), alt)
    return Section("Statistical and hardware efficiency", text=text, pictures=[picture])


@matplotlib.rc_context(figures.STYLE)
def picture_of_plane(curves: Sequence[LossCurve], target: float) -> Figure:
    """Draws updates to the target by seconds an update; their product is constant on dots."""
    figure, axes = figures.new()
    runs = pd.concat([curve.runs.assign(number=i) for i, curve in enumerate(curves)])
    runs["seconds"] = runs["seconds_to_target"] / runs["updates_to_target"]
    x = runs.groupby("number")["seconds"].median()
    y = runs.groupby("number")["updates_to_target"].agg(["median", "min", "max"])
    left, right = x.min() / 1.4, x.max() * 1.4
    low, high = y["min"].min() / 1.4, y["max"].max() * 1.4
    for time in figures.nice(left * low, right * high):
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


def looks_of_kinds(runs: pd.DataFrame) -> dict[str, Look]:
    """Returns each kind of method's look, those without groups first, then by groups."""
    groups = floats(runs.groupby("kind")[GROUPS].first()).sort_values(na_position="first")
    shades = figures.colours(groups.to_dict())
    return {kind: (shades[kind], list(DASHES)[i % 4]) for i, kind in enumerate(groups.index)}


def _curve(runs: pd.DataFrame, log: pd.DataFrame, labels: Iterable[str], look: Look) -> LossCurve:
    return LossCurve(describe(runs.iloc[0], labels), *look, _logs(runs, log), runs)


def _logs(runs: pd.DataFrame, log: pd.DataFrame) -> pd.DataFrame:
    return log[log["point"].isin(runs["point"])]


def _looks(runs: pd.DataFrame) -> tuple[dict[str, Look], str]:
    """Returns each setting's look, and the sentences that explain the lines.

    A place has a colour. A momentum used at all places has a line; momenta that were chosen for
    their places share one.
    """
    first = runs.drop_duplicates("setting")
    shades = figures.colours(dict(zip(first["place"], floats(first[GROUPS]), strict=True)))
    places = runs.groupby(MOMENTUM)["place"].nunique()
    fixed = sorted(places.index[places == runs["place"].nunique()], reverse=True)
    styles = [list(DASHES)[i % len(DASHES)] for i in range(len(fixed) + 1)]
    dashes = {m: styles[fixed.index(m) if m in fixed else -1] for m in places.index}
    settings = zip(first["setting"], first["place"], first[MOMENTUM], strict=True)
    looks = {setting: (shades[place], dashes[momentum]) for setting, place, momentum in settings}
    if len(dashes) == 1 or not fixed:
        return looks, ""
    policies = [f"momentum {number(m)} throughout" for m in fixed]
    if len(fixed) < len(dashes):
        policies.append("momentum chosen for the number of groups")
    lines = zip(styles, policies, strict=False)
    return looks, "".join(f" {style.capitalize()}: {policy}." for style, policy in lines)
