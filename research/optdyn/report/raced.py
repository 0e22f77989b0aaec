"""Arrivals that real workers recorded in a workdir, their service times and staleness.

    T = m_w X                          m_w: mean seconds of worker w;  X of unit mean, one law
    P(tau = k) = (1/g) (1 - 1/g)^k     if g workers are memoryless and alike

The law of X, one of `clock/service.py`, is fitted by maximum likelihood to services taken as
independent, and chosen by AIC.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
from scipy import stats

from optdyn import methods
from optdyn.clock.timeline import from_arrivals
from optdyn.clock.trace import SERVED, read_table
from optdyn.report import tables
from optdyn.report.tables import GROUPS, NAME, Point, TableError, config_value
from optdyn.train import history

LATE = 5  # updates a worker by which nearly every gradient that is at work arrives
EXPECTED = 5  # in a bin of the chi-squared test, at least
BATCH = "batch_size"
FEWEST = 30  # services
CONSTANT = 1e-3  # a variation below is none: no machine keeps time so well
RANGE = math.log(CONSTANT / 10), math.log(100)  # of the variation's logarithm
SIMPLER = 2.0  # AIC that a parameter has to gain before it counts (Burnham and Anderson 2002)
STEP = 1e-3  # of the variation's logarithm: for the curvature of the likelihood
NORMAL = 1.959964  # half-width of 95 % in standard errors


class RaceRecord(NamedTuple):
    point: Point
    worker: np.ndarray
    seconds: np.ndarray
    staleness: np.ndarray
    services: list[np.ndarray]  # seconds, by worker, without its first and those near a stop
    stops: np.ndarray  # updates; none where there are too many to leave out what is near them
    serving: float = math.nan  # seconds of the server at an update; NaN where unknown

    @property
    def groups(self) -> int:
        return len(self.services)

    @property
    def means(self) -> np.ndarray:
        """Returns the mean seconds of a service by worker, (g,)."""
        return np.array([seconds.mean() for seconds in self.services])


def load(folder: Path) -> RaceRecord:
    """Returns the race in a workdir; raises `TableError`.

    A service lasts from when the gradient's version was made until the gradient arrives: the time
    since the worker's last arrival, less its waiting for others. Services that begin near a stop of
    the server are left out; by their ends, long ones would be missing.
    """
    point = only(folder)
    path = folder / "trace.csv"
    name, groups, batch = (config_value(point.config, key) for key in (NAME, GROUPS, BATCH))
    method = methods.known_stack(name or "")
    is_plain = method and method.grouped and method.simple
    if not (path.exists() and is_plain and groups and batch):
        raise TableError(
            f"{folder}: no race in it; needs a run of `optdyn race`, with the trace.csv that its "
            "workers leave, of updates that are one gradient of the whole batch each"
        )
    try:
        table = read_table(path)
        worker, seconds = table["worker"].to_numpy(float), table["seconds"].to_numpy(float)
        version = table["version"].to_numpy(float) if "version" in table else None
        served = table[SERVED].to_numpy(float) if SERVED in table else np.full(len(table), np.nan)
    except (OSError, KeyError, ValueError) as error:
        raise TableError(f"{path}: not a CSV file with the columns worker and seconds") from error
    t = np.arange(len(table))
    if set(np.unique(worker)) != set(range(groups)):
        raise TableError(
            f"{path}: must have arrivals of workers 0 to {groups - 1}, each and no other"
        )
    if not np.isfinite(seconds).all() or seconds[0] < 0 or (np.diff(seconds) < 0).any():
        raise TableError(f"{path}: seconds must be finite, from 0 up and in order")
    if (counts := np.bincount(worker.astype(int))).min() <= FEWEST:
        few = f"fewer than {FEWEST + 1} arrivals of worker {counts.argmin()}"
        raise TableError(f"{path}: {few}; let the run go on")
    timeline = from_arrivals(worker, seconds, groups)
    staleness = timeline.staleness if version is None else t - version
    if not ((staleness >= 0) & (staleness <= t) & (staleness == np.floor(staleness))).all():
        raise TableError(f"{path}: version must be a whole number, at most that of the row")
    staleness, halts = staleness.astype(int), stops(point, len(table))
    version = t - staleness
    services = seconds - np.concatenate([[0.0], seconds])[version]
    first = np.zeros(len(t), bool)
    first[np.unique(worker, return_index=True)[1]] = True
    if services[~first].min() <= 0:
        raise TableError(f"{path}: two arrivals of one worker at one time")
    calm = ~first & quiet(halts, version, groups, LATE * groups - 1)
    if np.bincount(timeline.worker[calm], minlength=groups).min() < FEWEST:
        halts, calm = np.zeros(0, int), ~first
    by_worker = [services[calm & (timeline.worker == w)] for w in range(groups)]
    known = np.isfinite(served) & quiet(halts, t, groups)
    serving = float(served[known].mean()) if known.any() else math.nan
    return RaceRecord(point, timeline.worker, seconds, staleness, by_worker, halts, serving)


def stops(point: Point, updates: int) -> np.ndarray:
    """Returns the updates before which the server did something else, in order.

    They are log points, checkpoints, the ends of the meter's windows, and the run's starts. All
    workers wait for the server then, and their gradients arrive at once.
    """
    config = point.config
    updates_of_stops = {0, *(int(start.get("at", 0)) for start in history.starts(point.folder))}
    cycles = [(config.get(f"{name}_every"), 0) for name in ("log", "checkpoint")]
    if config.get("probes.momentum"):
        cycles += [(config["probes.every"], shift) for shift in (0, config["probes.window"])]
    for period, shift in cycles:
        updates_of_stops |= set(range(shift, updates, period) if period else ())
    return np.array(sorted(updates_of_stops))


def quiet(stops: np.ndarray, at: np.ndarray, before: int, after: int = 0) -> np.ndarray:
    """Returns whether there is no stop from `before` updates before `at` to `after` after it."""
    following = np.append(stops.astype(float), np.inf)[np.searchsorted(stops, at - before)]
    return following > at + after


def all_arrived(worker: np.ndarray) -> int:
    """Returns the first update by which all workers have arrived once."""
    return int(max(np.unique(worker, return_index=True)[1]))


def gaps(worker: np.ndarray, seconds: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Returns the seconds between updates, from `all_arrived` on, without those of a stop."""
    at = np.arange(all_arrived(worker) + 1, len(worker))
    return np.diff(seconds)[at - 1][quiet(stops, at, int(worker.max()) + 1)]


def rate(worker: np.ndarray, seconds: np.ndarray, stops: np.ndarray) -> float:
    return float(1 / gaps(worker, seconds, stops).mean())


def tenths(worker: np.ndarray, seconds: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Returns the rate of each tenth of the updates, (10,)."""
    parts = np.array_split(gaps(worker, seconds, stops), 10)
    return np.array([1 / part.mean() for part in parts])


def histogram(worker: np.ndarray, staleness: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Returns counts of staleness from 0 up, from `all_arrived` on, but for updates near a stop."""
    at = np.arange(all_arrived(worker) + 1, len(worker))
    return np.bincount(staleness[at][quiet(stops, at, LATE * (int(worker.max()) + 1))])


def geometric(groups: int, size: int) -> np.ndarray:
    """Returns the law of alike memoryless workers, (size + 1,); the last is all larger ones."""
    q = 1 - 1 / groups
    return np.append((1 - q) * q ** np.arange(size), q**size)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the total variation between histograms or laws, each of any length."""
    size = max(len(one), len(other))
    a, b = (np.pad(counts / counts.sum(), (0, size - len(counts))) for counts in (one, other))
    return float(abs(a - b).sum() / 2)


def memoryless(counts: np.ndarray, groups: int) -> dict[str, Any]:
    """Compares a histogram of staleness with the geometric law: total variation, chi-squared test.

    Staleness is not independent, yet of 1,000 simulated memoryless runs 5 to 7 % are rejected at 5
    %. One worker has nothing to test.
    """
    law = geometric(groups, len(counts))
    found = {"distance": distance(counts, law)}
    observed, expected = np.append(counts, 0.0), counts.sum() * law
    while len(expected) > 1 and min(expected[-2:]) < EXPECTED:
        observed, expected = (np.append(v[:-2], v[-2:].sum()) for v in (observed, expected))
    if len(expected) < 2:
        return found | {"chi_square": None, "freedom": 0, "p": None}
    test = stats.chisquare(observed, expected)
    freedom = len(expected) - 1
    return found | {
        "chi_square": float(test.statistic),
        "freedom": freedom,
        "p": float(test.pvalue),
    }


def only(folder: Path) -> Point:
    """Returns the one run in a workdir; raises `TableError` where there are several."""
    found = tables.points(folder)
    if len(found) > 1:
        raise TableError(f"{folder}: {len(found)} runs in it; give the workdir of one")
    return found[0]


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
    name: str
    variation: float  # standard deviation over mean
    interval: list[float]  # its ends of 95 %, by the curvature of the likelihood
    aic: float
    distance: float  # Kolmogorov and Smirnov's
    p: float  # chance of one as large; too large where the variation is fitted to the same


def ratios(services: Sequence[np.ndarray]) -> np.ndarray:
    """Returns all services over the mean of their worker. `services`: seconds, (n,) a worker."""
    return np.concatenate([seconds / seconds.mean() for seconds in services])


def fit(x: np.ndarray, workers: int) -> list[FittedLaw]:
    """Returns all laws fitted to ratios (n,), the best first; `workers` is that of the means.

    The best has the least AIC, or is exponential if within `SIMPLER` of it. Where all services are
    alike there is only `constant`.
    """
    if x.std() < CONSTANT:
        return [FittedLaw("constant", 0.0, [0.0, 0.0], -math.inf, 0.0, 1.0)]
    found = [_fitted(name, x, workers) for name in LAWS]
    found.sort(key=lambda law: law.aic - SIMPLER * (law.name not in FREE))
    return found


def serial(services: Sequence[np.ndarray]) -> tuple[float, float]:
    """Returns the correlation of consecutive services of a worker, and its error if it is 0."""
    centred = [seconds / seconds.mean() - 1 for seconds in services]
    power = sum(float(x @ x) for x in centred)
    pairs = sum(len(x) - 1 for x in centred)
    if power < CONSTANT**2 * pairs:
        return math.nan, math.nan
    return sum(float(x[1:] @ x[:-1]) for x in centred) / power, pairs**-0.5


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
