"""The report's comparisons of trained runs: losses by two clocks, efficiencies, fronts."""

from collections.abc import Sequence
from itertools import compress
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
from optdyn.report.relevant_keys import relevant
from optdyn.report.run_tables import (
    GROUPS,
    LINES,
    describe,
    floats,
    of_figure,
    seeded,
    tuned,
    varying,
)
from optdyn.report.tables import Point

WORST = 2  # of the curves that a picture names, where there are too many
BACKGROUND = 40  # more that it draws in grey
LOSSES = 40  # that a time to them is drawn for
# Columns of the log that a page draws, where a run has them.
LOGGED = (*tables.LOGGED, "test_loss", "test_accuracy", "learning_rate", "staleness_mean")
ALONG = {
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
    "learning_rate": "learning rate",
    "staleness_mean": "mean staleness",
}
CLOCKS = {"updates": "updates", "seconds": "simulated seconds"}


class Compared(NamedTuple):
    """Trained runs, measured by one loss."""

    runs: pd.DataFrame  # `run_tables.prepared`, with updates and seconds to the target
    log: pd.DataFrame
    keys: list[str]  # of the config, that the runs are told apart by
    target: float
    why: str  # the target is what it is
    curves: list[LossCurve]
    others: list[pd.DataFrame]  # logs of the methods that no curve names
    note: str  # how to read the curves


def compared(points: Sequence[Point], target: float = np.nan) -> Compared:
    """The points, none of them a recording; `target` NaN: the loss of `run_tables.target`.

    Raises `TableError` if a run starts at or below the target that is given.
    """
    points = relevant(points)
    keys, log = tables.columns(points), tables.metrics(points)
    log = log[["point", *(column for column in LOGGED if column in log)]]
    runs, why = run_tables.prepared(tables.runs(points, keys), keys, log), "as asked for"
    if np.isnan(target):
        target, why = run_tables.target(runs, log)
    else:
        efficiency.check_target(target, log)
    runs = efficiency.with_target(runs, log, target)
    if log.empty:
        return Compared(runs, log, keys, target, why, [], [], "")
    return Compared(runs, log, keys, target, why, *curves(runs, log, keys))


def curves(
    runs: pd.DataFrame, log: pd.DataFrame, keys: Sequence[str]
) -> tuple[list[LossCurve], list[pd.DataFrame], str]:
    """A curve for each method at its best setting, others' logs, and how to read them."""
    best = efficiency.best(runs[runs["point"].isin(log["point"])])
    labels = [key for key in varying(runs, keys) if tuned(runs) or not efficiency.tunes(key)]
    logs = dict(list(log.groupby("point")))
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
    found = [
        LossCurve(
            describe(members[setting].iloc[0], labels),
            *looks[setting],
            _logs(members[setting], logs),
            members[setting],
        )
        for setting in order
    ]
    return found, [_logs(members[setting], logs) for setting in background], note


def kinds(it: Compared) -> list[LossCurve]:
    """A curve for the setting of each kind of method that is first at the target, by seconds."""
    runs, log, labels = it.runs, it.log, varying(it.runs, it.keys)
    logs, looks, found = dict(list(log.groupby("point"))), looks_of_kinds(runs), []
    for kind, look in looks.items():
        its = runs[(runs["kind"] == kind) & runs["point"].isin(log["point"])]
        seconds = its.groupby("setting")["seconds_to_target"].median()
        if np.isfinite(seconds.min()):
            its = its[its["setting"] == seconds.idxmin()]
            found.append(LossCurve(describe(its.iloc[0], labels), *look, _logs(its, logs), its))
    return found


def losses(it: Compared) -> Section:
    """Training loss against both clocks."""
    text = "Loss of the training set (5,000 examples of it at most) at the current parameters."
    if tuned(it.runs):
        text += " Each method with its best setting: the fewest updates to the target."
    if any(seeded(curve.runs) for curve in it.curves):
        text += " Several seeds: their median, and a band from least to most."
    pictures = [
        Picture(
            figures.uri(figures.losses(it.curves, clock, name, it.target, it.others)),
            f"Training loss against {name}. {_spoken(it.curves)}",
        )
        for clock, name in (("step", "updates"), ("simulated_seconds", "simulated seconds"))
    ]
    return Section("Training loss", text=text + it.note, pictures=pictures)


def to_losses(it: Compared) -> Section | None:
    """Updates and seconds to every loss: a target is one choice among many."""
    found, losses = it.curves, losses_to_reach(it.curves)
    pictures = []
    for clock, name in CLOCKS.items() if len(losses) else ():
        series = [Series(*curve[:3], times(curve, losses, clock)) for curve in found]
        reached = [bool(np.isfinite(one.table["value"]).any()) for one in series]
        words = "; ".join(
            f"{curve.label} gets to {number(_lowest(curve))}" for curve in compress(found, reached)
        )
        if not words:
            return None
        axes = "training loss to reach", f"{name} to it"
        alt = f"{name.capitalize()} to a training loss, against that loss. {words}."
        figure = figures.course(list(compress(series, reached)), *axes, log=True)
        pictures.append(Picture(figures.uri(figure), alt))
    text = (
        "How long it takes to each loss below that of the start: medians over seeds, and a band "
        "from least to most, where most seeds get there. Linear between log points. A curve that "
        "is lower everywhere is faster whatever the target."
    )
    return Section("Time to a loss", text=text, pictures=pictures) if pictures else None


def times(curve: LossCurve, losses: np.ndarray, clock: str) -> pd.DataFrame:
    """The table of a `Series`: updates or seconds to each loss, medians and ranges over seeds.

    Infinite where a seed does not get there; one that diverged never does.
    """
    place, lost = list(CLOCKS).index(clock), np.full_like(losses, np.inf)
    gone = set(curve.runs.loc[curve.runs["status"] == "diverged", "point"])
    taken = np.array(
        [
            lost if point in gone else [it.value[place] for it in efficiency.crossings(log, losses)]
            for point, log in curve.log.groupby("point")
        ],
        float,
    )
    ends = {"low": taken.min(axis=0), "high": taken.max(axis=0)}
    return pd.DataFrame({"x": losses, "value": np.median(taken, axis=0), **ends})


def losses_to_reach(found: Sequence[LossCurve]) -> np.ndarray:
    """Losses, ascending, from the lowest that a curve gets to, to just below every start.

    In equal ratios, or in equal steps if they are not all above 0; empty if nothing is learnt.
    """
    log = pd.concat([curve.log for curve in found]).dropna(subset=["train_loss"])
    start = log.groupby("point")["train_loss"].first().min()
    end = min(map(_lowest, found))
    if not end < start:
        return np.empty(0)
    space = np.geomspace if end > 0 else np.linspace
    return space(end, start, LOSSES + 1)[:-1]


def _lowest(curve: LossCurve) -> float:
    """Training loss that its median run gets to."""
    return float(curve.log.groupby("point")["train_loss"].min().median())


def along(it: Compared) -> Section | None:
    """What else the log has by update: test figures, learning rate, staleness."""
    pictures = []
    for column, name in ALONG.items():
        its = [
            curve for curve in it.curves if column in curve.log and curve.log[column].notna().any()
        ]
        if not its or (column == "learning_rate" and not any(map(_scheduled, its))):
            continue
        if column == "staleness_mean" and not any(curve.log[column].max() > 0 for curve in its):
            continue
        series = [
            Series(*curve[:3], figures.by_step(curve.log, "step", column).dropna(subset="value"))
            for curve in its
        ]
        ends = "; ".join(f"{s.label} ends at {number(s.table['value'].iloc[-1])}" for s in series)
        figure = figures.course(series, "updates", name)
        alt = f"{name.capitalize()} against updates. {ends}."
        pictures.append(Picture(figures.uri(figure), alt))
    if not pictures:
        return None
    text = (
        "The same runs on test examples, and what their learning rates were, and their staleness, "
        "a mean since the log point before."
    )
    return Section("Along the way", text=text, pictures=pictures)


def _scheduled(curve: LossCurve) -> bool:
    """Whether the learning rate of some run changes."""
    return bool((curve.log.groupby("point")["learning_rate"].nunique() > 1).any())


def plane(it: Compared) -> Section | None:
    """Statistical against hardware efficiency, of the methods that reach the target."""
    found = kinds(it) if it.others else it.curves
    moved = [
        curve
        for curve in found
        if 0 < curve.runs["updates_to_target"].max() < np.inf
        and curve.runs["seconds_to_target"].min() > 0
    ]
    if len(moved) < 2:
        return None
    text = (
        "Updates to the target by the simulated seconds that one takes. Their product, the time to "
        "the target, is the same along each dotted line: down and to the left is better."
    )
    if it.others:
        text += " Of each kind of method the setting of least time."
    if len(moved) < len(found):
        text += f" {len(found) - len(moved)} did not reach the target with all seeds."
    said = [
        f"{curve.label}: {of_figure(curve.runs, 'updates_to_target').shown} updates, "
        f"{of_figure(curve.runs, 'seconds_to_target').shown} seconds"
        for curve in moved
    ]
    alt = "Updates to the target against seconds an update. " + "; ".join(said) + "."
    picture = Picture(figures.uri(picture_of_plane(moved, it.target)), alt)
    return Section("Statistical and hardware efficiency", text=text, pictures=[picture])


@matplotlib.rc_context(figures.STYLE)
def picture_of_plane(curves: Sequence[LossCurve], target: float) -> Figure:
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


def looks_of_kinds(runs: pd.DataFrame) -> dict[str, tuple[object, str]]:
    """Colour and line of each kind of method, those without groups first, then by groups."""
    groups = floats(runs.groupby("kind")[GROUPS].first()).sort_values(na_position="first")
    shades = figures.colours(groups.to_dict())
    return {kind: (shades[kind], list(DASHES)[i % 4]) for i, kind in enumerate(groups.index)}


def _logs(members: pd.DataFrame, logs: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([logs[point] for point in members["point"] if point in logs])


def _looks(runs: pd.DataFrame) -> tuple[dict[str, tuple[object, str]], str]:
    """Colour and line of each setting, and the sentences that say what the lines mean.

    A colour for each place. A momentum used at every place is a policy, with a line of its own; the
    others were chosen for their places and share one.
    """
    first = runs.drop_duplicates("setting")
    shades = figures.colours(dict(zip(first["place"], floats(first[GROUPS]), strict=True)))
    places = runs.groupby(MOMENTUM)["place"].nunique()
    fixed = sorted(places.index[places == runs["place"].nunique()], reverse=True)
    styles = [list(DASHES)[i % len(DASHES)] for i in range(len(fixed) + 1)]
    dashes = {m: styles[fixed.index(m) if m in fixed else -1] for m in places.index}
    each = zip(first["setting"], first["place"], first[MOMENTUM], strict=True)
    looks = {setting: (shades[place], dashes[momentum]) for setting, place, momentum in each}
    if len(dashes) == 1 or not fixed:
        return looks, ""
    said = [f"momentum {number(m)} throughout" for m in fixed]
    if len(fixed) < len(dashes):
        said.append("momentum chosen for the number of groups")
    both = zip(styles, said, strict=False)
    return looks, "".join(f" {style.capitalize()}: {what}." for style, what in both)


def _spoken(found: Sequence[LossCurve]) -> str:
    """The curves for who cannot see them."""
    ends = {
        curve.label: curve.log.dropna(subset=["train_loss"]).groupby("point")["train_loss"].last()
        for curve in found
    }
    return (
        "; ".join(f"{label} ends at {cell(end.median()).shown}" for label, end in ends.items())
        + "."
    )
