"""The momentum meter's readings: fits of `momentum/moments.py` to windows of a run's updates.

Raw steps -g_t give the implicit momentum, under any optimizer; d_t / alpha_t, with a lag more, that
and the explicit one of heavy-ball SGD. The J test and the order of arrivals test the model.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from optdyn.base.trees import Json
from optdyn.momentum import order_of_arrivals
from optdyn.momentum.moments import Fit, NotIdentified, fit
from optdyn.momentum.order_of_arrivals import Ages

LIMIT = 0.95  # of explicit momentum
READ = ("implicit_momentum", "fitted_momentum", "effective_learning_rate")  # and all they end in
NUMBERS = 2**22  # of a fit's sketches, at most: longer runs are fitted to shorter sketches


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
    """The record of T updates in a row, (T, q) each."""

    displacements: np.ndarray | None  # over their learning rates; None if one of these is 0
    raw_steps: np.ndarray
    gradients: np.ndarray
    away: Callable[
        [int], np.ndarray
    ]  # (T,) of so many `past` updates, as `order.distance_to_epoch` says
    ages: Callable[[int], Ages] | None  # of so many past gradients; None if nobody knows who came


def steered(rows: Sequence[Json], total: float) -> list[tuple[int, float]]:
    """Returns (step, explicit momentum from then on) for each reading in the log.

    mu = M - i, M the total aimed at, and i the mean of all readings of the implicit momentum, each
    by its precision. Before the first mu is 0, as momentum that is too large diverges.
    """
    changes, sums, precision = [(0, 0.0)], 0.0, 0.0
    for row in rows:
        if "implicit_momentum" in row:
            weight = (row["implicit_momentum_high"] - row["implicit_momentum_low"]) ** -2
            sums, precision = sums + weight * row["implicit_momentum"], precision + weight
            explicit = float(np.clip(total - sums / precision, -LIMIT, LIMIT))
            changes.append((row["step"], explicit))
    return changes


def figures(ended: Sequence[Window], lags: int, plain: bool, rate: float) -> Json:
    """Returns the figures of the windows, for the log.

    `implicit_momentum` with its 95 % interval and the p-value of the model; likewise
    `fitted_momentum`, phi_1 of a lag polynomial of `lags` terms; `effective_learning_rate`, rate /
    g for memoryless groups.
    """
    found: Json = {}
    for name, terms in (("implicit", 1), ("fitted", lags)):
        if not terms or (plain and name == "fitted"):
            continue
        try:
            it = fitted(ended, terms, raw=name == "implicit")
        except NotIdentified as error:
            found[f"{name}_momentum_refused"] = str(error)
            continue
        low, high = map(float, it.phi_interval[0])
        found |= {f"{name}_momentum": float(it.phi[0]), f"{name}_momentum_p": chance(it, ended)}
        found |= {f"{name}_momentum_low": low, f"{name}_momentum_high": high}
        if name == "implicit":
            found["effective_learning_rate"] = float(rate * it.eta[0])
    if plain:
        implicit = {name: value for name, value in found.items() if name.startswith("implicit")}
        found |= {name.replace("implicit", "fitted", 1): v for name, v in implicit.items()}
    return found


def in_place(row: Json, read: Json) -> Json:
    """Returns the row with these figures, or this refusal, in place of those it had."""
    if not read:
        return row
    return {name: value for name, value in row.items() if not name.startswith(READ)} | read


def fitted(ended: Sequence[Window], lags: int, gradient_lags: int = 0, raw: bool = False) -> Fit:
    """Returns the fit of displacements over rates or of `raw` steps. Raises `NotIdentified`."""
    many = sum(len(window.gradients) for window in ended)
    runs = []
    for window in ended:
        moved = window.raw_steps if raw else window.displacements
        if moved is None:
            raise NotIdentified(
                "an update's learning rate is 0, so its step says nothing of momentum"
            )
        runs.append((shortened(moved, many), shortened(window.gradients, many)))
    heed = [window.away(max(lags, 1 + gradient_lags)) for window in ended]
    return fit(runs, lags, gradient_lags, heed)


def chance(it: Fit, ended: Sequence[Window], gradient_lags: int = 0) -> float:
    """Returns the p-value of the model: twice the less of J's and of the arrivals', if known."""
    known = [window.ages(gradient_lags) for window in ended if window.ages]
    if not known or not len(it.phi):
        return it.p
    return min(1.0, 2 * min(it.p, order_of_arrivals.chance(known)))


def shortened(sketches: np.ndarray, many: int) -> np.ndarray:
    """Returns sketches (T, q) folded to fewer numbers, until `many` have NUMBERS at most."""
    while many * sketches.shape[1] > NUMBERS and sketches.shape[1] % 2 == 0:
        sketches = sketches.reshape(len(sketches), 2, -1).sum(axis=1)
    return sketches
