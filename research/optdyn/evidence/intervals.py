"""Ratios of two ways of training, each with an interval.

Where many ratios are judged at once some intervals exclude 1 by chance alone. `holm` corrects for
that: if all ratios are 1, any corrected chance is below 0.05 in at most 5 % of studies.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from optdyn.evidence.crossing import Crossing

DRAWS = 4000  # of seeds, with replacement
# Fewest seeds of an interval that is shown: those of 4, 3 and 2 cover the truth in 88, 76, 51 %.
FEWEST = 5
CHANCES = 40_000  # draws of a p-value, which needs the tails


def ratio(
    a: Sequence[float] | Crossing, b: Sequence[float] | Crossing
) -> tuple[float, float, float]:
    """Returns (median of a / median of b, low, high), a 95 % interval; both of the same seeds.

    Seeds are drawn again in pairs. A run that missed is infinite, and so the ratio may be infinite
    or, where both are, NaN; such a draw counts as the least at the lower end, and as the most at
    the upper one. Of crossings the lower end is that of a's lows over b's highs, and the upper end
    that of a's highs over b's lows.
    """
    one, other = (x if isinstance(x, Crossing) else Crossing(x, x, x) for x in (a, b))
    low = _ends(_drawn(one.low, other.high, DRAWS), 0.0)[0]
    high = _ends(_drawn(one.high, other.low, DRAWS), 0.0)[1]
    return float(_over(np.median(one.value), np.median(other.value))), low, high


def ratio_at_best(
    a: Sequence[float], b: Sequence[float], a_tried: Any, b_tried: Any
) -> tuple[float, float, float]:
    """Returns `ratio`, with an interval that includes the choice of the settings by chance.

    `a_tried`, (settings, seeds that choose), are the times of all that may be the best of a, of
    which the least median was chosen; `b_tried` those of b, on the same seeds. In every draw these
    seeds are drawn again too. What is chosen then is worse than what was chosen by some factor, and
    so may be what was chosen than the best: the factors of both sides are taken off. The interval
    is of the best settings' ratio.
    """
    ratios = _drawn(a, b, DRAWS) / _worse(a_tried) * _worse(b_tried)
    return ratio(a, b)[0], *_ends(ratios, 0.0)


def chance(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns the two-sided p-value of a ratio of 1.

    It is twice the share of draws of `ratio` that lie on the other side of 1, or at 1. A draw that
    is NaN lies on both sides, and one draw that does is added, so that no chance is 0.
    """
    ratios = _drawn(a, b, CHANCES)
    beyond = min((~(ratios > 1)).sum(), (~(ratios < 1)).sum())
    return float(min(2 * (beyond + 1) / (CHANCES + 1), 1.0))


def drawn_again(figure: Callable[[np.ndarray], float], seeds: int) -> tuple[float, float, float]:
    """Returns (figure of all seeds, low, high), a 95 % interval, of a figure of indices of seeds.

    The interval is that of the figures of seeds that are drawn with replacement.
    """
    drawn = np.random.default_rng(0).integers(seeds, size=(DRAWS, seeds))
    figures = np.array([figure(indices) for indices in drawn])
    return float(figure(np.arange(seeds))), *_ends(figures)


def mean_ratio(a: Any, b: Any) -> tuple[float, float, float]:
    """Returns the geometric mean over cells of median of a / median of b, and its interval.

    Both are (cells, seeds), with the same seeds in all of them.
    """
    above, below = np.asarray(a, float), np.asarray(b, float)

    def figure(seeds: np.ndarray) -> float:
        ratios = _over(np.median(above[:, seeds], axis=1), np.median(below[:, seeds], axis=1))
        with np.errstate(divide="ignore"):
            return float(np.exp(np.log(ratios).mean()))

    return drawn_again(figure, above.shape[1])


def holm(chances: Sequence[float]) -> list[float]:
    """Returns p-values corrected for their number (Holm, Scand. J. Statist. 6, 1979).

    The least of n is multiplied by n, the next by n - 1, and none may be below one before it.
    """
    values = np.asarray(chances, float)
    order = np.argsort(values)
    found = np.empty(len(values))
    found[order] = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    return np.minimum(found, 1.0).tolist()


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns (median, least, most)."""
    return float(np.median(values)), float(min(values)), float(max(values))


def shown(found: Sequence[float], digits: int = 3) -> str:
    """`1.71 [1.20, 2.13]`; `1.71` where there is no interval."""
    value, low, high = (f"{x:.{digits}g}" for x in found)
    return value if low == high == "nan" else f"{value} [{low}, {high}]"


def _drawn(a: Sequence[float], b: Sequence[float], draws: int) -> np.ndarray:
    """(draws,) ratios of medians, of seeds drawn in pairs with replacement, the same every time."""
    above, below = np.asarray(a, float), np.asarray(b, float)
    drawn = np.random.default_rng(0).integers(len(above), size=(draws, len(above)))
    return _over(np.median(above[drawn], axis=1), np.median(below[drawn], axis=1))


def _worse(tried: Any) -> np.ndarray:
    """(DRAWS,) medians of the settings chosen on redrawn seeds, over that of the chosen one."""
    times = np.asarray(tried, float)
    drawn = np.random.default_rng(1).integers(times.shape[1], size=(DRAWS, times.shape[1]))
    medians = np.median(times, axis=1)
    again = np.median(times[:, drawn], axis=2).argmin(axis=0)
    return _over(medians[again], medians.min())


def _over(above: Any, below: Any) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(above / below)


def ends(drawn: np.ndarray, least: float = -np.inf) -> np.ndarray:
    """(2, ...): the 2.5th and 97.5th percentile along the first axis; they may be infinite.

    A NaN, as the ratio of two updates that are both infinite, may be anything: it counts as the
    `least` there can be at the lower end, and as the most at the upper one.
    """
    known = (np.where(np.isnan(drawn), nan, drawn) for nan in (least, np.inf))
    quantiles = zip(known, (0.025, 0.975), strict=True)
    return np.stack([np.quantile(v, q, axis=0, method="inverted_cdf") for v, q in quantiles])


def _ends(drawn: np.ndarray, least: float = -np.inf) -> tuple[float, float]:
    low, high = ends(drawn, least)
    return float(low), float(high)
