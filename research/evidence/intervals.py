"""Ratios of two ways of training with an interval, and the words that follow it."""

from collections.abc import Sequence

import numpy as np

DRAWS = 4000  # of seeds, with replacement


def ratio(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """(median of a / median of b, and its 95 % interval); the same seeds in both, in order.

    Seeds are drawn again in pairs. A run that missed is infinite, and so the ratio may be infinite
    or, where both are, NaN; such a draw counts as the least at the lower end, and as the most at
    the upper one.
    """
    above, below = np.asarray(a, float), np.asarray(b, float)
    drawn = np.random.default_rng(0).integers(len(above), size=(DRAWS, len(above)))
    with np.errstate(invalid="ignore", divide="ignore"):
        every = np.median(above[drawn], axis=1) / np.median(below[drawn], axis=1)
        whole = float(np.median(above) / np.median(below))
    return whole, _end(every, 0.025, 0.0), _end(every, 0.975, np.inf)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, least, most)."""
    return float(np.median(values)), float(min(values)), float(max(values))


def shown(found: Sequence[float], digits: int = 3) -> str:
    """`1.71 [1.20, 2.13]`."""
    value, low, high = (f"{x:.{digits}g}" for x in found)
    return f"{value} [{low}, {high}]"


def words(found: Sequence[float], less: str = "less", more: str = "more") -> str:
    """What an interval of a ratio lets one say."""
    _, low, high = found
    if low > 1:
        return more
    return less if high < 1 else "no difference seen"


def _end(every: np.ndarray, q: float, nan: float) -> float:
    known = np.nan_to_num(every, nan=nan, posinf=np.inf)
    return float(np.quantile(known, q, method="inverted_cdf"))
