"""Ratios of two ways of training with 95 % intervals, and p-values corrected for their number."""

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

    Seeds are drawn again in pairs. A run that missed is infinite; a draw in which both medians are
    counts as the least at the lower end and as the most at the upper one. With crossings the ends
    are those of a's lows over b's highs, and of a's highs over b's lows.
    """
    one, other = (x if isinstance(x, Crossing) else Crossing(x, x, x) for x in (a, b))
    low = _ends(_drawn(one.low, other.high, DRAWS), 0.0)[0]
    high = _ends(_drawn(one.high, other.low, DRAWS), 0.0)[1]
    return float(_over(np.median(one.value), np.median(other.value))), low, high


def ratio_at_best(
    a: Sequence[float], b: Sequence[float], a_tried: Any, b_tried: Any
) -> tuple[float, float, float]:
    """Returns the ratio of the best settings, with an interval that allows for their choice.

    `a_tried` and `b_tried`, (settings, seeds that choose), are the times of which the least median
    was chosen. These seeds are drawn again too: by the factor that the choice of a draw is worse
    than the actual one, that one may be worse than the best.
    """
    ratios = _drawn(a, b, DRAWS) / _worse(a_tried) * _worse(b_tried)
    return ratio(a, b)[0], *_ends(ratios, 0.0)


def chance(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns the two-sided p-value of a ratio of 1.

    It is twice the share of draws of `ratio` on the other side of 1, or at 1. NaN counts on both
    sides, and one is added, so that no p-value is 0.
    """
    ratios = _drawn(a, b, CHANCES)
    beyond = min((~(ratios > 1)).sum(), (~(ratios < 1)).sum())
    return float(min(2 * (beyond + 1) / (CHANCES + 1), 1.0))


def drawn_again(figure: Callable[[np.ndarray], float], seeds: int) -> tuple[float, float, float]:
    """Returns (`figure` of all indices of seeds, low, high), the 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).integers(seeds, size=(DRAWS, seeds))
    figures = np.array([figure(indices) for indices in drawn])
    return float(figure(np.arange(seeds))), *_ends(figures)


def mean_ratio(a: Any, b: Any) -> tuple[float, float, float]:
    """Returns the geometric mean of median a / median b, (cells, seeds), and its interval."""
    above, below = np.asarray(a, float), np.asarray(b, float)

    def figure(seeds: np.ndarray) -> float:
        ratios = _over(np.median(above[:, seeds], axis=1), np.median(below[:, seeds], axis=1))
        with np.errstate(divide="ignore"):
            return float(np.exp(np.log(ratios).mean()))

    return drawn_again(figure, above.shape[1])


def holm(chances: Sequence[float]) -> list[float]:
    """Returns p-values corrected for their number (Holm, Scand. J. Statist. 6, 1979)."""
    values = np.asarray(chances, float)
    order = np.argsort(values)
    found = np.empty(len(values))
    found[order] = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    return np.minimum(found, 1.0).tolist()


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns (median, least, most)."""
    return float(np.median(values)), float(min(values)), float(max(values))


def shown(found: Sequence[float], digits: int = 3) -> str:
    """Returns `1.71 [1.20, 2.13]`, or `1.71` where there is no interval."""
    value, low, high = (f"{x:.{digits}g}" for x in found)
    return value if low == high == "nan" else f"{value} [{low}, {high}]"


def _drawn(a: Sequence[float], b: Sequence[float], draws: int) -> np.ndarray:
    """Returns (draws,) ratios of medians, of seeds drawn in pairs, the same at each call."""
    above, below = np.asarray(a, float), np.asarray(b, float)
    drawn = np.random.default_rng(0).integers(len(above), size=(draws, len(above)))
    return _over(np.median(above[drawn], axis=1), np.median(below[drawn], axis=1))


def _worse(tried: Any) -> np.ndarray:
    """Returns (DRAWS,) medians of the settings chosen on redrawn seeds, over the chosen one's."""
    times = np.asarray(tried, float)
    drawn = np.random.default_rng(1).integers(times.shape[1], size=(DRAWS, times.shape[1]))
    medians = np.median(times, axis=1)
    again = np.median(times[:, drawn], axis=2).argmin(axis=0)
    return _over(medians[again], medians.min())


def _over(above: Any, below: Any) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(above / below)


def ends(drawn: np.ndarray, least: float = -np.inf) -> np.ndarray:
    """Returns (2, ...), the 2.5th and 97.5th percentile along the first axis; they may be infinite.

    NaN counts as `least` at the lower end, and as the most at the upper one.
    """
    known = (np.where(np.isnan(drawn), nan, drawn) for nan in (least, np.inf))
    quantiles = zip(known, (0.025, 0.975), strict=True)
    return np.stack([np.quantile(v, q, axis=0, method="inverted_cdf") for v, q in quantiles])


def _ends(drawn: np.ndarray, least: float = -np.inf) -> tuple[float, float]:
    low, high = ends(drawn, least)
    return float(low), float(high)
