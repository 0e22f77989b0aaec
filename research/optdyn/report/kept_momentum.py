"""What it costs to keep a momentum, and what asynchrony costs once the momentum is tuned.

An *arm* is a number of groups g with its momentum

    kept     the same for every g: the highest that was tried with all of them
    tuned    whatever is best for g

and with a learning rate of its own. The setting chosen for an arm is the one with the fewest
updates to a training loss. Each seed is judged at the setting that is best on the other seeds;
figures are medians over the seeds, and their 95 % intervals draw seeds again, in pairs, and choose
again (`report/efficiency.py`); they reach as far as the log leaves each figure possible
(`evidence/crossing.py`).

An arm's optimum is *interior* if the next lower and the next higher learning rate take more
updates, and, where the momentum is tuned, the next momenta too, each at its own best rate.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from optdyn import methods
from optdyn.evidence import intervals
from optdyn.report import efficiency, figures, page
from optdyn.report.curves import Compared
from optdyn.report.figures import DASHES, OKABE_ITO, LossCurve, Series
from optdyn.report.page import Cell, Picture, Section, Table, cell, number
from optdyn.report.run_tables import INTERPOLATED, describe
from optdyn.report.tables import GROUPS, MOMENTUM, NAME, RATE

FREE = (NAME, GROUPS, MOMENTUM, "seed", "steps", "log_every", "checkpoint_every")
HALVINGS = 2  # losses beside the one that settings are chosen by, each twice the one below
CONTEXTS = 6  # comparisons that are told apart in a picture
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
    """The setting best on all seeds."""

    momentum: float
    rate: float
    updates: float  # median over the seeds, by which it looks better than it is
    beside: tuple[float, ...]  # the same of the next settings each way; NaN where none was tried

    @property
    def interior(self) -> bool:
        """Whether all that lies beside it was tried and is worse."""
        return all(updates > self.updates for updates in self.beside)


class GroupResults(NamedTuple):
    """All settings of g groups, and what came of them with each seed."""

    groups: int
    kept: bool
    settings: pd.MultiIndex  # (momentum, learning rate) of S settings
    figures: np.ndarray  # (3 M, S, n): values, lows, highs; settings are chosen by the first

    @property
    def best(self) -> BestSetting:
        """The best of the settings by the median over seeds."""
        medians = pd.Series(np.median(self.figures[0], axis=1), self.settings)
        momentum, rate = medians.index[medians.argmin()]
        beside: tuple[float, ...] = _beside(medians[momentum], rate)
        if not self.kept:
            beside += _beside(medians.groupby(level=0).min(), momentum)
        return BestSetting(float(momentum), float(rate), float(medians.min()), beside)

    @property
    def judged_at(self) -> pd.MultiIndex:
        """The setting that each seed is judged at: the one best on the other seeds."""
        seeds = np.arange(self.figures.shape[-1])
        return self.settings[efficiency.picks(self.figures[0], seeds)]

    def judged(self, seeds: np.ndarray) -> np.ndarray:
        """(3, M): medians over the drawn seeds, each at the setting best on the others."""
        taken = self.figures[:, efficiency.picks(self.figures[0], seeds), seeds]
        return np.median(taken, axis=1).reshape(3, -1)


class GroupComparison(NamedTuple):
    """Arms that differ in nothing but their groups and how they were tuned."""

    runs: pd.DataFrame
    momentum: float  # that is kept
    losses: tuple[float, ...]  # settings are chosen by the first, the lowest
    arms: list[GroupResults]  # kept and tuned for each number of groups, fewest groups first
    values: np.ndarray  # (A, M): updates to each loss, seconds to each, loss at the end
    apart: np.ndarray  # (A, M): of the ends of what the log leaves possible
    drawn: np.ndarray  # (D, A, 3, M), with the seeds drawn again: values, lows, highs

    def of(self, groups: int, kept: bool) -> int:
        """The arm's place."""
        return [(arm.groups, arm.kept) for arm in self.arms].index((groups, kept))

    def ratio(self, above: int, below: int, measure: int = 0) -> Triple:
        """The ratio of two arms' figures, and its interval."""
        (_, low, high), (_, less, more) = (self.drawn[:, i, :, measure].T for i in (above, below))
        with np.errstate(invalid="ignore", divide="ignore"):
            value = float(self.values[above, measure] / self.values[below, measure])
            if above == below:
                return value, value, value
            least, most = intervals.ends(low / more, 0.0)[0], intervals.ends(high / less, 0.0)[1]
        return value, float(least), float(most)

    def figure(self, arm: int, measure: int = 0) -> Triple:
        """One arm's, and its interval."""
        _, low, high = self.drawn[:, arm, :, measure].T
        least, most = intervals.ends(low)[0], intervals.ends(high)[1]
        return float(self.values[arm, measure]), float(least), float(most)


def comparisons(
    runs: pd.DataFrame, log: pd.DataFrame, keys: Sequence[str], loss: float = np.nan
) -> list[GroupComparison]:
    """All that the runs hold; settings that lack a seed are left out.

    `runs` are those of `run_tables.prepared`. `loss` NaN: the lowest power of two that every arm
    reaches with its momentum tuned, or just what it reaches where runs start below that power.
    Losses that some run starts from or below are not among a comparison's.
    """
    ended = runs[runs["status"].isin(("completed", "diverged"))]
    known = {name: methods.known_stack(name) for name in ended[NAME].unique()}
    simple = {name: bool(its and its.simple) for name, its in known.items()}
    ended = ended[ended[NAME].map(simple).astype(bool)]
    ended = ended.assign(**{GROUPS: ended[GROUPS].fillna(1).astype(int)})
    by = context(keys)
    parts = [its for _, its in ended.groupby(by, sort=False, dropna=False)] if by else [ended]
    found = [(its, kept) for its in parts if (kept := _kept(its)) is not None]
    if not found:
        return []
    if np.isnan(loss):
        lowest = max(_lowest(its) for part, _ in found for _, its in part.groupby(GROUPS))
        if not 0 < lowest < np.inf:
            return []
        loss = efficiency.rounded_target(lowest, log)
    losses = tuple(loss * 2**i for i in range(HALVINGS + 1))
    losses = tuple(it for it in losses if np.isnan(efficiency.too_easy(it, log)))
    if not losses:
        return []
    compared = [_compared(part, log, kept, losses) for part, kept in found]
    return [it for it in compared if it]


def context(keys: Sequence[str]) -> list[str]:
    """The keys that tell comparisons apart: those in which no arms of one may differ."""
    return [key for key in keys if key not in FREE and not efficiency.tunes(key)]


def _kept(runs: pd.DataFrame) -> float | None:
    """The momentum that is kept; None if the runs compare no groups by it."""
    if not len(runs) or runs[GROUPS].nunique() < 2 or runs["seed"].nunique() < 2:
        return None
    tried = [set(its[MOMENTUM]) for _, its in runs.groupby(GROUPS)]
    common = set.intersection(*tried)
    return max(common) if common and max(map(len, tried)) > 1 else None


def _lowest(runs: pd.DataFrame) -> float:
    """What the worst seed of the best setting reaches."""
    reached = runs["lowest"].where(runs["status"] == "completed", np.inf)
    return float(reached.groupby(runs["setting"]).max().min())


def _compared(
    runs: pd.DataFrame, log: pd.DataFrame, kept: float, losses: tuple[float, ...]
) -> GroupComparison | None:
    log = log[log["point"].isin(runs["point"])]
    ways = [efficiency.with_target(runs, log, loss) for loss in losses]
    ends = pd.to_numeric(runs["train_loss"]).where(runs["status"] == "completed", np.inf)
    columns = list[pd.Series]()
    for end in ("to_target", "low", "high"):
        columns += [way[f"{it}_{end}"] for it in ("updates", "seconds") for way in ways] + [ends]
    table = pd.concat(columns, axis=1).set_axis(range(len(columns)), axis=1)
    seeds = np.arange(runs["seed"].nunique())
    table = table.set_index([runs[key] for key in (GROUPS, MOMENTUM, RATE, "seed")])
    table = table[~table.index.duplicated(keep="last")].unstack("seed").dropna()
    arms = []
    for g, its in table.groupby(level=0):
        every = its.droplevel(0)
        for some in (every[every.index.get_level_values(0) == kept], every):
            figures = some.to_numpy().reshape(len(some), -1, len(seeds)).swapaxes(0, 1)
            arms.append(GroupResults(int(g), some is not every, some.index, figures))
    if len(arms) < 4 or not all(len(arm.settings) for arm in arms):
        return None
    values, low, high = np.stack([arm.judged(seeds) for arm in arms], axis=1)
    with np.errstate(invalid="ignore"):
        apart = np.nan_to_num(high - low)
    drawn = efficiency.of_draws(
        lambda some: [arm.judged(some) for arm in arms], efficiency.draws(len(seeds))
    )
    return GroupComparison(runs, kept, losses, arms, values, apart, drawn)


def _beside(line: pd.Series, at: float) -> tuple[float, float]:
    """The values below and above a place of the index; NaN beyond its ends."""
    line = line.sort_index()
    around = np.pad(line.to_numpy(), 1, constant_values=np.nan)
    place = line.index.get_loc(at)
    return float(around[place]), float(around[place + 2])


def section(found: Sequence[GroupComparison], of: Compared) -> Section | None:
    """What remains after tuning, and whether the settings that were chosen lie inside."""
    if not found:
        return None
    names = _names(found, of.keys)
    optima = [arm.best.interior for it in found for arm in it.arms]
    edges = f", {optima.count(False)} on an edge" * (not all(optima))
    points = [f"{sum(optima)} of the {len(optima)} optima lie inside what was tried{edges}."]
    text = METHOD.format(loss=number(found[0].losses[0]), seeds=len(found[0].arms[0].figures[0, 0]))
    pictures = [
        _penalties(found, names, "updates", 0),
        _penalties(found, names, "simulated seconds", len(found[0].losses)),
        *(_losses(it, name, of.log) for it, name in zip(found[:CONTEXTS], names, strict=False)),
    ]
    table = _results(found, names)
    return Section("What remains after tuning", points, text, pictures, table)


def answer(found: Sequence[GroupComparison], keys: Sequence[str]) -> list[str]:
    """What keeping the momentum costs, and what remains once it is tuned, at the most groups."""
    said = []
    for it, name in zip(found, _names(found, keys), strict=True):
        one, most = it.arms[0].groups, it.arms[-1].groups
        kept, tuned, least = it.of(most, True), it.of(most, False), it.of(one, False)
        start = f"{name}: " if name else ""
        keeping, updates = it.ratio(kept, tuned), it.ratio(tuned, least)
        seconds = it.ratio(tuned, least, len(it.losses))
        said += [
            f"{start}to a training loss of {number(it.losses[0])}, {most} groups that keep "
            f"momentum {it.momentum:g} take {_times(keeping)} the updates of {most} groups with a "
            f"tuned momentum{_verdict(keeping)}.",
            f"{start}what remains: {most} tuned groups take {_times(updates)} the updates of {one} "
            f"tuned group{'s' * (one > 1)}{_verdict(updates)}, and {_times(seconds)} the "
            f"simulated seconds{_verdict(seconds)}.",
        ]
    return said


def _names(found: Sequence[GroupComparison], keys: Sequence[str]) -> list[str]:
    """What tells the comparisons apart, '' if nothing."""
    firsts = [it.runs.iloc[0] for it in found]
    keys = [key for key in context(keys) if len({repr(run[key]) for run in firsts}) > 1]
    return [describe(run, keys) for run in firsts]


def _times(ratio: Triple) -> str:
    if np.isnan(ratio[0]):
        return f"an unknown number of times [{ratio[1]:.3g}, {ratio[2]:.3g}]".replace("inf", "∞")
    value, ends = intervals.shown(ratio).replace("inf", "∞").split(" ", 1)
    return f"{value} times {ends}"


def _verdict(ratio: Triple) -> str:
    return " (no difference seen)" if ratio[1] <= 1 <= ratio[2] else ""


def _results(found: Sequence[GroupComparison], names: Sequence[str]) -> Table:
    losses, one = found[0].losses, found[0].arms[0].groups
    n, goal = len(losses), f"updates to {number(found[0].losses[0])}"
    rows = []
    for it, name in zip(found, names, strict=True):
        least = it.of(it.arms[0].groups, False)
        for place, arm in enumerate(it.arms):
            every = [_figure(it.figure(place, i), it.apart[place, i]) for i in range(2 * n)]
            over = it.ratio(place, it.of(arm.groups, False))
            row = _setting(arm, name, any(names))
            row |= {f"updates to {number(losses[i])}": every[i] for i in range(n)[::-1]}
            row[f"{goal}, over tuned g = {one}"] = (
                cell(1) if place == least else _figure(it.ratio(place, least))
            )
            row[f"{goal}, kept over tuned"] = _figure(over) if arm.kept else cell(None)
            row |= {
                f"simulated seconds to {number(losses[i])}": every[n + i] for i in range(n)[::-1]
            }
            row["training loss at the end"] = _figure(it.figure(place, 2 * n))
            rows.append(row | {"optimum": _optimum(arm.best)})
    return page.table("What remains after tuning", rows, ("runs", "momentum", "optimum"))


def _setting(arm: GroupResults, name: str, several: bool) -> dict[str, Cell]:
    """Groups, momentum and rate, with the range of those that seeds are judged at."""
    values = {"momentum": cell(_momentum(arm)), "learning rate": cell(arm.best.rate)}
    for level, (title, its) in enumerate(values.items()):
        tried = arm.judged_at.get_level_values(level)
        low, high = tried.min(), tried.max()
        values[title] = its if low == high else page.between(its, low, high, digits=4)
    return ({"runs": cell(name)} if several else {}) | {"groups g": cell(arm.groups)} | values


def _optimum(best: BestSetting) -> Cell:
    return cell("inside") if best.interior else Cell("on an edge", "on an edge", bad=True)


def _momentum(arm: GroupResults) -> str:
    return f"{arm.best.momentum:g}, {'kept' if arm.kept else 'tuned'}"


def _figure(found: Triple, apart: float = 0.0) -> Cell:
    value, low, high = found
    its = cell(float(f"{value:.3g}"), apart)
    return page.between(its, low, high, apart) if np.isfinite(low) else its


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


def _losses(it: GroupComparison, name: str, log: pd.DataFrame) -> Picture:
    """Training loss of every arm at the setting best on all seeds."""
    shades = figures.colours({str(arm.groups): float(arm.groups) for arm in it.arms})
    found = []
    for arm in it.arms:
        setting = {GROUPS: arm.groups, MOMENTUM: arm.best.momentum, RATE: arm.best.rate}
        members = it.runs[(it.runs[list(setting)] == pd.Series(setting)).all(axis=1)]
        label, look = f"g = {arm.groups}, {_momentum(arm)}", shades[str(arm.groups)]
        logs = log[log["point"].isin(members["point"])]
        found.append(LossCurve(label, look, list(DASHES)[arm.kept], logs, members))
    caption = f"{name}: each at its best setting" if name else "Each at its best setting"
    figure = figures.losses(found, "step", "updates", it.losses[0])
    return Picture(figures.uri(figure), f"Training loss against updates. {caption}.", caption)
