"""What the report says of arms: what a kept momentum costs, and what remains once it is tuned."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from optdyn.report import arms, figures
from optdyn.report.arms import GROUPS, RATE, BestSetting, GroupComparison, GroupResults, chosen
from optdyn.report.efficiency import MOMENTUM
from optdyn.report.figures import DASHES, OKABE_ITO, LossCurve, Series
from optdyn.report.page import Cell, Column, Picture, Section, Table, cell, number
from optdyn.report.run_tables import INTERPOLATED, describe

CONTEXTS = 6  # comparisons that are told apart in a picture

METHOD = (
    "Each number of groups has a learning rate of its own, whether it keeps the momentum or has it "
    "tuned: the setting of fewest updates to a training loss of {loss}. Each of the {seeds} seeds "
    "is judged at the setting that is best on the others. A row names the setting that is best on "
    "all seeds, and in brackets the least and the most that a seed was judged at, where some were "
    "judged at another: so two rows of one setting may have unlike figures. Figures are medians "
    "over the seeds, with 95 % intervals from drawing the seeds again, in pairs, and choosing "
    f"again; a run that misses a loss counts as infinitely long. {INTERPOLATED}"
)
INSIDE = (
    "The setting best on all seeds, and what the next ones that were tried take: the learning "
    "rates below and above it, and the momenta below and above it, each at its own best rate. An "
    "optimum is inside where all of them take more updates, and on an edge otherwise: a better "
    "setting may lie beyond."
)


def sections(
    found: Sequence[GroupComparison], log: pd.DataFrame, keys: Sequence[str]
) -> list[Section | None]:
    """Two sections, or none: what remains, and whether the tuned settings lie inside."""
    if not found:
        return []
    names = _names(found, keys)
    choices = [[chosen(arm.settings, arm.figures[0], arm.kept) for arm in it.arms] for it in found]
    flat = [choice for its in choices for choice in its]
    inside = sum(choice.interior for choice in flat)
    points = [
        f"{inside} of the {len(flat)} optima lie inside what was tried"
        + ("." if inside == len(flat) else f", {len(flat) - inside} on an edge.")
    ]
    text = METHOD.format(loss=number(found[0].losses[0]), seeds=len(found[0].arms[0].figures[0, 0]))
    return [
        Section(
            "What remains after tuning",
            points,
            text=text,
            pictures=[
                _penalties(found, names, "updates", 0),
                _penalties(found, names, "simulated seconds", len(found[0].losses)),
                *map(_losses, found[:CONTEXTS], names, choices, [log] * CONTEXTS),
            ],
            table=_results(found, names, choices),
        ),
        Section("Whether the optima lie inside", text=INSIDE, table=_inside(found, names, choices)),
    ]


def answer(found: Sequence[GroupComparison], keys: Sequence[str]) -> list[str]:
    """The sentences of `said`, of all comparisons."""
    names = _names(found, keys)
    return [line for it, name in zip(found, names, strict=True) for line in said(it, name)]


def _names(found: Sequence[GroupComparison], keys: Sequence[str]) -> list[str]:
    """What tells the comparisons apart, '' if nothing."""
    firsts = [it.runs.iloc[0] for it in found]
    keys = [key for key in arms.context(keys) if len({repr(run[key]) for run in firsts}) > 1]
    return [describe(run, keys) for run in firsts]


def said(it: GroupComparison, name: str) -> list[str]:
    """What keeping the momentum costs, and what remains once it is tuned, at the most groups."""
    one, most = it.arms[0].groups, it.arms[-1].groups
    kept, tuned, least = it.of(most, True), it.of(most, False), it.of(one, False)
    start = f"{name}: " if name else ""
    groups = f"{one} tuned group{'s' * (one > 1)}"
    goal = f"to a training loss of {number(it.losses[0])}"
    return [
        f"{start}{goal}, {most} groups that keep momentum {it.momentum:g} take "
        f"{_times(it.ratio(kept, tuned))} the updates of {most} groups with a tuned momentum"
        f"{_verdict(it.ratio(kept, tuned))}.",
        f"{start}what remains: {most} tuned groups take {_times(it.ratio(tuned, least))} the "
        f"updates of {groups}{_verdict(it.ratio(tuned, least))}, and "
        f"{_times(it.ratio(tuned, least, len(it.losses)))} the simulated seconds"
        f"{_verdict(it.ratio(tuned, least, len(it.losses)))}.",
    ]


def _times(ratio: tuple[float, float, float]) -> str:
    value, low, high = ratio
    shown = "an unknown number of" if np.isnan(value) else f"{value:.3g}"
    return f"{shown} times [{low:.3g}, {high:.3g}]".replace("inf", "∞")


def _verdict(ratio: tuple[float, float, float]) -> str:
    return " (no difference seen)" if ratio[1] <= 1 <= ratio[2] else ""


def _results(
    found: Sequence[GroupComparison], names: Sequence[str], choices: Sequence[Sequence[BestSetting]]
) -> Table:
    losses = found[0].losses
    columns = [Column("runs", text=True)] * any(names)
    columns += [Column("groups g"), Column("momentum", text=True), Column("learning rate")]
    columns += [Column(f"updates to {number(loss)}") for loss in losses[::-1]]
    columns += [Column(f"updates to {number(losses[0])}, over tuned g = {found[0].arms[0].groups}")]
    columns += [Column(f"updates to {number(losses[0])}, kept over tuned")]
    columns += [Column(f"simulated seconds to {number(loss)}") for loss in losses[::-1]]
    columns += [Column("training loss at the end"), Column("optimum", text=True)]
    rows = []
    for it, name, its in zip(found, names, choices, strict=True):
        n, least = len(losses), it.of(it.arms[0].groups, False)
        for place, (arm, choice) in enumerate(zip(it.arms, its, strict=True)):
            row = [cell(name)] * any(names)
            row += [cell(arm.groups), *_setting(arm, choice)]
            row += [_figure(it.figure(place, i), it.apart[place, i]) for i in range(n)][::-1]
            row += [_figure(it.ratio(place, least)) if place != least else cell(1)]
            other = it.of(arm.groups, False)
            row += [_figure(it.ratio(place, other)) if arm.kept else cell(None)]
            clocks = [_figure(it.figure(place, n + i), it.apart[place, n + i]) for i in range(n)]
            row += clocks[::-1]
            row += [_figure(it.figure(place, 2 * n)), _optimum(choice)]
            rows.append(row)
    return Table("What remains after tuning", columns, rows)


def _inside(
    found: Sequence[GroupComparison], names: Sequence[str], choices: Sequence[Sequence[BestSetting]]
) -> Table:
    columns = [Column("runs", text=True)] * any(names)
    columns += [Column("groups g"), Column("momentum", text=True), Column("learning rate")]
    columns += [Column(f"updates to {number(found[0].losses[0])}")]
    columns += [Column(title, text=True) for title in ("rate below", "rate above")]
    columns += [Column(title, text=True) for title in ("momentum below", "momentum above")]
    columns += [Column("optimum", text=True)]
    rows = []
    for it, name, its in zip(found, names, choices, strict=True):
        for arm, choice, apart in zip(it.arms, its, it.apart[:, 0], strict=True):
            row = [cell(name)] * any(names)
            row += [cell(arm.groups), cell(_momentum(arm, choice)), cell(choice.rate)]
            row += [cell(choice.updates, apart)]
            row += [_neighbour(beside, apart) for beside in choice.rates]
            momenta = [_neighbour(beside, apart) for beside in choice.momenta]
            row += momenta or [cell("kept"), cell("kept")]
            rows.append([*row, _optimum(choice)])
    return Table("The settings beside the best", columns, rows)


def _neighbour(beside: tuple[float, float] | None, apart: float) -> Cell:
    if beside is None:
        return Cell("not tried", "Infinity", bad=True)
    return Cell(f"{number(beside[0])}: {cell(beside[1], apart).shown}", beside[1])


def _optimum(choice: BestSetting) -> Cell:
    return cell("inside") if choice.interior else Cell("on an edge", "on an edge", bad=True)


def _momentum(arm: GroupResults, choice: BestSetting) -> str:
    return f"{choice.momentum:g}, {'kept' if arm.kept else 'tuned'}"


def _setting(arm: GroupResults, choice: BestSetting) -> list[Cell]:
    """Momentum and rate, with the range of those that seeds are judged at."""
    values = (cell(_momentum(arm, choice)), cell(choice.rate))
    levels = (arms.judged_at(arm).get_level_values(i) for i in (0, 1))
    ranges = ((level.min(), level.max()) for level in levels)
    return [
        it if low == high else it._replace(range=f"{number(low)} – {number(high)}")
        for it, (low, high) in zip(values, ranges, strict=True)
    ]


def _figure(found: tuple[float, float, float], apart: float = 0.0) -> Cell:
    value, low, high = found
    ends = " – ".join(cell(float(f"{end:.3g}"), apart).shown for end in (low, high))
    return cell(float(f"{value:.3g}"), apart)._replace(range=ends if np.isfinite(low) else "")


def _penalties(
    found: Sequence[GroupComparison], names: Sequence[str], clock: str, measure: int
) -> Picture:
    """A clock over that of the fewest groups, tuned; an infinite end is at twice the figure."""
    series, words = [], []
    for i, (it, name) in enumerate(zip(found[:CONTEXTS], names, strict=False)):
        least = it.of(it.arms[0].groups, False)
        for kept in (True, False):
            places = [place for place, arm in enumerate(it.arms) if arm.kept == kept]
            ratios = np.array([it.ratio(arm, least, measure) for arm in places])
            table = pd.DataFrame(ratios, columns=["value", "low", "high"])
            table["high"] = table["high"].where(np.isfinite(table["high"]), 2 * table["value"])
            table = table.assign(x=[float(it.arms[arm].groups) for arm in places])
            table = table[np.isfinite(table["value"])]
            what = f"momentum {it.momentum:g} kept" if kept else "momentum tuned"
            label = ", ".join(filter(None, [name, what]))
            dashes = list(DASHES)[kept]
            series.append(Series(label, OKABE_ITO[-1 - i], dashes, table))
            words.append(f"{label}: {', '.join(map(number, table['value']))}")
    goal, one = number(found[0].losses[0]), found[0].arms[0].groups
    figure = figures.against(
        series, "compute groups g", f"{clock} to loss {goal},\nover tuned g = {one}", log=2
    )
    axes = figure.axes[0]
    axes.axhline(1, color=figures.GREY, lw=0.8, zorder=1)
    axes.set_yscale("log")
    figures.log_ticks(axes.yaxis)
    alt = f"{clock.capitalize()} to a training loss of {goal} against groups, over those of "
    alt += f"{one} tuned: "
    return Picture(figures.uri(figure), alt + "; ".join(words) + ".")


def _losses(
    it: GroupComparison, name: str, its: Sequence[BestSetting], log: pd.DataFrame
) -> Picture:
    """Training loss of every arm at the setting best on all seeds."""
    shades = figures.colours({str(arm.groups): float(arm.groups) for arm in it.arms})
    found = []
    for arm, choice in zip(it.arms, its, strict=True):
        setting = {GROUPS: arm.groups, MOMENTUM: choice.momentum, RATE: choice.rate}
        members = it.runs[(it.runs[list(setting)] == pd.Series(setting)).all(axis=1)]
        label, look = f"g = {arm.groups}, {_momentum(arm, choice)}", shades[str(arm.groups)]
        logs = log[log["point"].isin(members["point"])]
        found.append(LossCurve(label, look, list(DASHES)[arm.kept], logs, members))
    caption = f"{name}: each at its best setting" if name else "Each at its best setting"
    drawn = found, "step", "updates", it.losses[0]
    alt = f"Training loss against updates. {caption}."
    return Picture(figures.uri(figures.losses(*drawn)), alt, caption)
