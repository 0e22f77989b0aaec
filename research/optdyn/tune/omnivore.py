"""Omnivore's automatic optimizer (Hadjis et al., arXiv 1606.04487): its decisions.

A setting is (g, mu, alpha): compute groups, explicit momentum, learning rate. More groups are
staler, and staleness acts like momentum (arXiv 1605.09774). So what suits more groups is at most as
large as what suits g. (alpha, mu) are ordered by alpha, then mu. The order and the constants are
those of the authors' program (HazyResearch/Omnivore, omnivore.py).

    grid           from the smallest setting up. Left out are what is larger than the best of the
                   grid before, what is smaller in both numbers, and what is larger in both than one
                   that diverged. The least loss is the best.
    finer grid     momenta 0.1 and 0.2 around the best, at its alpha
    cold start     g = 1: the largest mu and every alpha, from several initializations, of which the
                   best is kept. More groups: every mu, and alpha and alpha / 10 of the best
                   of g / 2, until the cluster is saturated: HE(g) > HE(g / 2) / 1.1, HE(g) the
                   seconds an update. The best of each g is probed 5 times as long, and of these the
                   least loss is the best. It trains the first epoch.
    steady state   From the checkpoint of every epoch: every mu, and alpha and alpha / 10 of the
                   last setting, with g at first the last not saturated. Of those within 1 % of the
                   least loss the largest alpha is taken, then the largest mu. While the best mu is
                   0 and g > 1, g is halved and the search done again, as if 0.6 had been the best.
                   What is found trains the next epoch, as long as the first.

Differences, as the authors' program stops or goes on in vain:

    groups         are all divisors of the number of workers, not 1, 2, 4, ...; g / 2 is the most of
                   them that are at most half of g.
    divergence     Where all of a grid diverges it is tried again with alpha / 10.
    an epoch       that does not lower the loss (the first: below that of the start, and of chance)
                   is repeated from its checkpoint with half the groups, or with alpha / 10 if there
                   is one.
    a probe's loss is of the mean of its parameters, not the mean of its last ten batches' losses.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

from optdyn.experiment import ConfigError
from optdyn.methods.setup import Tune
from optdyn.tune.choice import Choice, EpochPoint, Outcome, Probe, loss_of
from optdyn.tune.journal import Bench

FASTER = 1.1  # least factor by which more groups make updates faster
CLOSE = 1.01  # ratio of losses within which a larger setting is taken, in steady state
STEP = 10  # between learning rates
LONGER = 5  # times the seconds of a grid's probes: those by which groups are chosen
FINER = (-0.2, -0.1, 0.0, 0.1, 0.2)  # momenta around the best
RESTART = 0.6  # the momentum from which the search goes on where groups are halved
ROUNDING = 1e-9  # of sums of seconds
TINY = 1e-30  # a learning rate that changes nothing, in float32


def omnivore(bench: Bench, groups: Sequence[int], rules: Tune) -> None:
    """Tunes and trains in turn, until the target is reached or the seconds are over."""
    point, current, most_groups = cold_start(bench, groups, rules)
    left, loss = rules.seconds, bench.start(point)
    while True:
        outcome = bench.train(point, min(rules.epoch_seconds, left), current, loss)
        left -= outcome.seconds
        is_over = left < ROUNDING * rules.seconds or current.learning_rate < TINY
        if outcome.reached or is_over:
            return
        if outcome.loss < loss:  # never, if it diverged
            point, loss = point._replace(epoch=point.epoch + 1), outcome.loss
            probe = partial(bench.probe, point, rules.probe_share * rules.epoch_seconds)
            current, most_groups = steady_state(probe, current, most_groups, rules.momenta, groups)
            bench.note("steady state", current)
        else:
            if current.groups > 1:
                current = current._replace(groups=halved(groups, current.groups))
            else:
                current = current._replace(learning_rate=current.learning_rate / STEP)
            most_groups = current.groups


def cold_start(bench: Bench, groups: Sequence[int], rules: Tune) -> tuple[EpochPoint, Choice, int]:
    """Returns the best initialization, the best setting, and the most groups not saturated."""
    grid = [Choice(1, max(rules.momenta), alpha) for alpha in rules.learning_rates]
    best_of_seed: dict[EpochPoint, Found] = {}
    for start in (EpochPoint(seed) for seed in range(rules.seeds)):
        probe = partial(bench.probe, start, rules.probe_seconds)
        best_of_seed[start] = search(probe, grid, rules.momenta)
    point = min(best_of_seed, key=lambda start: best_of_seed[start].loss)
    probe = partial(bench.probe, point, rules.probe_seconds)
    best = {1: best_of_seed[point].setting}
    for g in groups[1:]:
        current = best[halved(groups, g)]
        if bench.pace(g) > bench.pace(current.groups) / FASTER:
            bench.note("saturated", current._replace(groups=g))
            break
        best[g] = search(
            probe, settings(g, current.learning_rate, rules.momenta), rules.momenta, current
        ).setting
    longer = {s: bench.probe(point, LONGER * rules.probe_seconds, s) for s in best.values()}
    chosen = min(longer, key=lambda s: loss_of(longer[s]))
    bench.note("cold start", chosen)
    return point, chosen, max(best)


def steady_state(
    probe: Probe, current: Choice, most_groups: int, momenta: Sequence[float], groups: Sequence[int]
) -> tuple[Choice, int]:
    """Returns the best setting of at most so many groups, and the groups of the next search."""
    while True:
        grid = settings(most_groups, current.learning_rate, momenta)
        best, _ = search(probe, grid, momenta, current, CLOSE)
        if best.momentum or most_groups == 1:
            return best, most_groups
        most_groups = halved(groups, most_groups)
        current = best._replace(momentum=RESTART)


def settings(g: int, alpha: float, momenta: Sequence[float]) -> list[Choice]:
    return [Choice(g, mu, rate) for rate, mu in product((alpha / STEP, alpha), sorted(momenta))]


class Found(NamedTuple):
    setting: Choice
    loss: float


def search(
    probe: Probe,
    grid: Sequence[Choice],
    momenta: Sequence[float],
    previous: Choice | None = None,
    close: float = 1.0,
) -> Found:
    """Returns the best setting of a grid, and of momenta around it.

    Raises `ConfigError` if the loss is finite at no learning rate, however small.
    """
    tried: dict[Choice, Outcome] = {}
    best = _best(probe, grid, previous, close, tried)
    if best is None:
        if max(setting.learning_rate for setting in grid) < TINY:
            raise ConfigError(
                "config.tune.learning_rates: must have one at which the loss is finite"
            )
        smaller = [s._replace(learning_rate=s.learning_rate / STEP) for s in grid]
        return search(probe, smaller, momenta, None, close)
    low, high = min(momenta), max(momenta)
    around = sorted({round(best.setting.momentum + by, 9) for by in FINER})
    finer = [best.setting._replace(momentum=mu) for mu in around if low <= mu <= high]
    return _best(probe, finer, previous, close, tried) or best


def _best(
    probe: Probe,
    grid: Sequence[Choice],
    previous: Choice | None,
    close: float,
    tried: dict[Choice, Outcome],
) -> Found | None:
    """Returns the largest setting with a loss within `close` of the least; None if all diverge."""
    losses: dict[Choice, float] = {}
    diverged: Choice | None = None
    for one in sorted(grid, key=size):
        if previous and (size(one) > size(previous) or _smaller(one, previous)):
            continue
        if diverged and not _smaller(one, diverged, in_any=True):
            continue
        if one not in tried:
            tried[one] = probe(one)
        losses[one] = loss_of(tried[one])
        if losses[one] == math.inf:
            diverged = one
    least = min(losses.values(), default=math.inf)
    if least == math.inf:
        return None
    chosen = max((s for s in losses if losses[s] <= close * least), key=size)
    return Found(chosen, losses[chosen])


def _smaller(one: Choice, other: Choice, in_any: bool = False) -> bool:
    """Returns whether `one` is smaller in both numbers, or `in_any`."""
    below = one.learning_rate < other.learning_rate, one.momentum < other.momentum
    return any(below) if in_any else all(below)


def halved(groups: Sequence[int], g: int) -> int:
    """Returns the most of the groups that are at most half of g; 1 where there are none."""
    return max((h for h in groups if 2 * h <= g), default=1)


def size(setting: Choice) -> tuple[float, float]:
    """Returns the numbers by which settings are ordered."""
    return setting.learning_rate, setting.momentum
