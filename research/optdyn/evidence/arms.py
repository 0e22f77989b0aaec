"""The search for the best setting of an arm, one side of a comparison.

A setting is a rung on the *ladder* of each number, such as the learning rate. The search moves to
the best neighbour on one ladder, or else on two, and is *interior* where no neighbour is better.
Settings within `NOISE` of the least cost are then run on more and more seeds.
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

SLACK = 1.5  # a trial ends after so many times the cost of the best so far
WORSE = 1.02  # a rung that is worse by less than this ratio is as good
NOISE = 1.1  # a setting within this ratio of the least cost may be the best on more seeds
SEARCHED, FINAL = 4, 8  # seeds of the search; settings that are run on more of them
MOVES = 40  # of a search, at most
FALLS = 3  # by 2^3 each, of a rate at which all diverge; if these do not help, the rate is not why
LONGER, ROUNDS = 4, 3  # trials are so many times longer, so often, where none reaches the target
RATE, MOMENTUM = "optimizer.learning_rate", "optimizer.momentum"
OUTER, PERIOD = "method.outer_momentum", "method.period"
STEP = "long_run_step"  # a ladder of alpha / (1 - mu), which sets the learning rate
# The second start has more momentum at a smaller step, far from the first in both.
AWAY = {STEP: -2, RATE: -2, MOMENTUM: 3}  # rungs; 2 on every other ladder

Ladder = Callable[[int], float]
Rungs = tuple[int, ...]
Key = TypeVar("Key")


class Cost(NamedTuple):
    """The cost of a setting, compared in this order."""

    time: float  # by the search's clock, to the target
    loss: float  # at the end
    updates: float  # to the target


class Arm(NamedTuple):
    """The numbers to tune: keys of a config, or STEP, with their ladders and first rungs."""

    config: Config
    ladders: Mapping[str, Ladder]
    start: Mapping[str, int]


class Tuned(NamedTuple):
    """The best setting of an arm, in JSON. Costs are medians over the first seeds that choose."""

    point: Point  # keys of the config and their values
    rungs: dict[str, int]
    cost: float  # by the clock, to the target; infinite if no setting reaches it
    neighbours: dict[str, list[float]]  # by ladder, the costs of the rungs below and above
    interior: bool  # reached, and no neighbour is better, on one ladder or two
    tried: list[tuple[list[int], float]]
    range: dict[str, list[float]]  # by ladder, the least and the most that the seeds do not exclude
    seeds: int  # that the setting was chosen on


class Search(NamedTuple):
    study: Study
    arm: Arm
    target: float  # training loss
    clock: str  # of costs: 'updates' or simulated 'seconds'
    ends: str  # clock by which trials end

    def run(
        self, settings: Sequence[Rungs], seeds: Sequence[int], most: float
    ) -> list[list[Curve]]:
        """Returns the curves by setting and seed."""
        points = [point(self.arm, rungs) for rungs in settings]
        configs = [self.arm.config.with_(values, seed=s) for values in points for s in seeds]
        curves = self.study.trials(
            [Job(config, self.target, most, self.ends) for config in configs]
        )
        n = len(seeds)
        return [curves[i : i + n] for i in range(0, len(curves), n)]


LARGEST = 0.999999  # momentum, of its rung and of all beyond


def rates(i: int) -> float:
    return 2.0**i


def counts(i: int) -> int:
    """Returns 2^i, or 1 below rung 0."""
    return 2 ** max(i, 0)


def momenta(i: int) -> float:
    """Returns 0, 0.3, 0.6, 0.8, 0.9, 0.95, ..., 0.999999, and the negatives of these below 0."""
    size = 0.3 * abs(i) if abs(i) < 3 else 1 - 0.2 * 2.0 ** (3 - abs(i))
    return round(math.copysign(min(size, LARGEST), i), 6) if i else 0.0


def not_negative(i: int) -> float:
    return momenta(max(i, 0))


def rung(ladder: Ladder, value: float) -> int:
    """Returns the rung of the nearest value from -50 to 50; of equals the one nearest to 0."""
    return min(range(-50, 51), key=lambda i: (abs(ladder(i) - value), abs(i)))


def sgd(config: Config, step: float, momentum: float | None = None) -> Arm:
    """Returns an arm of SGD that starts from a long-run step alpha / (1 - mu) and a momentum.

    The best long-run step depends little on mu. Without `momentum` it is the config's.
    """
    ladders: dict[str, Ladder] = {STEP: rates}
    start = {STEP: round(math.log2(step))}
    if momentum is not None:
        ladders[MOMENTUM], start[MOMENTUM] = momenta, rung(momenta, momentum)
    return Arm(config, ladders, start)


def point(arm: Arm, rungs: Sequence[int]) -> Point:
    """Returns the values of a setting, by key of the config.

    The long-run step is alpha over 1 - mu, and over 1 - mu of an outer momentum that has a ladder.
    """
    values = {key: ladder(i) for (key, ladder), i in zip(arm.ladders.items(), rungs, strict=True)}
    if STEP in values:
        momentum = values.get(MOMENTUM, arm.config.optimizer.momentum)
        outer = [1 - value for key, value in values.items() if key.endswith(".outer_momentum")]
        values[RATE] = values.pop(STEP) * (1 - momentum) * math.prod(outer)
    return values


def tuned(
    study: Study,
    arm: Arm,
    target: float,
    clock: str = "updates",
    ends: str = "updates",
    near: Tuned | None = None,
) -> Tuned:
    """Returns the setting of the least cost to a training loss of `target`, on the choosing seeds.

    Trials grow up to the steps of the config until one reaches the target, and then end after
    `SLACK` times the updates of the best; with `ends` = 'seconds', after so many simulated seconds,
    where settings have unequal seconds an update. The search starts from two settings, or from
    `near`, tuned by updates to the same target at another batch or period.

    Raises ValueError for `ends` = 'seconds' with costs in updates.
    """
    if (clock, ends) == ("updates", "seconds"):
        raise ValueError(f"clock = {clock!r}: must be 'seconds' or 'met' with ends = 'seconds'")
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


def best_of(study: Study, arms: Mapping[Key, Arm], target: float) -> dict[Key, Tuned]:
    found = study.map(lambda arm: tuned(study, arm, target), arms.values())
    return dict(zip(arms, found, strict=True))


def reported(
    study: Study,
    arm: Arm,
    setting: Point,
    target: float = -math.inf,
    seeds: Sequence[int] | None = None,
) -> list[Curve]:
    """Returns a setting's curves to the target or the last step, by default on report seeds."""
    chosen = study.report if seeds is None else seeds
    return study.trials([Job(arm.config.with_(setting, seed=seed), target) for seed in chosen])


def _climb(search: Search, best: Rungs, costs: dict[Rungs, Cost], budget: float) -> Rungs:
    falls = 0
    for _ in range(MOVES):
        for tried in ([best], neighbours(best), diagonal_neighbours(best)):
            _add_costs(search, tried, costs, budget)
            least = min(tried, key=costs.__getitem__, default=best)
            here = costs[best]
            if (costs[least].time, costs[least].loss) < (here.time / WORSE, here.loss):
                best = least
                break
            hopeless = math.isinf(here.loss) and math.isinf(costs[least].loss)
            if tried != [best] and hopeless and falls < FALLS:
                falls += 1
                down = [3 * (key in (STEP, RATE)) for key in search.arm.ladders]
                best = tuple(i - by for i, by in zip(best, down, strict=True))  # far too large
                break
        else:
            break
    return best


def _add_costs(
    search: Search, settings: Iterable[Rungs], costs: dict[Rungs, Cost], budget: float
) -> None:
    new = [rungs for rungs in settings if rungs not in costs]
    seeds = search.study.choose[:SEARCHED]
    for rungs, curves in zip(
        new, search.run(new, seeds, _most(search, costs, budget)), strict=True
    ):
        costs[rungs] = _cost(curves, search.target, search.clock)


def _most(search: Search, costs: Mapping[Rungs, Cost], budget: float) -> float:
    took = (c.updates if search.ends == "updates" else c.time for c in costs.values())
    return min([budget, *(SLACK * amount for amount in took)])


def _decided(
    search: Search, best: Rungs, costs: dict[Rungs, Cost], budget: float
) -> tuple[Rungs, dict[Rungs, Cost], dict[Rungs, list[float]]]:
    """Returns the best on all choosing seeds, all costs, and the times of settings near the best.

    Successive halving: the better half of the settings near the best goes on to twice the seeds. It
    is repeated until the winner's neighbours all have costs.
    """
    seeds, times = search.study.choose, dict[Rungs, list[float]]()
    for _ in range(MOVES):
        least = min(cost.time for cost in costs.values())
        near = sorted((r for r in costs if costs[r].time <= NOISE * least), key=costs.__getitem__)
        near, n = near[:FINAL], min(SEARCHED, len(seeds))
        while True:
            curves = search.run(near, seeds[:n], _most(search, costs, budget))
            for rungs, trials in zip(near, curves, strict=True):
                times[rungs] = [to_loss(curve, search.target, search.clock) for curve in trials]
            near.sort(key=lambda rungs: float(np.median(times[rungs])))
            if n == len(seeds) or len(near) == 1:
                break
            near, n = near[: max(math.ceil(len(near) / 2), 2)], min(2 * n, len(seeds))
        best = near[0]
        if all(rungs in costs for rungs in (*neighbours(best), *diagonal_neighbours(best))):
            break
        _add_costs(search, (*neighbours(best), *diagonal_neighbours(best)), costs, budget)
    return best, costs, times


def neighbours(rungs: Rungs) -> list[Rungs]:
    """Returns the settings one rung away on one ladder, below and above."""
    return [_moved(rungs, {k: by}) for k in range(len(rungs)) for by in (-1, 1)]


def diagonal_neighbours(rungs: Rungs) -> list[Rungs]:
    """Returns the settings one rung away on two ladders."""
    pairs = combinations(range(len(rungs)), 2)
    return [
        _moved(rungs, {j: one, k: other}) for (j, k), one, other in product(pairs, (-1, 1), (-1, 1))
    ]


def _moved(rungs: Rungs, by: Mapping[int, int]) -> Rungs:
    return tuple(i + by.get(k, 0) for k, i in enumerate(rungs))


def _cost(curves: Sequence[Curve], target: float, clock: str) -> Cost:
    times = [to_loss(curve, target, clock) for curve in curves]
    updates = [to_loss(curve, target) for curve in curves]
    losses = [math.inf if c.status == "diverged" else c.losses[-1] for c in curves]
    return Cost(*(float(np.median(values)) for values in (times, losses, updates)))


def _found(
    search: Search,
    best: Rungs,
    costs: Mapping[Rungs, Cost],
    times: Mapping[Rungs, Sequence[float]],
) -> Tuned:
    arm, best_times = search.arm, times.get(best, [costs[best].time])

    def over(rungs: Rungs) -> float:
        if rungs not in times:
            return costs[rungs].time / costs[best].time
        n = min(len(times[rungs]), len(best_times))
        return float(np.median(times[rungs][:n]) / np.median(best_times[:n]))

    around = [rungs for rungs in (*neighbours(best), *diagonal_neighbours(best)) if rungs in costs]
    interior = math.isfinite(costs[best].time) and all(over(r) >= 1 / WORSE for r in around)
    next_to = [costs[r].time if r in costs else math.nan for r in neighbours(best)]
    alike = [best]
    for rungs, seconds in times.items():
        n = min(len(seconds), len(best_times))
        if rungs != best and ratio(seconds[:n], best_times[:n])[1] <= 1:
            alike.append(rungs)
    spans = {}
    for k, (key, ladder) in enumerate(arm.ladders.items()):
        on_ladder = [rungs[k] for rungs in alike]
        spans[key] = [ladder(min(on_ladder)), ladder(max(on_ladder))]
    return Tuned(
        point(arm, best),
        dict(zip(arm.ladders, best, strict=True)),
        float(np.median(best_times)),
        {key: next_to[2 * k : 2 * k + 2] for k, key in enumerate(arm.ladders)},
        interior,
        [(list(rungs), cost.time) for rungs, cost in costs.items()],
        spans,
        len(best_times) if times else min(SEARCHED, len(search.study.choose)),
    )
