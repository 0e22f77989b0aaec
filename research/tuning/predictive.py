"""Groups by a predicted total time, steps from what limits them, probes only for what is left.

    total time of g groups ~ HE(g) P_SE(g)          the least is trained
    long-run step of one group: measured.step; of g groups, measured.step / P_SE(g)

HE(g) is the cluster's seconds an update. The step and P_SE(g), the updates that staleness costs,
are predicted by `prediction.py` from the gradient noise scale, the sharpness and the law of
staleness, measured at the initialization before anything is tried (`segments.measure`); it takes
simulated seconds that count. Long-run steps are alpha / (1 - mu), of which the best depends little
on mu while noise limits them. Where it does not, total momentum is the largest mu: explicit
momentum that less 1 - 1/g (arXiv 1605.09774), and not below 0.

    an epoch       Each is twice as long as the one before. One that does not lower the loss (the
                   first: below that of the start, and of chance) ends early and is repeated from
                   its checkpoint with half the step.
    a challenger   of each epoch after the first: half the step, twice the step, the next momentum
                   up or down, in turn, for as long as one wins. Setting and challenger are probed
                   for an equal share of the epoch, and the better trains it.
    the guard      The second challenge of several groups is by one group with its own predicted
                   setting, and half the step: twice as long. So synchronous training competes.
    settling       Where the mean of the latest parameters is at the target and they are not, what
                   is left is the noise of the step: it falls to a quarter.

A shorter step looks better for a while whatever it is later, so it has to win by 15 %.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

from research.tuning.rules import Rules
from research.tuning.setting import Bench, Outcome, Point, Setting

Move = Callable[[Setting], Setting]

GROWTH = 2  # of epochs
FACTOR = 2.0  # between steps
SHORTER = 1.15  # ratio of losses by which a shorter step has to win
SETTLE = 4.0  # by which the step falls where only its noise is left
GUARD = 2  # the epoch before which groups stand against one group
ROUNDING = 1e-9  # of sums of seconds


def predictive(bench: Bench, groups: Sequence[int], rules: Rules) -> None:
    """Tunes and trains in turn, until the target is reached or the seconds are over."""
    point, loss = Point(), bench.start(Point())
    left, epoch = rules.seconds, rules.epoch_seconds
    last, synchronous = planned(bench, point, groups, max(rules.momenta))
    other = partial(momentum, sorted({*rules.momenta, last.momentum, synchronous.momentum}))
    moves: list[Move] = [down, up, partial(other, 1), partial(other, -1)]
    while True:
        bench.note("chosen", last)
        outcome = bench.train(point, min(epoch, left), last, loss, settle=True)
        left -= outcome.seconds
        if outcome.reached or left < ROUNDING * rules.seconds:
            return
        lower = outcome.loss < loss  # never, if it diverged
        if lower:
            point, loss = point._replace(epoch=point.epoch + 1), outcome.loss
        if outcome.settled:
            last = scaled(last, 1 / SETTLE)
        elif not lower:
            last = down(last)
        else:
            epoch *= GROWTH
            seconds = rules.probe_share * epoch
            if last.groups > 1 and point.epoch == GUARD:
                last = race(bench, point, 2 * seconds, last, down(last), synchronous)
            else:
                last, moves = challenged(bench, point, seconds, last, moves)


def planned(
    bench: Bench, point: Point, groups: Sequence[int], largest: float
) -> tuple[Setting, Setting]:
    """What is predicted to take the least time, and the best of one group."""
    step, noisy, penalties = bench.measure(point)
    total = 0.0 if noisy else largest
    g = min(groups, key=lambda g: bench.pace(g) * penalties[g])
    many = of_step(g, max(total - (1 - 1 / g), 0.0), step / penalties[g])
    return many, of_step(1, total, step)


def challenged(
    bench: Bench, point: Point, seconds: float, last: Setting, moves: Sequence[Move]
) -> tuple[Setting, list[Move]]:
    """The better of the setting and its next challenger, and the moves as they come next."""
    while moves[0](last) == last:  # a momentum at the end of its list
        moves = [*moves[1:], moves[0]]
    won = race(bench, point, seconds, last, moves[0](last))
    return won, [*moves[1:], moves[0]] if won == last else list(moves)


def race(bench: Bench, point: Point, seconds: float, last: Setting, *others: Setting) -> Setting:
    """The setting with the least loss after so many seconds, shorter steps handicapped."""
    losses = {one: _loss(bench.probe(point, seconds, one)) for one in (last, *others)}
    handicap = {one: SHORTER if step(one) < step(last) else 1.0 for one in losses}
    return min(losses, key=lambda one: handicap[one] * losses[one])


def down(setting: Setting) -> Setting:
    return scaled(setting, 1 / FACTOR)


def up(setting: Setting) -> Setting:
    return scaled(setting, FACTOR)


def momentum(ladder: Sequence[float], by: int, setting: Setting) -> Setting:
    """The next momentum of the list, at the same long-run step."""
    at = min(max(ladder.index(setting.momentum) + by, 0), len(ladder) - 1)
    if ladder[at] == setting.momentum:
        return setting
    return of_step(setting.groups, ladder[at], step(setting))


def step(setting: Setting) -> float:
    """alpha / (1 - mu)."""
    return setting.learning_rate / (1 - setting.momentum)


def of_step(groups: int, momentum: float, step: float) -> Setting:
    return Setting(groups, momentum, step * (1 - momentum))


def scaled(setting: Setting, by: float) -> Setting:
    return setting._replace(learning_rate=setting.learning_rate * by)


def _loss(outcome: Outcome) -> float:
    """What diverged is worse than anything."""
    return outcome.loss if math.isfinite(outcome.loss) else math.inf
