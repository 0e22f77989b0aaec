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
from optdyn.report import efficiency
from optdyn.report.efficiency import MOMENTUM

NAME, GROUPS, RATE = "method.name", "method.groups", "optimizer.learning_rate"
FREE = (NAME, GROUPS, MOMENTUM, "seed", "steps", "log_every", "checkpoint_every")
HALVINGS = 2  # losses beside the one that settings are chosen by, each twice the one below


class BestSetting(NamedTuple):
    """The setting best on all seeds; beside it lie (value, updates), None where nothing was tried.

    `momenta` is empty where the momentum is kept.
    """

    momentum: float
    rate: float
    updates: float  # median over the seeds, by which it looks better than it is
    rates: tuple[tuple[float, float] | None, ...]  # next lower, next higher
    momenta: tuple[tuple[float, float] | None, ...]

    @property
    def interior(self) -> bool:
        """Whether all that lies beside it was tried and is worse."""
        beside = (*self.rates, *self.momenta)
        return all(neighbour is not None and neighbour[1] > self.updates for neighbour in beside)


class GroupResults(NamedTuple):
    """All settings of g groups, and what came of them with each seed."""

    groups: int
    kept: bool
    settings: pd.MultiIndex  # (momentum, learning rate) of S settings
    figures: np.ndarray  # (3 M, S, n): values, lows, highs; settings are chosen by the first


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

    def ratio(self, above: int, below: int, measure: int = 0) -> tuple[float, float, float]:
        """The ratio of two arms' figures, and its interval."""
        (_, low, high), (_, less, more) = (self.drawn[:, i, :, measure].T for i in (above, below))
        with np.errstate(invalid="ignore", divide="ignore"):
            value = float(self.values[above, measure] / self.values[below, measure])
            if above == below:
                return value, value, value
            least, most = intervals.ends(low / more, 0.0)[0], intervals.ends(high / less, 0.0)[1]
        return value, float(least), float(most)

    def figure(self, arm: int, measure: int = 0) -> tuple[float, float, float]:
        """One arm's, and its interval."""
        _, low, high = self.drawn[:, arm, :, measure].T
        least, most = intervals.ends(low)[0], intervals.ends(high)[1]
        return float(self.values[arm, measure]), float(least), float(most)


def chosen(settings: pd.MultiIndex, updates: np.ndarray, kept: bool) -> BestSetting:
    """The best of the settings by the median over seeds, `updates` being (S, n)."""
    medians = pd.Series(np.median(updates, axis=1), settings)
    momentum, rate = medians.index[medians.argmin()]
    momenta = () if kept else _beside(medians.groupby(level=0).min(), momentum)
    rates = _beside(medians[momentum], rate)
    return BestSetting(float(momentum), float(rate), float(medians.min()), rates, momenta)


def _beside(line: pd.Series, at: float) -> tuple[tuple[float, float] | None, ...]:
    line = line.sort_index()
    place = line.index.get_loc(at)
    return tuple(
        (float(line.index[i]), float(line.iloc[i])) if 0 <= i < len(line) else None
        for i in (place - 1, place + 1)
    )


def judged_at(arm: GroupResults) -> pd.MultiIndex:
    """The setting that each seed is judged at: the one best on the other seeds."""
    seeds = np.arange(arm.figures.shape[-1])
    return arm.settings[efficiency.picks(arm.figures[0], seeds)]


def comparisons(
    runs: pd.DataFrame, log: pd.DataFrame, keys: Sequence[str], loss: float = np.nan
) -> list[GroupComparison]:
    """All that the runs hold; settings that lack a seed are left out.

    `runs` are those of `run_tables.prepared`. `loss` NaN: the lowest power of two that every arm
    reaches with its momentum tuned, or just what it reaches where runs start below that power.
    Losses that some run starts from or below are not among a comparison's.
    """
    ended = runs[runs["status"].isin(("completed", "diverged"))]
    ended = ended[ended[NAME].map(methods.is_simple).astype(bool)]
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
    arms = [
        _arm(int(g), is_kept, its.droplevel(0), kept, len(seeds))
        for g, its in table.groupby(level=0)
        for is_kept in (True, False)
    ]
    if len(arms) < 4 or not all(len(arm.settings) for arm in arms):
        return None
    drawn, which = np.unique(
        np.sort(efficiency.draws(len(seeds)), axis=1), axis=0, return_inverse=True
    )  # five seeds give 126 different draws, but for their order
    values, low, high = np.stack([_judged(arm, seeds) for arm in arms], axis=1)
    with np.errstate(invalid="ignore"):
        apart = np.nan_to_num(high - low)
    again = np.array([[_judged(arm, some) for arm in arms] for some in drawn])[which]
    return GroupComparison(runs, kept, losses, arms, values, apart, again)


def _arm(groups: int, kept: bool, table: pd.DataFrame, momentum: float, seeds: int) -> GroupResults:
    table = table[table.index.get_level_values(0) == momentum] if kept else table
    figures = table.to_numpy().reshape(len(table), -1, seeds).swapaxes(0, 1)
    return GroupResults(groups, kept, table.index, figures)


def _judged(arm: GroupResults, seeds: np.ndarray) -> np.ndarray:
    """(3, M): medians over the drawn seeds, each at the setting best on the others."""
    taken = arm.figures[:, efficiency.picks(arm.figures[0], seeds), seeds]
    return np.median(taken, axis=1).reshape(3, -1)
