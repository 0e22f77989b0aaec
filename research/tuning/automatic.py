"""Omnivore's automatic optimizer (Hadjis et al., arXiv 1606.04487), as decisions only.

A setting is (g, mu, alpha): compute groups, explicit momentum, learning rate. More groups are
staler, and staleness is momentum already (arXiv 1605.09774), so what suits g groups is as large as
what can suit more. (alpha, mu) are ordered by alpha, then mu.

    cold start     g = 1: the largest mu and every alpha, from several initializations; the best is
                   kept
                   g = 2, 4, ...: every mu, and alpha and alpha / 10 of the best setting of g / 2,
                   until the cluster is saturated: HE(g) > HE(g / 2) / 1.1, HE(g) the seconds an
                   update
                   Then fewer groups than the best setting has, by probes 4 times as long. What is
                   the best of these trains the first epoch.
    steady state   From the checkpoint of every epoch: every mu, and alpha and alpha / 10 of the
                   last setting, with g at first the last not saturated. Then fewer groups. The
                   best trains the next epoch if it is better than the last by 1 %.
    fewer groups   g <- g / 2, with mu at least as large as the best, for as long as the loss is no
                   worse by 1 %.

All probes of a search are equally long, in seconds, and the least loss is the best. This is the
order and the constants of the authors' program (HazyResearch/Omnivore, omnivore.py), but for

    searches       They try everything; here the largest setting first and the next for as long as
                   the loss falls, so that two or three probes do, and can be longer.
    longer probes  Not theirs. While the loss hardly falls, more groups do well that diverge later.
    epochs         Theirs are equally long. Here each is twice as long as the one before and so are
                   its probes, a fixed share: mistakes are cheap while there is most to learn.
    divergence     Theirs stops where all of a search diverges, or an epoch. Here the search is
                   repeated with alpha / 10; and an epoch that does not lower the loss is, from its
                   checkpoint, with half the groups, or with alpha / 10 if there is one.
    fewer groups   Theirs are halved for as long as mu = 0 is the best, whatever the loss: total
                   momentum is too large then. It is as well if half as many groups do better.
                   That program asks whether to take momenta below 0 instead: they may be among
                   those given.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from typing import NamedTuple

from research.config import ConfigError
from research.tuning.rules import Rules

FASTER = 1.1  # by which more groups have to make updates faster
CLOSE = 1.01  # ratio of losses by which another setting has to win, in steady state
STEP = 10  # between learning rates
GROWTH = 2  # of epochs
LONGER = 4  # times the probes that more groups are chosen by: those that they are kept by
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

    loss: float  # of training, at its end (a probe's: of its mean); NaN if it diverged
    updates: int
    seconds: float  # simulated
    reached: bool = False  # whether the target was


Run = Callable[[Point, float, Setting], Outcome]  # from where, and for how many seconds
Train = Callable[[Point, float, Setting, float], Outcome]  # and what loss it has to lower
Probe = Callable[[Setting], Outcome]
Note = Callable[[str, Setting], None]  # takes down a decision and what it is about


def automatic(
    probe: Run,
    train: Train,
    note: Note,
    seconds_per_update: Callable[[int], float],
    groups: Sequence[int],
    rules: Rules,
) -> None:
    """Tunes and trains in turn, until the target is reached or the seconds are over.

    `groups`: 1, 2, 4, ... `seconds_per_update`: HE. `probe` leaves no trace; `train` goes on to the
    next epoch's point, or stays where it is if it does not lower the loss.
    """
    point, last, most = cold_start(probe, note, seconds_per_update, groups, rules)
    left, epoch, loss = rules.seconds, rules.epoch_seconds, math.inf
    while True:
        outcome = train(point, min(epoch, left), last, loss)
        left -= outcome.seconds
        if outcome.reached or left < ROUNDING * rules.seconds:
            return
        if outcome.loss < loss:  # never, if it diverged
            point, loss, epoch = point._replace(epoch=point.epoch + 1), outcome.loss, GROWTH * epoch
        else:
            last = calmer(last)
            most = last.groups
        tried = partial(probe, point, rules.probe_share * epoch)
        last, most = steady_state(tried, note, last, most, rules.momenta)


def cold_start(
    probe: Run,
    note: Note,
    seconds_per_update: Callable[[int], float],
    groups: Sequence[int],
    rules: Rules,
) -> tuple[Point, Setting, int]:
    """The best initialization, the best setting, and the most groups that do not saturate."""
    grid = [Setting(1, max(rules.momenta), alpha) for alpha in rules.learning_rates]
    starts = [Point(seed) for seed in range(rules.seeds)]
    found = {start: search(partial(probe, start, rules.probe_seconds), grid) for start in starts}
    point = min(found, key=lambda start: found[start][1].loss)
    best, least = found[point]
    last, most, pace = best, 1, seconds_per_update(1)
    for g in groups[1:]:
        grid = settings(g, last.learning_rate, rules.momenta)
        faster = seconds_per_update(g)
        if faster > pace / FASTER:
            note("saturated", grid[0])
            break
        most, pace = g, faster
        last, outcome = search(partial(probe, point, rules.probe_seconds), grid)
        if outcome.loss < least.loss:
            best, least = last, outcome
    longer = cache(partial(probe, point, LONGER * rules.probe_seconds))
    best = fewer_groups(longer, note, best, rules.momenta)
    note("cold start", best)
    return point, best, most


def steady_state(
    probe: Probe, note: Note, last: Setting, most: int, momenta: Sequence[float]
) -> tuple[Setting, int]:
    """The best setting of at most `most` groups, and at most how many the next search is of."""
    tried = cache(probe)
    best, _ = search(tried, settings(most, last.learning_rate, momenta))
    best = fewer_groups(tried, note, best, momenta)
    kept = tried(last).loss <= CLOSE * tried(best).loss  # never, if it diverges
    chosen = last if kept else best
    note("steady state", chosen)
    return chosen, max(best.groups, chosen.groups)


def fewer_groups(tried: Probe, note: Note, best: Setting, momenta: Sequence[float]) -> Setting:
    """The best of half as many groups, and so on, for as long as its loss is no worse by 1 %.

    `tried` remembers: it is asked for the best setting again.
    """
    while best.groups > 1:
        outcome = tried(best)
        half = settings(best.groups // 2, best.learning_rate, momenta)
        fewer, its = search(tried, [one for one in half if size(one) >= size(best)])
        if its.loss > CLOSE * outcome.loss:
            break
        note("fewer groups", fewer)
        best = fewer
    return best


def settings(g: int, alpha: float, momenta: Sequence[float]) -> list[Setting]:
    """Of g groups, what a search is of; the largest first."""
    rates = alpha, alpha / STEP
    return [Setting(g, mu, rate) for rate, mu in product(rates, sorted(momenta, reverse=True))]


def search(tried: Probe, grid: Sequence[Setting]) -> tuple[Setting, Outcome]:
    """From the largest setting down, the last before the loss no longer falls.

    Raises `ConfigError` if the loss is finite at no learning rate, however small.
    """
    best = None
    for setting in sorted(grid, key=size, reverse=True):
        outcome = tried(setting)
        if best and not outcome.loss < best[1].loss:
            break
        if math.isfinite(outcome.loss):
            best = setting, outcome
    if best:
        return best
    if max(setting.learning_rate for setting in grid) < TINY:
        raise ConfigError("config.tune.learning_rates: the loss is finite at none, however small")
    return search(tried, [smaller(setting) for setting in grid])


def size(setting: Setting) -> tuple[float, float]:
    """By which settings are ordered."""
    return setting.learning_rate, setting.momentum


def calmer(setting: Setting) -> Setting:
    """Half as many groups; of one, with a smaller learning rate."""
    g = setting.groups
    return setting._replace(groups=g // 2) if g > 1 else smaller(setting)


def smaller(setting: Setting) -> Setting:
    return setting._replace(learning_rate=setting.learning_rate / STEP)
