"""The momentum meter's readings: windows of a run's updates, and what they say together.

Raw steps -g_t give the implicit momentum, under any optimizer. The model is tested by the least S
(`implicit_momentum/moments.py`) and by the order of arrivals, which sees more laws of service.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from optdyn.base.trees import Json
from optdyn.implicit_momentum import moments, order_of_arrivals
from optdyn.implicit_momentum.moments import Reading, Sums
from optdyn.implicit_momentum.order_of_arrivals import Ages

LIMIT = 0.95  # of explicit momentum
NAME = "implicit_momentum"  # with which all figures of a reading begin


class Windows(NamedTuple):
    """The updates k every .. k every + window - 1, for all k, of a run."""

    every: int  # updates from the start of a window to that of the next
    window: int  # updates of a window
    steps: int  # of the run

    def until(self, step: int) -> int:
        """Returns the first update after `step` at which a window, or the run, begins or ends."""
        begin = step - step % self.every
        ends = (begin + self.window, begin + self.every)
        return min(self.steps, next(end for end in ends if end > step))

    def has(self, step: int) -> bool:
        return step % self.every < self.window

    def before(self, step: int) -> int:
        """Returns how many updates of windows are before this one."""
        whole, rest = divmod(step, self.every)
        return whole * self.window + min(rest, self.window)

    def ended(self, since: int, step: int) -> list[tuple[int, int]]:
        """Returns (start, stop) of the windows that ended after `since`, and by `step`."""
        starts = range(0, self.steps, self.every)
        spans = [(start, min(start + self.window, self.steps)) for start in starts]
        return [(start, stop) for start, stop in spans if since < stop <= step]


class Window(NamedTuple):
    """The record of T updates in a row."""

    steps: np.ndarray  # (T, q), raw ones or displacements over their learning rates
    gradients: np.ndarray  # (T, q), of second mini-batches
    heed: np.ndarray  # (T,), as `order.distance_to_epoch` says
    ages: Ages | None  # None if nobody knows who came


class WindowSums(NamedTuple):
    """What a window says of one term at all momenta; adding them up reads windows together."""

    sums: Sums
    ages: Ages | None


def of_window(window: Window) -> WindowSums:
    parts = moments.products(window.steps, window.gradients, window.heed)
    return WindowSums(reduce(Sums.plus, map(moments.implicit, parts), Sums.none()), window.ages)


def together(windows: Sequence[WindowSums]) -> Reading:
    """Returns the reading of implicit momentum in all windows together."""
    sums = reduce(Sums.plus, (window.sums for window in windows), Sums.none())
    return with_arrivals(moments.reading(sums), [window.ages for window in windows])


def with_arrivals(reading: Reading, ages: Sequence[Ages | None]) -> Reading:
    """Returns it with the p-value of both tests: twice the less of S's and of the arrivals'."""
    known = [one for one in ages if one]
    if not known:
        return reading
    return reading._replace(p=min(1.0, 2 * min(reading.p, order_of_arrivals.chance(known))))


def as_row(reading: Reading, name: str = NAME) -> Json:
    """Returns the figures of a reading for the log; `_low` and `_high` are the ends of its set."""
    row: Json = {name: reading.estimate} if reading.pieces else {}
    if reading.pieces:
        row |= {f"{name}_low": reading.pieces[0][0], f"{name}_high": reading.pieces[-1][1]}
    row |= {f"{name}_set": [list(piece) for piece in reading.pieces], f"{name}_p": reading.p}
    return row | {f"{name}_strength": reading.strength, f"{name}_updates": reading.updates}


def from_row(row: Mapping[str, Any], name: str = NAME) -> Reading | None:
    """Returns the reading in a row of the log or a summary; None if there is none."""
    if f"{name}_set" not in row:
        return None
    fields = {end: row[f"{name}_{end}"] for end in ("p", "strength", "updates")}
    known = {"estimate": row.get(name), "pieces": row[f"{name}_set"]}
    return Reading.from_json(known | fields)


def in_place(row: Json, read: Json) -> Json:
    """Returns the row with this reading in place of the one that it had."""
    if not read:
        return row
    return {name: value for name, value in row.items() if not name.startswith(NAME)} | read


def steered(rows: Sequence[Json], total: float) -> list[tuple[int, float]]:
    """Returns (step, explicit momentum from then on) for each reading in the log that says some.

    mu = M - i, M the total aimed at, and i the mean of all readings of the implicit momentum, each
    by its precision. Before the first mu is 0, as momentum that is too large diverges.
    """
    changes, sums, precision = [(0, 0.0)], 0.0, 0.0
    for row in rows:
        reading = from_row(row)
        if reading and reading.estimate is not None and not reading.says_nothing:
            weight = (reading.pieces[-1][1] - reading.pieces[0][0]) ** -2
            sums, precision = sums + weight * reading.estimate, precision + weight
            explicit = float(np.clip(total - sums / precision, -LIMIT, LIMIT))
            changes.append((row["step"], explicit))
    return changes
