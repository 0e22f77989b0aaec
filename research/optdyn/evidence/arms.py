"""An arm of a comparison, tuned whole: the best setting that its ladders have.

An arm is one side of the comparison. Each of its numbers, such as the learning rate, has a *ladder*
of values without ends, and a setting is a rung on every ladder. From where it stands the search
tries the rungs next to it on each ladder and moves to the best; where all of them are worse it
tries two ladders at a time, since a higher momentum may only pay at a lower rate. It starts from
two settings, and goes on from the better end. Settings that are within `NOISE` of the least cost
are then run on more and more of the seeds that choose, half of them leaving each time, so that the
winner is not merely the luckiest.

The setting that it ends with is *interior*: neither one ladder nor two at a time lead to a better
one. Its `range` on a ladder is from the lowest to the highest value that the seeds can't tell from
it; where that is wide, the ladder is flat, and the one value says little.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple, TypeVar

import numpy as np

from optdyn.evidence.intervals import ratio
from optdyn.evidence.study import Job, Study
from optdyn.evidence.trial import Curve, to_loss
from optdyn.experiment import Config
from optdyn.train.grid import Point

SLACK = 1.5  # a trial ends after so many times what the best so far took
WORSE = 1.02  # a rung that is worse by less than this ratio is as good
NOISE = 1.1  # a setting within this ratio of the least cost may be the best on more seeds
SEARCHED, FINAL = 4, 8  # the seeds that a search looks at; settings that get more of them
MOVES = 40  # of a search, at most
FALLS = 3  # by 2^3 each, of a rate at which all diverges; below that no rate is the reason
LONGER, ROUNDS = 4, 3  # trials are so many times longer, so often, where none reaches the target
RATE, MOMENTUM = "optimizer.learning_rate", "optimizer.momentum"
OUTER, PERIOD = "method.outer_momentum", "method.period"
STEP = "long_run_step"  # a ladder of alpha / (1 - mu), which sets the learning rate
# The second start is that of more momentum at a smaller step, which is far away in both.
AWAY = {STEP: -2, RATE: -2, MOMENTUM: 3}  # rungs; 2 on every other ladder

Ladder = Callable[[int], float]
Rungs = tuple[int, ...]
Key = TypeVar("Key")


class Cost(NamedTuple):
    """What a setting took, compared in this order."""

    time: float  # of the clock, to the target
    loss: float  # at the end
    updates: float  # to the target


class Arm(NamedTuple):
    """What is tuned: keys of a config, or STEP, each with its ladder and the rung to start from."""

    config: Config
    ladders: Mapping[str, Ladder]
    start: Mapping[str, int]


class Tuned(NamedTuple):
    """An arm at its best, as JSON has it. Costs are medians over the first seeds that choose."""

    point: Point  # keys of the config and their values
    rungs: dict[str, int]
    cost: float  # of the clock, to the target; infinite if no setting reaches it
    neighbours: dict[str, list[float]]  # by ladder, the cost of the rung below and of that above
    interior: bool  # reached, and no neighbour is better, those on diagonals among them
    tried: list[tuple[list[int], float]]
    range: dict[str, list[float]]  # by ladder, the least and the most that is told from it by none
    seeds: int  # that the setting was chosen on


class Search(NamedTuple):
    """An arm on a clock: what a trial is run to, and by what it ends."""

    study: Study
    arm: Arm
    target: float  # training loss
    clock: str  # what is to be small, 'updates' or simulated 'seconds'
    ends: str  # what trials end by

    def run(self, wanted: Sequence[Rungs], seeds: Sequence[int], most: float) -> list[list[Curve]]:
        """The curves of every setting, on the seeds."""
        every = [at(self.arm.config, point(self.arm, rungs), s) for rungs in wanted for s in seeds]
        curves = self.study.trials([Job(config, self.target, most, self.ends) for config in every])
        n = len(seeds)
        return [curves[i : i + n] for i in range(0, len(curves), n)]


LARGEST = 0.999999  # momentum; its rung is also every one beyond


def rates(i: int) -> float:
    """Powers of 2."""
    return 2.0**i


def counts(i: int) -> int:
    """Powers of 2, of a period or a rank; below rung 0 there is 1 again."""
    return 2 ** max(i, 0)


def momenta(i: int) -> float:
    """0, 0.3, 0.6, 0.8, 0.9, 0.95, ..., 0.999999 and the same below 0."""
    size = 0.3 * abs(i) if abs(i) < 3 else 1 - 0.2 * 2.0 ** (3 - abs(i))
    return round(math.copysign(min(size, LARGEST), i), 6) if i else 0.0


def not_negative(i: int) -> float:
    """0, 0.3, 0.6, 0.8, ...; below rung 0 there is 0 again."""
    return momenta(max(i, 0))


def rung(ladder: Ladder, value: float) -> int:
    """The rung of a ladder that is nearest to a value, among the first fifty on either side.

    Where several are, as beyond an end that stays what it is, the one nearest to rung 0.
    """
    return min(range(-50, 51), key=lambda i: (abs(ladder(i) - value), abs(i)))


def sgd(config: Config, step: float, momentum: float | None = None) -> Arm:
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
        outer = [1 - value for key, value in values.items() if key.endswith(".outer_momentum")]
        values[RATE] = values.pop(STEP) * (1 - momentum) * math.prod(outer)
    return values


def at(config: Config, point: Point, seed: int) -> Config:
    """The config at this setting and seed."""
    return config.with_(point, seed=seed)


def tuned(
    study: Study,
    arm: Arm,
    target: float,
    clock: str = "updates",
    ends: str = "updates",
    near: Tuned | None = None,
) -> Tuned:
    """The setting with the least cost to a training loss of `target`, on the seeds that choose.

    Trials are short at first: where none reaches the target, the setting of the least loss goes on
    with trials that are longer, up to the steps of the config. They end after `SLACK` times the
    updates that the best so far took. Where some settings take longer for an update than others,
    `ends` = 'seconds': the search then goes on from there with trials that end by those.

    What was tuned by updates to the same target at another batch or period is `near`: the search
    starts from there and from there only, with trials of `LONGER` times the updates it took.

    Raises ValueError where trials should end by seconds and the cost is in updates.
    """
    if (clock, ends) == ("updates", "seconds"):
        raise ValueError("ends = 'seconds' is of a search by seconds: clock = 'seconds' or 'met'")
    search, costs = Search(study, arm, target, clock, "updates"), dict[Rungs, Cost]()
    if near is not None:
        best = tuple(near.rungs[key] for key in arm.ladders)
        budget = min(LONGER * near.cost, arm.config.steps)
        best = _climb(search, best, costs, budget)
        if math.isinf(costs[best].time):
            return _found(search, best, costs, {})
        return _found(search, *_decided(search, best, costs, budget))
    best = tuple(arm.start[key] for key in arm.ladders)
    budget = max(arm.config.steps / LONGER**ROUNDS, 1.0)
    while True:
        costs = {}
        best = _climb(search, best, costs, budget)
        ended = math.isfinite(costs[best].time) or math.isinf(costs[best].loss)
        if ended or budget >= arm.config.steps:
            break
        budget *= LONGER
    if math.isinf(costs[best].time):
        return _found(search, best, costs, {})
    # Again from there, without the budget that may have cut what is nearly as good.
    budget = SLACK * (costs[best].updates if ends == "updates" else costs[best].time)
    search, costs = search._replace(ends=ends), {}
    best = _climb(search, best, costs, budget)
    away = (arm.start[key] + AWAY.get(key, 2) for key in arm.ladders)
    other = _climb(search, tuple(away), costs, budget)
    best = min(best, other, key=costs.__getitem__)
    return _found(search, *_decided(search, best, costs, budget))


def best_of(study: Study, every: Mapping[Key, Arm], target: float) -> dict[Key, Tuned]:
    """`tuned` by updates, of several arms at a time."""
    found = study.map(lambda arm: tuned(study, arm, target), every.values())
    return dict(zip(every, found, strict=True))


def reported(
    study: Study,
    arm: Arm,
    setting: Point,
    target: float = -math.inf,
    seeds: Sequence[int] | None = None,
) -> list[Curve]:
    """The curve of every seed at a setting, to the target or the end of its steps.

    Without `seeds` they are those that report.
    """
    chosen = study.report if seeds is None else seeds
    return study.trials([Job(at(arm.config, setting, seed), target) for seed in chosen])


def _climb(search: Search, best: Rungs, costs: dict[Rungs, Cost], budget: float) -> Rungs:
    """From `best` to a setting with no better neighbour, by trials of `budget`; `costs` grow."""
    falls = 0
    for _ in range(MOVES):
        for wanted in ([best], beside(best), diagonal(best)):
            _look(search, wanted, costs, budget)
            least = min(wanted, key=costs.__getitem__, default=best)
            here = costs[best]
            if (costs[least].time, costs[least].loss) < (here.time / WORSE, here.loss):
                best = least
                break
            hopeless = math.isinf(here.loss) and math.isinf(costs[least].loss)
            if wanted != [best] and hopeless and falls < FALLS:
                falls += 1
                down = [3 * (key in (STEP, RATE)) for key in search.arm.ladders]
                best = tuple(i - by for i, by in zip(best, down, strict=True))  # far too large
                break
        else:
            break
    return best


def _look(search: Search, wanted: Iterable[Rungs], costs: dict[Rungs, Cost], budget: float) -> None:
    """The costs of settings that have none, on the first seeds that choose."""
    new = [rungs for rungs in wanted if rungs not in costs]
    seeds = search.study.choose[:SEARCHED]
    for rungs, curves in zip(
        new, search.run(new, seeds, _most(search, costs, budget)), strict=True
    ):
        costs[rungs] = _cost(curves, search.target, search.clock)


def _most(search: Search, costs: Mapping[Rungs, Cost], budget: float) -> float:
    """What a trial may take, at most: more than that is not the best."""
    took = (c.updates if search.ends == "updates" else c.time for c in costs.values())
    return min([budget, *(SLACK * each for each in took)])


def _decided(
    search: Search, best: Rungs, costs: dict[Rungs, Cost], budget: float
) -> tuple[Rungs, dict[Rungs, Cost], dict[Rungs, list[float]]]:
    """The best on all the seeds that choose, all costs, and the times of those that came near it.

    Successive halving: the better half of the settings within `NOISE` of the least cost goes on to
    twice the seeds. What is beside the winner is tried too, until nothing new comes near.
    """
    seeds, times = search.study.choose, dict[Rungs, list[float]]()
    for _ in range(MOVES):
        least = min(cost.time for cost in costs.values())
        near = sorted((r for r in costs if costs[r].time <= NOISE * least), key=costs.__getitem__)
        near, n = near[:FINAL], min(SEARCHED, len(seeds))
        while True:
            curves = search.run(near, seeds[:n], _most(search, costs, budget))
            for rungs, every in zip(near, curves, strict=True):
                times[rungs] = [to_loss(curve, search.target, search.clock) for curve in every]
            near.sort(key=lambda rungs: float(np.median(times[rungs])))
            if n == len(seeds) or len(near) == 1:
                break
            near, n = near[: max(math.ceil(len(near) / 2), 2)], min(2 * n, len(seeds))
        best = near[0]
        if all(rungs in costs for rungs in (*beside(best), *diagonal(best))):
            break
        _look(search, (*beside(best), *diagonal(best)), costs, budget)
    return best, costs, times


def beside(rungs: Rungs) -> list[Rungs]:
    """The settings one rung away on one ladder, below and above."""
    return [_moved(rungs, {k: by}) for k in range(len(rungs)) for by in (-1, 1)]


def diagonal(rungs: Rungs) -> list[Rungs]:
    """The settings one rung away on two ladders."""
    pairs = combinations(range(len(rungs)), 2)
    return [
        _moved(rungs, {j: one, k: other}) for (j, k), one, other in product(pairs, (-1, 1), (-1, 1))
    ]


def _moved(rungs: Rungs, by: Mapping[int, int]) -> Rungs:
    return tuple(i + by.get(k, 0) for k, i in enumerate(rungs))


def _cost(curves: Sequence[Curve], target: float, clock: str) -> Cost:
    """Medians; where the target was missed the last loss says which miss is nearer."""
    times = [to_loss(curve, target, clock) for curve in curves]
    updates = [to_loss(curve, target) for curve in curves]
    losses = [math.inf if c.status == "diverged" else c.losses[-1] for c in curves]
    return Cost(*(float(np.median(each)) for each in (times, losses, updates)))


def _found(
    search: Search,
    best: Rungs,
    costs: Mapping[Rungs, Cost],
    times: Mapping[Rungs, Sequence[float]],
) -> Tuned:
    arm, own = search.arm, times.get(best, [costs[best].time])

    def over(rungs: Rungs) -> float:
        """What a setting took over the best, on the seeds that both have."""
        if rungs not in times:
            return costs[rungs].time / costs[best].time
        n = min(len(times[rungs]), len(own))
        return float(np.median(times[rungs][:n]) / np.median(own[:n]))

    around = [rungs for rungs in (*beside(best), *diagonal(best)) if rungs in costs]
    interior = math.isfinite(costs[best].time) and all(over(r) >= 1 / WORSE for r in around)
    next_to = [costs[r].time if r in costs else math.nan for r in beside(best)]
    alike = [best]
    for rungs, taken in times.items():
        n = min(len(taken), len(own))
        if rungs != best and ratio(taken[:n], own[:n])[1] <= 1:
            alike.append(rungs)
    return Tuned(
        point(arm, best),
        dict(zip(arm.ladders, best, strict=True)),
        float(np.median(own)),
        {key: next_to[2 * k : 2 * k + 2] for k, key in enumerate(arm.ladders)},
        interior,
        [(list(rungs), cost.time) for rungs, cost in costs.items()],
        {key: _span(arm.ladders[key], [r[k] for r in alike]) for k, key in enumerate(arm.ladders)},
        len(own) if times else min(SEARCHED, len(search.study.choose)),
    )


def _span(ladder: Ladder, rungs: Sequence[int]) -> list[float]:
    return [ladder(min(rungs)), ladder(max(rungs))]
