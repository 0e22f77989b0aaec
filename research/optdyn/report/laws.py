"""The law of service times, fitted to recorded ones by maximum likelihood.

    T = m_w X        m_w: mean seconds of worker w;  X of unit mean, one law for all workers

The candidates are laws of the simulated cluster (`clock/service.py`) as scipy.stats has
them. Exponential has no parameter beside the means, gamma and lognormal have their coefficient of
variation, and AIC charges for it. All of them take services to be independent of one another.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
from scipy import stats

FEWEST = 30  # services
CONSTANT = 1e-3  # a variation below is none: no machine keeps time so well
RANGE = math.log(CONSTANT / 10), math.log(100)  # of the variation's logarithm
SIMPLER = 2.0  # AIC that a parameter has to gain before it counts (Burnham and Anderson 2002)
STEP = 1e-3  # of the variation's logarithm: for the curvature of the likelihood
NORMAL = 1.959964  # half-width of 95 % in standard errors


def _lognormal(variation: float) -> Any:
    variance = math.log1p(variation**2)
    return stats.lognorm(math.sqrt(variance), scale=math.exp(-variance / 2))


LAWS: Mapping[str, Callable[[float], Any]] = {  # variation -> distribution of unit mean
    "exponential": lambda variation: stats.expon(),
    "gamma": lambda variation: stats.gamma(variation**-2, scale=variation**2),
    "lognormal": _lognormal,
}
FREE = ("gamma", "lognormal")  # those whose variation is fitted


class FittedLaw(NamedTuple):
    """A law fitted to the ratios of services to their worker's mean."""

    name: str
    variation: float  # standard deviation over mean
    interval: list[float]  # its ends of 95 %, by the curvature of the likelihood
    aic: float
    distance: float  # Kolmogorov and Smirnov's
    p: float  # chance of one as large; too large where the variation is fitted to the same


def ratios(services: Sequence[np.ndarray]) -> np.ndarray:
    """All services, each over the mean of its worker. `services`: seconds, (n,) a worker."""
    return np.concatenate([own / own.mean() for own in services])


def fit(x: np.ndarray, workers: int) -> list[FittedLaw]:
    """All laws fitted to ratios (n,) of so many workers, the best of them first.

    That is the one of least AIC, or exponential if it is within `SIMPLER` of it. Where all services
    are alike it is `constant`, and there is no other.
    """
    if x.std() < CONSTANT:
        return [FittedLaw("constant", 0.0, [0.0, 0.0], -math.inf, 0.0, 1.0)]
    found = [_fitted(name, x, workers) for name in LAWS]
    found.sort(key=lambda law: law.aic - SIMPLER * (law.name not in FREE))
    return found


def serial(services: Sequence[np.ndarray]) -> tuple[float, float]:
    """Correlation of a service with its worker's last one, and its standard error if it is 0."""
    centred = [own / own.mean() - 1 for own in services]
    power = sum(float(own @ own) for own in centred)
    pairs = sum(len(own) - 1 for own in centred)
    if power < CONSTANT**2 * pairs:
        return math.nan, math.nan
    return sum(float(own[1:] @ own[:-1]) for own in centred) / power, pairs**-0.5


def _fitted(name: str, x: np.ndarray, workers: int) -> FittedLaw:
    make = LAWS[name]

    def cost(logarithm: float) -> float:
        return -float(make(math.exp(logarithm)).logpdf(x).sum())

    if name in FREE:
        best = scipy.optimize.minimize_scalar(cost, bounds=RANGE, options={"xatol": 1e-6})
        at, least = float(best.x), float(best.fun)
        curvature = (cost(at + STEP) + cost(at - STEP) - 2 * least) / STEP**2
        error = curvature**-0.5 if curvature > 0 else math.inf
        variation = math.exp(at)
        ends = [variation * math.exp(sign * min(NORMAL * error, 700)) for sign in (-1, 1)]
    else:
        variation, least, ends = 1.0, cost(0.0), [1.0, 1.0]
    parameters = workers + (name in FREE)
    # The Jacobian of the ratios, the same for all laws, is left out.
    test = stats.kstest(x, make(variation).cdf, method="asymp")
    distance, p = float(test.statistic), float(test.pvalue)
    return FittedLaw(name, variation, ends, 2 * (least + parameters), distance, p)
