"""When a training loss first is at most a target, from the log points of a run.

    high     the first log point with such a loss
    value    interpolated between the log point before it and `high`
    low      that log point before, or earlier where the loss goes up and down

`low` is not later than the interpolated crossing of the target times a factor, the median distance
in ratio of a log point from the middle of its two neighbours.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Crossing(NamedTuple):
    """The crossing of one run, or arrays of several; infinite where the target is missed."""

    low: Any
    value: Any
    high: Any


def crossing(
    clocks: np.ndarray, losses: np.ndarray, target: float, exponential: bool = False
) -> Crossing:
    """Returns the crossing by each of the clocks, (log points, clocks), of which updates is first.

    The loss falls linearly, or exponentially, between log points. NaN is never reached.
    """
    lowest = np.minimum.accumulate(losses)
    place = _first(lowest, target)
    if place == len(losses):
        return Crossing(*(np.full(clocks.shape[1], np.inf) for _ in Crossing._fields))
    after, before = clocks[place], clocks[max(place - 1, 0)]
    if after[0] - before[0] <= 1:  # nothing lies between
        return Crossing(after, after, after)

    def at(loss: float) -> np.ndarray:
        end = _first(lowest, loss)
        if end == 0:
            return np.array(clocks[0])
        above, below = float(losses[end - 1]), float(losses[end])
        if not exponential:
            part = (above - loss) / (above - below)
        else:
            part = math.log(above / loss) / math.log(above / below) if min(below, loss) > 0 else 1.0
        return np.array(clocks[end - 1] + part * (clocks[end] - clocks[end - 1]))

    if min(losses.min(), target) > 0:
        soon = target * math.exp(_off_course(np.log(losses)))
    else:
        soon = target + _off_course(losses)
    return Crossing(np.minimum(before, at(soon)), at(target), after)


def of_runs(crossings: Sequence[Crossing], clock: int) -> Crossing:
    """Returns the crossings of several runs by one of the clocks, as three arrays."""
    return Crossing(*np.array(crossings, float)[..., clock].T)


def _first(lowest: np.ndarray, loss: float) -> int:
    return int(np.searchsorted(-lowest, -loss))  # NaN sorts last


def _off_course(losses: np.ndarray) -> float:
    finite = losses[np.isfinite(losses)]
    return float(np.median(np.abs(np.diff(finite, 2))) / 2) if len(finite) > 2 else 0.0
