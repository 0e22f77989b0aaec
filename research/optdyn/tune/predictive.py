"""Groups by predicted total time, steps by what limits them, probes for the rest.

    total time of g groups ~ HE(g) P_SE(g)          the least is trained
    long-run step of one group: measured.step; of g groups, measured.step / P_SE(g)

HE(g) is the cluster's seconds an update, and P_SE(g) the factor by which staleness raises the
number of updates (`prediction.py`). Both are measured at the initialization, in simulated seconds
that count. Long-run steps are alpha / (1 - mu). Explicit momentum is the predicted best total
momentum less 1 - 1/g (arXiv 1605.09774), and not below 0.

    an epoch       Each is twice as long as the one before. One that does not lower the loss (the
                   first: below that of the start, and of chance) ends early and is repeated from
                   its checkpoint with half the step; if that does no better it was too short, and
                   is repeated twice as long. One that lowers it by less than 15 % is held up by the
                   noise of its step: the next has half of it.
    a challenger   of each other epoch: twice the step, the next momentum up or down, in turn, for
                   as long as one wins. Choice and challenger each have a probe, a short run, of an
                   equal share of the epoch, and the better trains it.
    the guard      Before the third epoch, or as soon as there is a challenge, several groups are
                   challenged by one group with its own predicted setting, twice as long, and
                   against half their step too. So synchronous training competes.
    settling       Where the mean of the latest parameters is at the target and they are not, only
                   the noise of the step is left: the step falls to a quarter.

Shorter steps look better for a while, whatever they lead to later. So a shorter step, less momentum
or one group has to win by 15 %, any other setting by 2 %.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

from optdyn.methods.setup import Tune
from optdyn.tune.choice import Choice, EpochPoint, Probe, loss_of
from optdyn.tune.journal import Bench

Move = Callable[[Choice], Choice]

GROWTH = 2  # of epochs
FACTOR = 2.0  # between steps
SHORTER = 1.15  # ratio of losses by which a shorter step has to win, and one group
LONGER = 1.02  # and any other setting
STALLED = 0.85  # least ratio of losses at the end and at the start of a stalled epoch
SETTLE = 4.0  # factor by which the step falls where only its noise is left
GUARD = 2  # the first epoch before which groups are compared with one group
ROUNDING = 1e-9  # of sums of seconds


def predictive(bench: Bench, groups: Sequence[int], rules: Tune) -> None:
    """Tunes and trains in turn, until the target is reached or the seconds are over."""
    point, loss = EpochPoint(), bench.start(EpochPoint())
    left, epoch = rules.seconds, rules.epoch_seconds
    current, synchronous = planned(bench, point, groups)
    other = partial(momentum, sorted({*rules.momenta, current.momentum, synchronous.momentum}))
    compared, refused, least = False, current, math.inf
    moves: list[Move] = [up, partial(other, 1), partial(other, -1)]
    while True:
        bench.note("chosen", current)
        outcome = bench.train(point, min(epoch, left), current, loss, settle=True)
        left -= outcome.seconds
        if outcome.reached or left < ROUNDING * rules.seconds:
            return
        lower = outcome.loss < loss  # never, if it diverged
        stalled = not outcome.loss < STALLED * loss
        if lower:
            point, loss, least = point._replace(epoch=point.epoch + 1), outcome.loss, math.inf
        if outcome.settled:
            current = scaled(current, 1 / SETTLE)
        elif not lower and least <= outcome.loss:  # with half the step no better: not the step's
            current, epoch, least = refused, GROWTH * epoch, math.inf
        elif not lower:
            refused, least, current = current, loss_of(outcome), down(current)
        elif stalled:
            current, epoch = down(current), GROWTH * epoch
        else:
            epoch *= GROWTH
            seconds = rules.probe_share * epoch
            if current.groups > 1 and point.epoch >= GUARD and not compared:
                current, compared = guarded(bench, point, 2 * seconds, current, synchronous), True
            else:
                current, moves = challenged(bench, point, seconds, current, moves)


def planned(bench: Bench, point: EpochPoint, groups: Sequence[int]) -> tuple[Choice, Choice]:
    """Returns the setting of the least predicted time, and the best of one group."""
    step, total, penalties = bench.measure(point)
    g = min(groups, key=lambda g: bench.pace(g) * penalties[g])
    many = of_step(g, max(total - (1 - 1 / g), 0.0), step / penalties[g])
    return many, of_step(1, total, step)


def challenged(
    bench: Bench, point: EpochPoint, seconds: float, current: Choice, moves: Sequence[Move]
) -> tuple[Choice, list[Move]]:
    """Returns the better of the setting and its next challenger, and the next moves."""
    while moves[0](current) == current:  # a momentum at the end of its list
        moves = [*moves[1:], moves[0]]
    won = better(partial(bench.probe, point, seconds), current, moves[0](current))
    return won, [*moves[1:], moves[0]] if won == current else list(moves)


def guarded(
    bench: Bench, point: EpochPoint, seconds: float, current: Choice, synchronous: Choice
) -> Choice:
    """Returns one group's setting if it beats the groups at their step and at half of it."""
    tried = cache(partial(bench.probe, point, seconds))
    groups = min(loss_of(tried(current)), loss_of(tried(down(current))))
    if SHORTER * loss_of(tried(synchronous)) < groups:
        return synchronous
    return better(tried, current, down(current))


def better(probe: Probe, current: Choice, other: Choice) -> Choice:
    """Returns the setting of the smaller loss, with a handicap for a shorter step."""
    calmer = step(other) < (1 - ROUNDING) * step(current) or other.momentum < current.momentum
    loss, handicap = loss_of(probe(current)), SHORTER if calmer else LONGER
    return other if handicap * loss_of(probe(other)) < loss else current


def down(setting: Choice) -> Choice:
    """Returns the setting at half the learning rate."""
    return scaled(setting, 1 / FACTOR)


def up(setting: Choice) -> Choice:
    """Returns the setting at twice the learning rate."""
    return scaled(setting, FACTOR)


def momentum(ladder: Sequence[float], by: int, setting: Choice) -> Choice:
    """Returns the setting with the next momentum of the ladder, at the same long-run step."""
    at = min(max(ladder.index(setting.momentum) + by, 0), len(ladder) - 1)
    if ladder[at] == setting.momentum:
        return setting
    return of_step(setting.groups, ladder[at], step(setting))


def step(setting: Choice) -> float:
    """Returns alpha / (1 - mu)."""
    return setting.learning_rate / (1 - setting.momentum)


def of_step(groups: int, momentum: float, step: float) -> Choice:
    """Returns the setting with this long-run step, alpha / (1 - mu)."""
    return Choice(groups, momentum, step * (1 - momentum))


def scaled(setting: Choice, by: float) -> Choice:
    return setting._replace(learning_rate=setting.learning_rate * by)
