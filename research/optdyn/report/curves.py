"""The report's comparisons of trained runs: losses by two clocks, efficiencies, fronts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from optdyn.report import efficiency, figures, fronts, run_tables, tables, times, tradeoffs
from optdyn.report.efficiency import MOMENTUM
from optdyn.report.figures import DASHES, OKABE_ITO, LossCurve
from optdyn.report.page import Cell, Column, Picture, Section, Table, cell, number
from optdyn.report.relevant_keys import relevant
from optdyn.report.run_tables import (
    GROUPS,
    LINES,
    describe,
    floats,
    of_figure,
    ranked,
    seeded,
    tuned,
    varying,
)
from optdyn.report.tables import Point
from optdyn.report.tradeoffs import Front

WORST = 2  # of the curves that a picture names, where there are too many
BACKGROUND = 40  # more that it draws in grey
REGIONS = 8  # stretches of a cost with one winner that are said in words
SETTINGS = 60  # drawn thinly below their front, at most
# Columns of the log that a page draws, where a run has them.
LOGGED = (*tables.LOGGED, "test_loss", "test_accuracy", "learning_rate", "staleness_mean")
ALONG = {
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
    "learning_rate": "learning rate",
    "staleness_mean": "mean staleness",
}
COSTS = {
    "simulated_seconds": "simulated seconds",
    "sequential": "sequential FLOPs",
    "total": "total FLOPs",
}


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
        ranks = ranked(best)
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


def kinds(runs: pd.DataFrame, log: pd.DataFrame, keys: Sequence[str]) -> list[LossCurve]:
    """A curve for the setting of each kind of method that is first at the target, by seconds."""
    logs, labels = dict(list(log.groupby("point"))), varying(runs, keys)
    looks, found = _of_kinds(runs), []
    for kind, look in looks.items():
        its = runs[(runs["kind"] == kind) & runs["point"].isin(log["point"])]
        seconds = its.groupby("setting")["seconds_to_target"].median()
        if np.isfinite(seconds.min()):
            its = its[its["setting"] == seconds.idxmin()]
            found.append(LossCurve(describe(its.iloc[0], labels), *look, _logs(its, logs), its))
    return found


def losses(
    found: Sequence[LossCurve],
    others: Sequence[pd.DataFrame],
    note: str,
    target: float,
    tuned: bool,
) -> Section:
    """Training loss against both clocks."""
    text = "Loss of the training set (5,000 examples of it at most) at the current parameters."
    if tuned:
        text += " Each method with its best setting: the fewest updates to the target."
    if any(seeded(curve.runs) for curve in found):
        text += " Several seeds: their median, and a band from least to most."
    pictures = [
        Picture(
            figures.uri(figures.losses(found, clock, name, target, others)),
            f"Training loss against {name}. {_spoken(found)}",
        )
        for clock, name in (("step", "updates"), ("simulated_seconds", "simulated seconds"))
    ]
    return Section("Training loss", text=text + note, pictures=pictures)


def to_losses(found: Sequence[LossCurve]) -> Section | None:
    """Updates and seconds to every loss: what the target's choice does."""
    losses = times.targets(found)
    if not len(losses):
        return None
    pictures = []
    for clock, name in times.CLOCKS.items():
        tables = [(curve, times.table(curve, losses, clock)) for curve in found]
        reached = [(curve, its) for curve, its in tables if np.isfinite(its["median"]).any()]
        if not reached:
            return None
        words = "; ".join(
            f"{curve.label} gets to {number(times.lowest(curve))}" for curve, _ in reached
        )
        axes = "training loss to reach", f"{name} to it"
        alt = f"{name.capitalize()} to a training loss, against that loss. {words}."
        picture = figures.uri(figures.course(reached, *axes, log=True))
        pictures.append(Picture(picture, alt))
    text = (
        "How long it takes to each loss below that of the start: medians over seeds, and a band "
        "from least to most, where most seeds get there. Linear between log points. A curve that "
        "is lower everywhere is faster whatever the target."
    )
    return Section("Time to a loss", text=text, pictures=pictures)


def along(found: Sequence[LossCurve]) -> Section | None:
    """What else the log has by update: test figures, learning rate, staleness."""
    pictures = []
    for column, name in ALONG.items():
        its = [curve for curve in found if column in curve.log and curve.log[column].notna().any()]
        if not its or (column == "learning_rate" and not any(map(_scheduled, its))):
            continue
        if column == "staleness_mean" and not any(curve.log[column].max() > 0 for curve in its):
            continue
        tables = [(curve, figures.by_step(curve.log, "step", column)) for curve in its]
        tables = [(curve, table[table["median"].notna()]) for curve, table in tables]
        ends = "; ".join(f"{c.label} ends at {number(t['median'].iloc[-1])}" for c, t in tables)
        pictures.append(
            Picture(
                figures.uri(figures.course(tables, "updates", name, False)),
                f"{name.capitalize()} against updates. {ends}.",
            )
        )
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


def plane(found: Sequence[LossCurve], target: float, of_kinds: bool = False) -> Section | None:
    """Statistical against hardware efficiency, of the methods that reach the target."""
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
    if of_kinds:
        text += " Of each kind of method the setting of least time."
    if len(moved) < len(found):
        text += f" {len(found) - len(moved)} did not reach the target with all seeds."
    said = [
        f"{curve.label}: {of_figure(curve.runs, 'updates_to_target').shown} updates, "
        f"{of_figure(curve.runs, 'seconds_to_target').shown} seconds"
        for curve in moved
    ]
    alt = "Updates to the target against seconds an update. " + "; ".join(said) + "."
    picture = Picture(figures.uri(tradeoffs.plane(moved, target)), alt)
    return Section("Statistical and hardware efficiency", text=text, pictures=[picture])


def pareto(runs: pd.DataFrame, log: pd.DataFrame, keys: Sequence[str]) -> Section | None:
    """Loss against what it cost: a front for each kind of method, and who is best when."""
    table = fronts.levels(runs, log, ["setting", "kind"])
    table = table[table["simulated_seconds"] > 0]
    if table["setting"].nunique() < 2:
        return None
    costs = [c for c in COSTS if c in table and table[c].notna().all()]
    if {"sequential", "total"} <= set(costs) and (table["sequential"] == table["total"]).all():
        costs.remove("sequential")
    looks = {kind: look for kind, look in _of_kinds(runs).items() if kind in set(table["kind"])}
    thin = table["setting"].nunique() <= SETTINGS
    pictures = []
    for cost in costs:
        best = fronts.fronts(table, cost, "kind")
        lines = [
            Front(kind, *look, best[best["kind"] == kind], table[table["kind"] == kind])
            for kind, look in looks.items()
        ]
        ends = "; ".join(f"{line.label} gets to {line.best['loss'].iloc[-1]:.3g}" for line in lines)
        alt = f"Pareto fronts of training loss against {COSTS[cost]}. {ends}."
        figure = tradeoffs.fronts(lines, cost, COSTS[cost], thin)
        pictures.append(Picture(figures.uri(figure), alt))
    text = (
        "Pareto fronts: the lowest loss, median over seeds, that any setting of a kind has had for "
        "so much or less; bands are from the least to the most of its seeds."
    )
    if left := run_tables.untold(runs, keys):
        text += f" Settings of one kind differ in {', '.join(left)}."
    text += " Thin lines are the settings." if thin else ""
    text += " The table marks the lowest loss of each row." if len(looks) > 1 else ""
    comparison = _budgets(table, costs[0], list(looks)) if len(looks) > 1 else None
    points = [said for cost in costs if (said := _lowest(table, cost, list(looks)))]
    return Section("Loss against cost", points, text=text, pictures=pictures, table=comparison)


def _lowest(table: pd.DataFrame, cost: str, kinds: Sequence[str]) -> str:
    """Who has the lowest loss from one cost to another; empty for nobody, or many changes."""
    found = fronts.regions(table, cost, "kind", kinds)
    if not 0 < len(found) <= REGIONS:
        return ""
    said = (f"{kind} from {number(start)} to {number(end)}" for kind, start, end in found)
    return f"Lowest loss by {COSTS[cost]}: {'; '.join(said)}."


def _budgets(table: pd.DataFrame, cost: str, kinds: Sequence[str]) -> Table | None:
    """The loss that each kind reaches for so much, the lowest of them marked."""
    budgets = np.array(tradeoffs.nice(table[cost].min(), table[cost].max()))
    losses = fronts.at(table, cost, "kind", kinds, budgets)
    rows = [
        [cell(budget)] + [Cell(*cell(loss)[:2], good=loss == np.nanmin(row)) for loss in row]
        for budget, row in zip(budgets.tolist(), losses[0].T.tolist(), strict=True)
        if not np.isnan(row).all()
    ]
    columns = [Column(COSTS[cost]), *map(Column, kinds)]
    return Table(f"Lowest loss by {COSTS[cost]}", columns, rows) if rows else None


def _of_kinds(runs: pd.DataFrame) -> dict[str, tuple[object, str]]:
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
