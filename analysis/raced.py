"""Arrivals as real workers left them in a workdir, their service times and their staleness.

P(tau = k) = (1/g) (1 - 1/g)^k     if g workers are memoryless and alike
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from analysis import laws, tables
from analysis.tables import Point, TableError
from research import strategies
from research.timeline.base import from_arrivals

EXPECTED = 5  # in a bin of the chi-squared test, at least
GROUPS, BATCH = "strategy.groups", "batch_size"


class Race(NamedTuple):
    """Arrivals (T,) of a run's workers, in order."""

    point: Point
    worker: np.ndarray
    seconds: np.ndarray
    staleness: np.ndarray
    services: list[np.ndarray]  # seconds, by worker, without its first

    @property
    def groups(self) -> int:
        return len(self.services)

    @property
    def means(self) -> np.ndarray:
        """(g,) seconds of a service."""
        return np.array([own.mean() for own in self.services])


def load(folder: Path) -> Race:
    """The race in a workdir; raises `TableError`.

    A gradient is at work from when its version was made, which its worker then read, until it
    arrives: the time since the worker's last arrival, less what it waited for others.
    """
    point = only(folder)
    path = folder / "trace.csv"
    name, groups, batch = (point.config.get(key) for key in ("strategy.name", GROUPS, BATCH))
    alone = strategies.arrives(name or "") and strategies.is_simple(name or "")
    if not (path.exists() and alone and groups and batch):
        raise TableError(
            f"{folder}: no race in it; needs a run of config.strategy.name = 'asynchronous' with "
            "the trace.csv that real workers leave"
        )
    try:
        table = pd.read_csv(path)
        worker, seconds = table["worker"].to_numpy(float), table["seconds"].to_numpy(float)
        version = table["version"].to_numpy(float) if "version" in table else None
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
    read = np.concatenate([[0.0], seconds])[t - staleness.astype(int)]
    each = [(seconds - read)[made.worker == w][1:] for w in range(groups)]
    if min(own.min() for own in each) <= 0:
        raise TableError(f"{path}: two arrivals of one worker at one time")
    return Race(point, made.worker, seconds, staleness.astype(int), each)


def begun(worker: np.ndarray) -> int:
    """The first update by which every worker has arrived once."""
    return int(max(np.unique(worker, return_index=True)[1]))


def rate(worker: np.ndarray, seconds: np.ndarray) -> float:
    """Updates a second from then on."""
    first = begun(worker)
    return float((len(seconds) - 1 - first) / (seconds[-1] - seconds[first]))


def tenths(worker: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """(10,) the same of every tenth of the updates from then on."""
    ends = np.linspace(begun(worker), len(seconds) - 1, 11).astype(int)
    return np.diff(ends) / np.diff(seconds[ends])


def histogram(worker: np.ndarray, staleness: np.ndarray) -> np.ndarray:
    """How often every staleness from 0 up came since then."""
    return np.bincount(staleness[begun(worker) + 1 :])


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
