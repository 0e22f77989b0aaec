"""Groups, momentum and step measured by successive halving, in place of predicted.

Successive halving (Jamieson and Talwalkar, arXiv 1502.07943): all candidates have a probe from the
start, equally long. The better half of them goes on, and is twice as long at the next rung, until
one is left. It is the natural opponent of a prediction, which it needs only for where to look:

    candidates     of every number of groups that makes updates a tenth faster than fewer do, the
                   predicted long-run step of one group times 1/4, 1/2, 1 and 2, each with what the
                   groups leave of the predicted total momentum

What it ends with trains, as `predictive.py` goes on with what it has predicted.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

from optdyn.setup import Tune
from optdyn.tuning.choice import Bench, Choice, Point, loss_of
from optdyn.tuning.predictive import of_step, predictive

STEPS = (0.25, 0.5, 1.0, 2.0)  # times the predicted one
FASTER = 1.1  # by which more groups have to make updates faster
UPDATES = 4.0  # of one group, the length of the first probes


def halving(bench: Bench, groups: Sequence[int], rules: Tune) -> None:
    """Chooses by successive halving, and then tunes and trains in turn (`predictive.py`)."""
    predictive(bench, groups, rules, raced)


def raced(bench: Bench, point: Point, groups: Sequence[int]) -> tuple[Choice, Choice]:
    """The candidate that is left, and the one of one group that was left last."""
    left, seconds = list(candidates(bench, point, groups)), UPDATES * bench.pace(1)
    synchronous = left[0]
    while len(left) > 1:
        probe = partial(bench.probe, point, seconds)
        left = sorted(left, key=lambda one: loss_of(probe(one)))[: (len(left) + 1) // 2]
        synchronous = next((one for one in left if one.groups == 1), synchronous)
        seconds *= 2
    return left[0], synchronous


def candidates(bench: Bench, point: Point, groups: Sequence[int]) -> Iterator[Choice]:
    """The settings to begin with, those of one group first (see the top of this file)."""
    step, total, _ = bench.measure(point)
    pace = math.inf
    for g in groups:
        if bench.pace(g) < pace / FASTER:
            pace = bench.pace(g)
            momentum = max(total - (1 - 1 / g), 0.0)
            yield from (of_step(g, momentum, by * step) for by in STEPS)
