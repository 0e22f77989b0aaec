"""Arrivals as real workers left them in a workdir, their service times and their staleness.

P(tau = k) = (1/g) (1 - 1/g)^k     if g workers are memoryless and alike
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from optdyn import methods
from optdyn.clock.timeline import from_arrivals
from optdyn.clock.trace import SERVED, table_of
from optdyn.report import laws, tables
from optdyn.report.tables import Point, TableError, value
from optdyn.train import history

LATE = 5  # updates a worker by which nearly every gradient that is at work arrives
EXPECTED = 5  # in a bin of the chi-squared test, at least
GROUPS, BATCH = "method.groups", "batch_size"


class RaceRecord(NamedTuple):
    """Arrivals (T,) of a run's workers, in order."""

    point: Point
    worker: np.ndarray
    seconds: np.ndarray
    staleness: np.ndarray
    services: list[np.ndarray]  # seconds, by worker, without its first and those near a stop
    stops: np.ndarray  # updates; none where there are too many to leave out what is near them
    serving: float = math.nan  # seconds of the server at an update; NaN where nobody knows

    @property
    def groups(self) -> int:
        """g, how many groups race."""
        return len(self.services)

    @property
    def means(self) -> np.ndarray:
        """(g,) seconds of a service."""
        return np.array([own.mean() for own in self.services])


def load(folder: Path) -> RaceRecord:
    """The race in a workdir; raises `TableError`.

    A gradient is at work from when its version was made, which its worker then read, until it
    arrives: the time since the worker's last arrival, less what it waited for others. Which are
    near a stop of the server is decided by when they begin, since of those that end before the next
    stop long ones would be missing.
    """
    point = only(folder)
    path = folder / "trace.csv"
    name, groups, batch = (value(point.config, key) for key in ("method.name", GROUPS, BATCH))
    chosen = methods.seen(name or "")
    alone = chosen and chosen.grouped and chosen.simple
    if not (path.exists() and alone and groups and batch):
        raise TableError(
            f"{folder}: no race in it; needs a run of `optdyn race`, with the trace.csv that its "
            "workers leave, of updates that are one gradient of the whole batch each"
        )
    try:
        table = table_of(path)
        worker, seconds = table["worker"].to_numpy(float), table["seconds"].to_numpy(float)
        version = table["version"].to_numpy(float) if "version" in table else None
        served = table[SERVED].to_numpy(float) if SERVED in table else np.full(len(table), np.nan)
    except (OSError, KeyError, ValueError) as error:
        raise TableError(f"{path}: not a CSV file with the columns worker and seconds") from error
    t = np.arange(len(table))
    fewest = laws.FEWEST + 1
    if set(np.unique(worker)) != set(range(groups)):
        raise TableError(
            f"{path}: must have arrivals of workers 0 to {groups - 1}, each and no other"
        )
    if not np.isfinite(seconds).all() or seconds[0] < 0 or (np.diff(seconds) < 0).any():
        raise TableError(f"{path}: seconds must be finite, from 0 up and in order")
    if np.bincount(worker.astype(int)).min() < fewest:
        few = np.bincount(worker.astype(int)).argmin()
        raise TableError(f"{path}: fewer than {fewest} arrivals of worker {few}; let the run go on")
    made = from_arrivals(worker, seconds, groups)
    staleness = made.staleness if version is None else t - version
    if not ((staleness >= 0) & (staleness <= t) & (staleness == np.floor(staleness))).all():
        raise TableError(f"{path}: version must be a whole number, at most that of the row")
    late, halts = staleness.astype(int), stops(point, len(table))
    version = t - late
    services = seconds - np.concatenate([[0.0], seconds])[version]
    first = np.zeros(len(t), bool)
    first[np.unique(worker, return_index=True)[1]] = True
    if services[~first].min() <= 0:
        raise TableError(f"{path}: two arrivals of one worker at one time")
    calm = ~first & quiet(halts, version, groups, LATE * groups - 1)
    if np.bincount(made.worker[calm], minlength=groups).min() < laws.FEWEST:
        halts, calm = np.zeros(0, int), ~first
    each = [services[calm & (made.worker == w)] for w in range(groups)]
    known = np.isfinite(served) & quiet(halts, t, groups)
    serving = float(served[known].mean()) if known.any() else math.nan
    return RaceRecord(point, made.worker, seconds, late, each, halts, serving)


def stops(point: Point, updates: int) -> np.ndarray:
    """The updates before which the server did something else, in order.

    Log points, checkpoints, where windows of the meter begin and end, and where the run started.
    Then all workers wait for the server, and what they sent meanwhile comes at once.
    """
    config, at = point.config, {int(start.get("at", 0)) for start in history.starts(point.folder)}
    cycles = [(config.get(f"{name}_every"), 0) for name in ("log", "checkpoint")]
    if config.get("probes.momentum"):
        cycles += [(config["probes.every"], shift) for shift in (0, config["probes.window"])]
    for every, shift in cycles:
        at |= set(range(shift, updates, every) if every else ())
    return np.array(sorted({0} | at))


def quiet(stops: np.ndarray, at: np.ndarray, before: int, after: int = 0) -> np.ndarray:
    """Whether there is no stop from `before` updates before each of `at` to `after` after it."""
    following = np.append(stops.astype(float), np.inf)[np.searchsorted(stops, at - before)]
    return following > at + after


def begun(worker: np.ndarray) -> int:
    """The first update by which every worker has arrived once."""
    return int(max(np.unique(worker, return_index=True)[1]))


def gaps(worker: np.ndarray, seconds: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Seconds from one update to the next, from `begun` on, but for those that a stop has made."""
    at = np.arange(begun(worker) + 1, len(worker))
    return np.diff(seconds)[at - 1][quiet(stops, at, int(worker.max()) + 1)]


def rate(worker: np.ndarray, seconds: np.ndarray, stops: np.ndarray) -> float:
    """Updates a second of these; with no `stops` of all."""
    return float(1 / gaps(worker, seconds, stops).mean())


def tenths(worker: np.ndarray, seconds: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """(10,) the same of every tenth of the updates."""
    parts = np.array_split(gaps(worker, seconds, stops), 10)
    return np.array([1 / part.mean() for part in parts])


def histogram(worker: np.ndarray, staleness: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """How often every staleness from 0 up came, from `begun` on, but for what a stop has made."""
    at = np.arange(begun(worker) + 1, len(worker))
    return np.bincount(staleness[at][quiet(stops, at, LATE * (int(worker.max()) + 1))])


def geometric(groups: int, size: int) -> np.ndarray:
    """(size + 1,) the law of memoryless workers that are alike; the last is all that is beyond."""
    q = 1 - 1 / groups
    return np.append((1 - q) * q ** np.arange(size), q**size)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Total variation between histograms or laws, each of any length."""
    size = max(len(one), len(other))
    a, b = (np.pad(each / each.sum(), (0, size - len(each))) for each in (one, other))
    return float(abs(a - b).sum() / 2)


def memoryless(counts: np.ndarray, groups: int) -> dict[str, Any]:
    """A histogram of staleness against the geometric law: total variation, chi-squared test.

    The staleness of one update depends on that of others, yet of memoryless workers the statistic
    is nearly chi-squared with a degree of freedom a bin but one: of 1,000 simulated runs 5 to 7 %
    are rejected at 5 %. One worker has nothing to test.
    """
    law = geometric(groups, len(counts))
    found = {"distance": distance(counts, law)}
    seen, expected = np.append(counts, 0.0), counts.sum() * law
    while len(expected) > 1 and min(expected[-2:]) < EXPECTED:
        seen, expected = (np.append(v[:-2], v[-2:].sum()) for v in (seen, expected))
    if len(expected) < 2:
        return found | {"chi_square": None, "freedom": 0, "p": None}
    test = stats.chisquare(seen, expected)
    freedom = len(expected) - 1
    return found | {
        "chi_square": float(test.statistic),
        "freedom": freedom,
        "p": float(test.pvalue),
    }


def only(folder: Path) -> Point:
    """The one run in a workdir; raises `TableError`."""
    found = tables.points(folder)
    if len(found) > 1:
        raise TableError(f"{folder}: {len(found)} runs in it; give the workdir of one")
    return found[0]
