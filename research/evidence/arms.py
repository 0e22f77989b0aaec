"""An arm of a comparison, tuned until its optimum is interior.

An arm is one side of the comparison. Each of its numbers, such as the learning rate, has a *ladder*
of values without ends, and a setting is a rung on every ladder. From where it stands the search
tries the rungs next to it on each ladder and moves to the best, until all of them are worse. So
both neighbours on every ladder are known of the setting that it ends with: it is *interior*.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from optdyn.evidence.study import Job, Study
from optdyn.evidence.trial import Curve, to_loss
from optdyn.experiment import Experiment
from optdyn.grid import Point

SLACK = 1.5  # a trial ends after so many times what the best so far took
WORSE = 1.02  # a rung that is worse by less than this ratio is as good
MOVES = 40  # of a search, at most
LONGER, ROUNDS = 4, 3  # trials are so many times longer, so often, where none reaches the target
RATE, MOMENTUM = "optimizer.learning_rate", "optimizer.momentum"
OUTER = "strategy.outer_momentum"
STEP = "long_run_step"  # a ladder of alpha / (1 - mu), which sets the learning rate

Ladder = Callable[[int], float]
Rungs = tuple[int, ...]


class Cost(NamedTuple):
    """What a setting took, compared in this order."""

    time: float  # of the clock, to the target
    loss: float  # at the end
    updates: float  # to the target


class Arm(NamedTuple):
    """What is tuned: keys of a config, or STEP, each with its ladder and the rung to start from."""

    config: Experiment
    ladders: Mapping[str, Ladder]
    start: Mapping[str, int]


class Tuned(NamedTuple):
    """An arm at its best, as JSON has it. Costs are medians over the seeds that choose."""

    point: Point  # keys of the config and their values
    rungs: dict[str, int]
    cost: float  # of the clock, to the target; infinite if no setting reaches it
    neighbours: dict[str, list[float]]  # by ladder, the cost of the rung below and of that above
    interior: bool  # reached, and no neighbour is better
    tried: list[tuple[list[int], float]]


def rates(i: int) -> float:
    """Powers of 2."""
    return 2.0**i


def momenta(i: int) -> float:
    """0, 0.3, 0.6, 0.8, 0.9, 0.95, ... and the same below 0."""
    size = 0.3 * abs(i) if abs(i) < 3 else 1 - 0.2 * 2.0 ** (3 - abs(i))
    return round(math.copysign(size, i), 6) if i else 0.0


def rung(ladder: Ladder, value: float) -> int:
    """The rung of a ladder that is nearest to a value, among the first fifty on either side."""
    return min(range(-50, 51), key=lambda i: abs(ladder(i) - value))


def sgd(config: Experiment, step: float, momentum: float | None = None) -> Arm:
    """SGD tuned from about this long-run step on, and from this momentum; None keeps the config's.

    Steps are alpha / (1 - mu), since the best of those depends little on mu.
    """
    ladders: dict[str, Ladder] = {STEP: rates}
    start = {STEP: round(math.log2(step))}
    if momentum is not None:
        ladders[MOMENTUM], start[MOMENTUM] = momenta, rung(momenta, momentum)
    return Arm(config, ladders, start)


def point(arm: Arm, rungs: Sequence[int]) -> Point:
    """The values of a setting, by key of the config.

    Where an outer momentum has a ladder too, a step is over 1 - mu of both.
    """
    values = {key: ladder(i) for (key, ladder), i in zip(arm.ladders.items(), rungs, strict=True)}
    if STEP in values:
        momentum = values.get(MOMENTUM, arm.config.optimizer.momentum)
        values[RATE] = values.pop(STEP) * (1 - momentum) * (1 - values.get(OUTER, 0.0))
    return values


def at(config: Experiment, point: Point, seed: int) -> Experiment:
    """The config at this setting and seed."""
    return config.with_(point, seed=seed)


def tuned(
    study: Study, arm: Arm, target: float, clock: str = "updates", ends: str = "updates"
) -> Tuned:
    """The setting with the least cost to a training loss of `target`, on the seeds that choose.

    Trials are short at first: where none reaches the target, the setting of the least loss goes on
    with trials that are longer, up to the steps of the config. They end after `SLACK` times the
    updates that the best so far took. Where some settings take longer for an update than others,
    `ends` = 'seconds': the search then goes on from there with trials that end by those.
    """
    best = tuple(arm.start[key] for key in arm.ladders)
    budget = max(arm.config.steps / LONGER**ROUNDS, 1.0)
    while True:
        best, costs = _search(study, arm, best, target, clock, budget)
        if math.isfinite(costs[best].time) or budget >= arm.config.steps:
            break
        budget *= LONGER
    if ends == "seconds" and math.isfinite(costs[best].time):
        best, costs = _search(study, arm, best, target, clock, SLACK * costs[best].time, ends)
    return _found(arm, best, {rungs: cost.time for rungs, cost in costs.items()})


def _search(
    study: Study,
    arm: Arm,
    best: Rungs,
    target: float,
    clock: str,
    budget: float,
    ends: str = "updates",
) -> tuple[Rungs, dict[Rungs, Cost]]:
    """From `best` to a setting whose neighbours are all worse, by trials of `budget` of `ends`."""
    costs: dict[Rungs, Cost] = {}
    for _ in range(MOVES):
        wanted = [rungs for rungs in (best, *_neighbours(best)) if rungs not in costs]
        if not wanted:
            break
        for part in (wanted[:1], wanted[1:]) if not costs else (wanted,):
            took = (c.updates if ends == "updates" else c.time for c in costs.values())
            most = min([budget, *(SLACK * each for each in took)])
            of = _trials(study, arm, part, target, most, ends)
            for rungs, curves in zip(part, of, strict=True):
                costs[rungs] = _cost(curves, target, clock)
        least = min(costs, key=lambda rungs: costs[rungs])
        if (costs[least].time, costs[least].loss) < (costs[best].time / WORSE, costs[best].loss):
            best = least
        elif all(math.isinf(cost.loss) for cost in costs.values()):  # steps are far too large
            down = [3 * (key in (STEP, RATE)) for key in arm.ladders]
            best = tuple(i - by for i, by in zip(best, down, strict=True))
    return best, costs


def _trials(
    study: Study, arm: Arm, wanted: Sequence[Rungs], target: float, most: float, ends: str
) -> list[list[Curve]]:
    """The curves of every setting, on the seeds that choose."""
    every = [at(arm.config, point(arm, rungs), seed) for rungs in wanted for seed in study.choose]
    curves = study.trials([Job(config, target, most, ends) for config in every])
    n = len(study.choose)
    return [curves[i : i + n] for i in range(0, len(curves), n)]


def reported(study: Study, arm: Arm, setting: Point, target: float) -> list[Curve]:
    """The curve of every reporting seed at a setting, to the target or the end of its steps."""
    return study.trials([Job(at(arm.config, setting, seed), target) for seed in study.report])


def _neighbours(rungs: Rungs) -> list[Rungs]:
    axes = range(len(rungs))
    return [(*rungs[:k], rungs[k] + by, *rungs[k + 1 :]) for k in axes for by in (-1, 1)]


def _cost(curves: Sequence[Curve], target: float, clock: str) -> Cost:
    """Medians; where the target was missed the last loss says which miss is nearer."""
    times = [to_loss(curve, target, clock) for curve in curves]
    updates = [to_loss(curve, target) for curve in curves]
    losses = [math.inf if c.status == "diverged" else c.losses[-1] for c in curves]
    return Cost(*(float(np.median(each)) for each in (times, losses, updates)))


def _found(arm: Arm, best: Rungs, costs: Mapping[Rungs, float]) -> Tuned:
    beside = [costs.get(rungs, math.nan) for rungs in _neighbours(best)]
    pairs = {key: beside[2 * k : 2 * k + 2] for k, key in enumerate(arm.ladders)}
    cost = costs[best]
    interior = math.isfinite(cost) and all(cost <= WORSE * other for other in beside)
    tried: list[tuple[list[int], Any]] = [(list(rungs), cost) for rungs, cost in costs.items()]
    rungs = dict(zip(arm.ladders, best, strict=True))
    return Tuned(point(arm, best), rungs, cost, pairs, interior, tried)
