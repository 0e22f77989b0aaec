"""The cost of keeping a momentum, and that of asynchrony once the momentum is tuned.

An *arm* is a number of groups g with a tuned learning rate and its momentum

    kept     the same for all g: the highest that was tried with all of them
    tuned    the best for g

Figures are `held_out` medians (`report/efficiency.py`) with 95 % intervals that reach as far as
the log leaves each figure possible (`evidence/crossing.py`). An optimum is *interior* if the next
learning rates and, where it is tuned, the next momenta at their best rates take more updates.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from optdyn import methods
from optdyn.evidence import intervals
from optdyn.report import efficiency, figures, page
from optdyn.report.curves import CLOCKS, RunComparison
from optdyn.report.figures import DASHES, OKABE_ITO, LossCurve, Series
from optdyn.report.page import Cell, Picture, Section, Table, cell, number
from optdyn.report.run_tables import INTERPOLATED, describe
from optdyn.report.tables import GROUPS, MOMENTUM, NAME, RATE

VARIED = (NAME, GROUPS, MOMENTUM, "seed", "steps", "log_every", "checkpoint_every")
HALVINGS = 2  # losses beside the one that settings are chosen by, each twice the one below
CONTEXTS = 6  # comparisons in a picture
Triple = tuple[float, float, float]  # a figure, and the ends of its interval

METHOD = (
    "Each number of groups has a learning rate of its own, whether it keeps the momentum or has it "
    "tuned: the setting of fewest updates to a training loss of {loss}. Each of the {seeds} seeds "
    "is judged at the setting that is best on the others. A row names the setting that is best on "
    "all seeds, and in brackets the least and the most that a seed was judged at, where some were "
    "judged at another: so two rows of one setting may have unlike figures. Figures are medians "
    "over the seeds, with 95 % intervals from drawing the seeds again, in pairs, and choosing "
    f"again; a run that misses a loss counts as infinitely long. {INTERPOLATED}"
)


class BestSetting(NamedTuple):
    momentum: float
    rate: float
    updates: float  # median over the seeds, by which it looks better than it is
    neighbours: tuple[float, ...]  # updates of the next settings; NaN where none was tried

    @property
    def interior(self) -> bool:
        return all(updates > self.updates for updates in self.neighbours)


class GroupArm(NamedTuple):
    """All settings of g groups, with the momentum kept or tuned, and the figures of each seed."""

    groups: int
    kept: bool
    settings: pd.MultiIndex  # (momentum, learning rate) of S settings
    figures: np.ndarray  # (3 M, S, n): values, lows, highs; settings are chosen by the first

    @property
    def best(self) -> BestSetting:
        medians = pd.Series(np.median(self.figures[0], axis=1), self.settings)
        momentum, rate = medians.index[medians.argmin()]
        neighbours: tuple[float, ...] = _neighbours(medians[momentum], rate)
        if not self.kept:
            neighbours += _neighbours(medians.groupby(level=0).min(), momentum)
        return BestSetting(float(momentum), float(rate), float(medians.min()), neighbours)

    @property
    def held_out_settings(self) -> pd.MultiIndex:
        """Returns the setting at which each seed is judged, the one best on the other seeds."""
        seeds = np.arange(self.figures.shape[-1])
        return self.settings[efficiency.held_out_settings(self.figures[0], seeds)]

    def medians(self, seeds: np.ndarray) -> np.ndarray:
        """Returns medians over the drawn seeds, each at the setting best on the others, (3, M)."""
        settings = efficiency.held_out_settings(self.figures[0], seeds)
        return np.median(self.figures[:, settings, seeds], axis=1).reshape(3, -1)


class GroupComparison(NamedTuple):
    """Arms that differ in nothing but their groups and how they were tuned."""

    runs: pd.DataFrame
    momentum: float  # that is kept
    losses: tuple[float, ...]  # settings are chosen by the first, the lowest
    arms: list[GroupArm]  # kept and tuned for each number of groups, fewest groups first
    values: np.ndarray  # (A, M): updates to each loss, seconds to each, loss at the end
    resolutions: np.ndarray  # (A, M): width of what the log leaves possible
    drawn: np.ndarray  # (D, A, 3, M), with the seeds drawn again: values, lows, highs

    def place(self, groups: int, kept: bool) -> int:
        return [(arm.groups, arm.kept) for arm in self.arms].index((groups, kept))

    def ratio(self, above: int, below: int, measure: int = 0) -> Triple:
        (_, low, high), (_, less, more) = (self.drawn[:, i, :, measure].T for i in (above, below))
        with np.errstate(invalid="ignore", divide="ignore"):
            value = float(self.values[above, measure] / self.values[below, measure])
            if above == below:
                return value, value, value
            least, most = intervals.ends(low / more, 0.0)[0], intervals.ends(high / less, 0.0)[1]
        return value, float(least), float(most)

    def figure(self, arm: int, measure: int = 0) -> Triple:
        _, low, high = self.drawn[:, arm, :, measure].T
        least, most = intervals.ends(low)[0], intervals.ends(high)[1]
        return float(self.values[arm, measure]), float(least), float(most)


def comparisons(
    runs: pd.DataFrame, log: pd.DataFrame, keys: Sequence[str], loss: float = np.nan
) -> list[GroupComparison]:
    """Returns all comparisons among the runs of `run_tables.prepare`.

    `loss` NaN: the lowest power of two, or loss if runs start below it, that each arm reaches with
    a tuned momentum. Settings that lack a seed are left out, and losses at or above the start of a
    run.
    """
    ended = runs[runs["status"].isin(("completed", "diverged"))]
    known = {name: methods.known_stack(name) for name in ended[NAME].unique()}
    simple = {name: bool(method and method.simple) for name, method in known.items()}
    ended = ended[ended[NAME].map(simple).astype(bool)]
    ended = ended.assign(**{GROUPS: ended[GROUPS].fillna(1).astype(int)})
    by = context_keys(keys)
    parts = [part for _, part in ended.groupby(by, sort=False, dropna=False)] if by else [ended]
    found = [(part, kept) for part in parts if (kept := _kept_momentum(part)) is not None]
    if not found:
        return []
    if np.isnan(loss):
        lowest = max(_lowest_loss(group) for part, _ in found for _, group in part.groupby(GROUPS))
        if not 0 < lowest < np.inf:
            return []
        loss = efficiency.rounded_target(lowest, log)
    doubled = [loss * 2**i for i in range(HALVINGS + 1)]
    losses = tuple(loss for loss in doubled if np.isnan(efficiency.start_below(loss, log)))
    if not losses:
        return []
    compared = [_comparison(part, log, kept, losses) for part, kept in found]
    return [comparison for comparison in compared if comparison]


def context_keys(keys: Sequence[str]) -> list[str]:
    """Returns the keys in which the arms of a comparison must not differ."""
    return [key for key in keys if key not in VARIED and not efficiency.is_tuned(key)]


def _kept_momentum(runs: pd.DataFrame) -> float | None:
    """Returns the momentum that is kept; None if the runs compare no groups by it."""
    if not len(runs) or runs[GROUPS].nunique() < 2 or runs["seed"].nunique() < 2:
        return None
    momenta = [set(group[MOMENTUM]) for _, group in runs.groupby(GROUPS)]
    common = set.intersection(*momenta)
    return max(common) if common and max(map(len, momenta)) > 1 else None


def _lowest_loss(runs: pd.DataFrame) -> float:
    """Returns the loss that the worst seed of the best setting reaches."""
    reached = runs["lowest"].where(runs["status"] == "completed", np.inf)
    return float(reached.groupby(runs["setting"]).max().min())


def _comparison(
    runs: pd.DataFrame, log: pd.DataFrame, kept: float, losses: tuple[float, ...]
) -> GroupComparison | None:
    log = log[log["point"].isin(runs["point"])]
    timed = [efficiency.with_target(runs, log, loss) for loss in losses]
    final = pd.to_numeric(runs["train_loss"]).where(runs["status"] == "completed", np.inf)
    columns = list[pd.Series]()
    for end in ("to_target", "low", "high"):
        columns += [table[f"{clock}_{end}"] for clock in CLOCKS for table in timed] + [final]
    table = pd.concat(columns, axis=1).set_axis(range(len(columns)), axis=1)
    seeds = np.arange(runs["seed"].nunique())
    table = table.set_index([runs[key] for key in (GROUPS, MOMENTUM, RATE, "seed")])
    table = table[~table.index.duplicated(keep="last")].unstack("seed").dropna()
    arms = []
    for g, group in table.groupby(level=0):
        tuned = group.droplevel(0)
        for rows in (tuned[tuned.index.get_level_values(0) == kept], tuned):
            figures = rows.to_numpy().reshape(len(rows), -1, len(seeds)).swapaxes(0, 1)
            arms.append(GroupArm(int(g), rows is not tuned, rows.index, figures))
    if len(arms) < 4 or not all(len(arm.settings) for arm in arms):
        return None
    values, low, high = np.stack([arm.medians(seeds) for arm in arms], axis=1)
    with np.errstate(invalid="ignore"):
        resolutions = np.nan_to_num(high - low)
    drawn = efficiency.per_draw(
        lambda draw: [arm.medians(draw) for arm in arms], efficiency.draws(len(seeds))
    )
    return GroupComparison(runs, kept, losses, arms, values, resolutions, drawn)


def _neighbours(line: pd.Series, at: float) -> tuple[float, float]:
    """Returns the values below and above a place of the index; NaN beyond its ends."""
    line = line.sort_index()
    around = np.pad(line.to_numpy(), 1, constant_values=np.nan)
    place = line.index.get_loc(at)
    return float(around[place]), float(around[place + 2])


def section(found: Sequence[GroupComparison], runs_compared: RunComparison) -> Section | None:
    """Returns the section of the figures after tuning, and of which optima are interior."""
    if not found:
        return None
    names = _names(found, runs_compared.keys)
    optima = [arm.best.interior for comparison in found for arm in comparison.arms]
    edges = f", {optima.count(False)} on an edge" * (not all(optima))
    points = [f"{sum(optima)} of the {len(optima)} optima lie inside what was tried{edges}."]
    text = METHOD.format(loss=number(found[0].losses[0]), seeds=len(found[0].arms[0].figures[0, 0]))
    pictures = [
        _picture_of_penalties(found, names, "updates", 0),
        _picture_of_penalties(found, names, "simulated seconds", len(found[0].losses)),
    ]
    for comparison, name in zip(found[:CONTEXTS], names, strict=False):
        pictures.append(_picture_of_losses(comparison, name, runs_compared.log))
    return Section("What remains after tuning", points, text, pictures, _table(found, names))


def answer(found: Sequence[GroupComparison], keys: Sequence[str]) -> list[str]:
    """Returns the costs of keeping the momentum, and of groups with a tuned one, at most groups."""
    lines = []
    for comparison, name in zip(found, _names(found, keys), strict=True):
        one, most = comparison.arms[0].groups, comparison.arms[-1].groups
        kept, tuned = comparison.place(most, True), comparison.place(most, False)
        least = comparison.place(one, False)
        start = f"{name}: " if name else ""
        keeping, updates = comparison.ratio(kept, tuned), comparison.ratio(tuned, least)
        seconds = comparison.ratio(tuned, least, len(comparison.losses))
        lines += [
            f"{start}to a training loss of {number(comparison.losses[0])}, {most} groups that keep "
            f"momentum {comparison.momentum:g} take {_times(keeping)} the updates of {most} groups "
            f"with a tuned momentum{_verdict(keeping)}.",
            f"{start}what remains: {most} tuned groups take {_times(updates)} the updates of {one} "
            f"tuned group{'s' * (one > 1)}{_verdict(updates)}, and {_times(seconds)} the "
            f"simulated seconds{_verdict(seconds)}.",
        ]
    return lines


def _names(found: Sequence[GroupComparison], keys: Sequence[str]) -> list[str]:
    firsts = [comparison.runs.iloc[0] for comparison in found]
    keys = [key for key in context_keys(keys) if len({repr(run[key]) for run in firsts}) > 1]
    return [describe(run, keys) for run in firsts]


def _times(ratio: Triple) -> str:
    if np.isnan(ratio[0]):
        return f"an unknown number of times [{ratio[1]:.3g}, {ratio[2]:.3g}]".replace("inf", "∞")
    value, ends = intervals.shown(ratio).replace("inf", "∞").split(" ", 1)
    return f"{value} times {ends}"


def _verdict(ratio: Triple) -> str:
    return " (no difference seen)" if ratio[1] <= 1 <= ratio[2] else ""


def _table(found: Sequence[GroupComparison], names: Sequence[str]) -> Table:
    goals, groups = [number(loss) for loss in found[0].losses], found[0].arms[0].groups
    n, rows = len(goals), []
    for comparison, name in zip(found, names, strict=True):
        least = comparison.place(comparison.arms[0].groups, False)
        for i, arm in enumerate(comparison.arms):
            cells = [
                _cell(comparison.figure(i, m), comparison.resolutions[i, m]) for m in range(2 * n)
            ]
            tuned = comparison.place(arm.groups, False)
            over_least = cell(1) if i == least else _cell(comparison.ratio(i, least))
            row = _setting(arm, name, any(names))
            row |= {f"updates to {goals[m]}": cells[m] for m in range(n)[::-1]}
            row[f"updates to {goals[0]}, over tuned g = {groups}"] = over_least
            row[f"updates to {goals[0]}, kept over tuned"] = (
                _cell(comparison.ratio(i, tuned)) if arm.kept else cell(None)
            )
            row |= {f"simulated seconds to {goals[m]}": cells[n + m] for m in range(n)[::-1]}
            row["training loss at the end"] = _cell(comparison.figure(i, 2 * n))
            on_edge = Cell("on an edge", "on an edge", bad=True)
            rows.append(row | {"optimum": cell("inside") if arm.best.interior else on_edge})
    return page.table("What remains after tuning", rows, ("runs", "momentum", "optimum"))


def _setting(arm: GroupArm, name: str, several: bool) -> dict[str, Cell]:
    """Returns groups, momentum and rate, with the range of those at which seeds are judged."""
    row = {"runs": cell(name)} if several else {}
    row |= {
        "groups g": cell(arm.groups),
        "momentum": cell(_momentum(arm)),
        "learning rate": cell(arm.best.rate),
    }
    for level, title in enumerate(("momentum", "learning rate")):
        values = arm.held_out_settings.get_level_values(level)
        if values.min() < values.max():
            row[title] = page.between(row[title], values.min(), values.max(), digits=4)
    return row


def _momentum(arm: GroupArm) -> str:
    return f"{arm.best.momentum:g}, {'kept' if arm.kept else 'tuned'}"


def _cell(found: Triple, resolution: float = 0.0) -> Cell:
    value, low, high = found
    middle = cell(float(f"{value:.3g}"), resolution)
    return page.between(middle, low, high, resolution) if np.isfinite(low) else middle


def _picture_of_penalties(
    found: Sequence[GroupComparison], names: Sequence[str], clock: str, measure: int
) -> Picture:
    """Draws a clock over that of the fewest groups, tuned; an infinite end at twice the figure."""
    series, words = [], []
    for i, (comparison, name) in enumerate(zip(found[:CONTEXTS], names, strict=False)):
        least = comparison.place(comparison.arms[0].groups, False)
        for kept in (True, False):
            places = [place for place, arm in enumerate(comparison.arms) if arm.kept == kept]
            ratios = [comparison.ratio(arm, least, measure) for arm in places]
            table = pd.DataFrame(ratios, columns=["value", "low", "high"])
            table["high"] = table["high"].where(np.isfinite(table["high"]), 2 * table["value"])
            table = table.assign(x=[float(comparison.arms[arm].groups) for arm in places])
            table = table[np.isfinite(table["value"])]
            policy = f"momentum {comparison.momentum:g} kept" if kept else "momentum tuned"
            label = ", ".join(filter(None, [name, policy]))
            series.append(Series(label, OKABE_ITO[-1 - i], list(DASHES)[kept], table))
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


def _picture_of_losses(comparison: GroupComparison, name: str, log: pd.DataFrame) -> Picture:
    shades = figures.colours({str(arm.groups): float(arm.groups) for arm in comparison.arms})
    curves = []
    for arm in comparison.arms:
        setting = {GROUPS: arm.groups, MOMENTUM: arm.best.momentum, RATE: arm.best.rate}
        members = comparison.runs[
            (comparison.runs[list(setting)] == pd.Series(setting)).all(axis=1)
        ]
        label, look = f"g = {arm.groups}, {_momentum(arm)}", shades[str(arm.groups)]
        logs = log[log["point"].isin(members["point"])]
        curves.append(LossCurve(label, look, list(DASHES)[arm.kept], logs, members))
    caption = f"{name}: each at its best setting" if name else "Each at its best setting"
    figure = figures.losses(curves, "step", "updates", comparison.losses[0])
    return Picture(figures.uri(figure), f"Training loss against updates. {caption}.", caption)
