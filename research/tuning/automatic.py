"""Omnivore's automatic optimizer (Hadjis et al., arXiv 1606.04487), as decisions only.

A setting is (g, mu, alpha): compute groups, explicit momentum, learning rate. More groups are
staler, and staleness is momentum already (arXiv 1605.09774), so what suits g groups is as large as
what can suit more. (alpha, mu) are ordered by alpha, then mu; the *successors* of a setting are

    (alpha, mu' <= mu) and (alpha / 10, mu' >= mu),    mu' in {0, 0.3, 0.6, 0.9}: five

    cold start     g = 1: mu = 0.9 and every alpha, from several initializations; the best is kept
                   g = 2, 4, ...: the successors of the best setting of g / 2, until the cluster is
                   saturated: HE(g) > HE(g / 2) / 1.1, HE(g) the seconds an update
                   The best setting of any g trains the first epoch.
    steady state   From the checkpoint of every epoch: the last setting and its successors, with g
                   at first the last not saturated. While the best has mu = 0 and g > 1: g <- g / 2,
                   and the successors of (g, 0.6, alpha), amid which mu = 0 is.
                   The best setting trains the next epoch.

All probes of a search are equally long, in seconds, and the least loss at their end is the best. In
steady state, where losses are close, the largest setting within 1 % of the least: the last setting
is as large as any of its successors, so that another has to win by 1 %. What diverges is no
candidate, and nothing is tried that is as large in both numbers with as many groups.

This is the order and the constants of the authors' program (HazyResearch/Omnivore, omnivore.py). It
stops where all of a search diverges, and so does it after an epoch that does: here the search is
repeated with alpha / 10, and the epoch from its checkpoint. Nor does it try the last setting itself
after the cold start, when that has fewer groups than g at first; here a short probe would otherwise
decide for more groups that a longer one decides against. That program asks whether to take
momenta below 0 instead of fewer groups: with such ones among `momenta`, groups are halved only when
the *least* of them is the best.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

from research.config import ConfigError
from research.tuning.rules import Rules

FASTER = 1.1  # by which more groups have to make updates faster
CLOSE = 1.01  # ratio of losses that are as good as equal, in steady state
STEP = 10  # between learning rates
ROUNDING = 1e-9  # of sums of seconds
TINY = 1e-30  # learning rates that move nothing, in float32


class Setting(NamedTuple):
    groups: int  # g
    momentum: float  # mu, explicit
    learning_rate: float  # alpha


class Point(NamedTuple):
    """Where training is: an initialization, and epochs trained from it."""

    seed: int = 0
    epoch: int = 0


class Outcome(NamedTuple):
    """Of a setting tried for a while, from some point."""

    loss: float  # of training, at its end; NaN if it diverged
    updates: int
    seconds: float  # simulated
    seconds_per_update: float  # HE(g)
    reached: bool = False  # whether the target was


Run = Callable[[Point, float, Setting], Outcome]  # from where, and for how many seconds
Probe = Callable[[Setting], Outcome]
Note = Callable[[str, Setting], None]  # takes down a decision and what it is about


def automatic(probe: Run, train: Run, note: Note, groups: Sequence[int], rules: Rules) -> None:
    """Tunes and trains in turn, until the target is reached or the seconds are over.

    `groups`: 1, 2, 4, ... `probe` leaves no trace; `train` goes on to the next epoch's point, or
    stays where it is if it diverges.
    """
    point, last, most = cold_start(probe, note, groups, rules)
    left = rules.seconds
    while True:
        outcome = train(point, min(rules.epoch_seconds, left), last)
        left -= outcome.seconds
        if outcome.reached or left < ROUNDING * rules.seconds:
            return
        if math.isfinite(outcome.loss):
            point = point._replace(epoch=point.epoch + 1)
        else:
            last = smaller(last)
        tried = partial(probe, point, rules.steady_seconds)
        last = steady_state(tried, note, last, most, rules.momenta)
        most = last.groups


def cold_start(
    probe: Run, note: Note, groups: Sequence[int], rules: Rules
) -> tuple[Point, Setting, int]:
    """The best initialization, the best setting, and the most groups that do not saturate."""
    grid = [Setting(1, max(rules.momenta), alpha) for alpha in rules.learning_rates]
    starts = [Point(seed) for seed in range(rules.seeds)]
    found = {start: search(partial(probe, start, rules.cold_seconds), grid) for start in starts}
    point = min(found, key=lambda start: found[start][1].loss)
    last, outcome = best, least = found[point]
    tried = cache(partial(probe, point, rules.cold_seconds))  # twice asked, once tried
    most = 1
    for g in groups[1:]:
        grid = successors(last._replace(groups=g), rules.momenta)
        if tried(grid[0]).seconds_per_update > outcome.seconds_per_update / FASTER:
            note("saturated", grid[0])
            break
        most = g
        last, outcome = search(tried, grid)
        if outcome.loss < least.loss:
            best, least = last, outcome
    note("cold start", best)
    return point, best, most


def steady_state(
    tried: Probe, note: Note, last: Setting, most: int, momenta: Sequence[float]
) -> Setting:
    """The best setting of at most `most` groups."""
    more = successors(last._replace(groups=most), momenta)
    best, _ = search(tried, list(dict.fromkeys([last, *more])), CLOSE)
    while best.momentum == min(momenta) and best.groups > 1:
        note("fewer groups", best)
        amid = sorted(momenta)[-2:][0]  # 0.6
        last = Setting(best.groups // 2, amid, best.learning_rate)
        best, _ = search(tried, successors(last, momenta), CLOSE)
    note("steady state", best)
    return best


def successors(last: Setting, momenta: Sequence[float]) -> list[Setting]:
    """What may be better than the last setting now that gradients are staler, smallest first."""
    g, mu, alpha = last
    here = [Setting(g, momentum, alpha) for momentum in momenta if momentum <= mu]
    below = [Setting(g, momentum, alpha / STEP) for momentum in momenta if momentum >= mu]
    return sorted(here + below, key=size)


def search(tried: Probe, grid: Sequence[Setting], close: float = 1) -> tuple[Setting, Outcome]:
    """The largest setting whose loss is at most `close` times the least.

    Raises `ConfigError` if the loss is finite at no learning rate, however small.
    """
    outcomes: dict[Setting, Outcome] = {}
    while not outcomes:
        if max(setting.learning_rate for setting in grid) < TINY:
            raise ConfigError(
                "config.tune.learning_rates: the loss is finite at none, however small"
            )
        diverged: list[Setting] = []
        for setting in sorted(grid, key=size):
            if any(as_large(setting, other) for other in diverged):
                continue
            outcome = tried(setting)
            if math.isfinite(outcome.loss):
                outcomes[setting] = outcome
            else:
                diverged.append(setting)
        grid = [smaller(setting) for setting in grid]
    most = close * min(outcome.loss for outcome in outcomes.values())
    best = max((s for s, outcome in outcomes.items() if outcome.loss <= most), key=size)
    return best, outcomes[best]


def size(setting: Setting) -> tuple[float, float]:
    """By which settings are ordered."""
    return setting.learning_rate, setting.momentum


def as_large(one: Setting, other: Setting) -> bool:
    """In all three numbers."""
    return all(mine >= its for mine, its in zip(one, other, strict=True))


def smaller(setting: Setting) -> Setting:
    return setting._replace(learning_rate=setting.learning_rate / STEP)
