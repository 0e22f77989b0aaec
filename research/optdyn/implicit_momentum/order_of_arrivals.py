"""A test of whether arrivals are memoryless, as the momentum meter's model assumes.

Of the n_t groups that have been away for M updates at least, let r_t be how many came back later
than the one that arrives. If arrivals are memoryless, r_t is 0 .. n_t - 1 with equal chances, and

    z = sum_t (r_t - (n_t - 1)/2) / sqrt(sum_t (n_t^2 - 1)/12)

is nearly normal with variance 1. It is above 0 if service is regular, so that whoever has been away
longest comes next, and below 0 if some groups are faster than others. M is the past gradients of
the model.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy  # whose parts are imported when they are first used: they take long


class Ages(NamedTuple):
    """The numerator of z, and its variance; those of several windows add up."""

    score: float
    variance: float


def ages(worker: Sequence[int] | np.ndarray, groups: int, past: int = 0) -> Ages:
    """Returns the numerator of z and its variance, from a window of arrivals.

    `worker`, (T,): the group that arrived at each of T updates in a row; `past` is M. Groups that
    have not arrived yet have been away for longer than all that have, by equal ranks.
    """
    arrivals = np.asarray(worker).tolist()
    order: list[int] = []  # groups that have arrived, the last one first
    score = variance = 0.0
    for t, arriving in enumerate(arrivals):
        place = order.index(arriving) if arriving in order else None
        near = len(set(arrivals[max(t - past, 0) : t]))  # the first so many of them
        if t >= past and (place is None or place >= near):
            n, unseen = groups - near, groups - len(order)
            rank = n - (unseen + 1) / 2 if place is None else place - near
            score += rank - (n - 1) / 2
            variance += (n * n - 1) / 12 - (unseen**3 - unseen) / (12 * n)
        if place is not None:
            order.pop(place)
        order.insert(0, arriving)
    return Ages(score, variance)


def chance(windows: Sequence[Ages]) -> float:
    """Returns the p-value of |z| over all windows if arrivals are memoryless; 1 without any."""
    score, variance = np.sum(windows, axis=0) if windows else (0.0, 0.0)
    return float(2 * scipy.stats.norm.sf(abs(score) / np.sqrt(variance))) if variance else 1.0
