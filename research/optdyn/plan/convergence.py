"""The number of updates that training takes, by its mini-batch.

McCandlish et al., "An empirical model of large-batch training" (arXiv 1812.06162): to a loss, with
the learning rate tuned for every mini-batch of B examples,

    updates(B) = U_min (1 + B_noise / B) = U_min + E_min / B        B_noise = E_min / U_min

At least U_min updates and E_min examples; at the gradient noise scale B_noise twice as many of
both. An `Updates` function returns updates(B) as an interval of level `planner.LEVEL`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from optdyn.plan.planner import Interval, student

TIGHT = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}

Updates = Callable[[int], Interval]  # mini-batch -> updates


class UpdatesLaw(NamedTuple):
    least: float  # U_min
    examples: float  # E_min

    @property
    def noise(self) -> float:
        """B_noise, in examples; infinite where U_min is 0."""
        return self.examples / self.least if self.least else math.inf


def fit(batches: ArrayLike, updates: ArrayLike) -> UpdatesLaw:
    """Fits the law to runs at two mini-batches or more by least squares of logarithms."""
    b, u = np.asarray(batches, float), np.asarray(updates, float)
    unit = np.exp([np.log(u).mean(), np.log(u * b).mean()])
    terms = np.stack([np.full_like(b, unit[0]), unit[1] / b], 1)

    def errors(x: np.ndarray) -> np.ndarray:
        return np.log(terms @ x) - np.log(u)

    found = least_squares(errors, np.full(2, 0.5), bounds=(0, np.inf), **TIGHT).x * unit
    return UpdatesLaw(*found.tolist())


def from_runs(batches: ArrayLike, updates: ArrayLike) -> Updates:
    """Returns Student's prediction intervals of the next run, from three at two mini-batches."""
    b, u = np.asarray(batches, float), np.asarray(updates, float)
    law = fit(b, u)

    def median(batch: ArrayLike) -> np.ndarray:
        return law.least + law.examples / np.asarray(batch, float)

    def slopes(batch: ArrayLike) -> np.ndarray:
        """Returns slopes of log updates by both parameters, (n, 2), in units of about 1."""
        batch = np.atleast_1d(np.asarray(batch, float))
        return np.stack([np.ones_like(batch), b.mean() / batch], 1) / median(batch)[:, None]

    deviation = math.sqrt((np.log(u / median(b)) ** 2).sum() / (u.size - 2))
    spread = np.linalg.pinv(slopes(b).T @ slopes(b))

    def predicted(batch: int) -> Interval:
        (slope,) = slopes(batch)
        half = deviation * math.sqrt(1 + slope @ spread @ slope) * student(u.size - 2)
        middle = float(median(batch))
        return Interval(middle, middle * math.exp(-half), middle * math.exp(half))

    return predicted


def from_noise_scale(updates: Interval, batch: int, noise: float) -> Updates:
    """Returns intervals by a noise scale in examples, from the updates at one mini-batch."""
    least = batch / (batch + noise)  # share of U_min in these updates

    def predicted(other: int) -> Interval:
        factor = least + (1 - least) * batch / other
        return Interval(*(factor * u for u in updates))

    return predicted


def from_all_noise_scales(updates: Interval, batch: int) -> Updates:
    """Returns intervals over all noise scales from 0 to infinity; the median is of the worst."""

    def predicted(other: int) -> Interval:
        scales = sorted((1.0, batch / other))
        median, low, high = updates
        return Interval(scales[1] * median, scales[0] * low, scales[1] * high)

    return predicted
