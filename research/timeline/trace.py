"""Arrivals recorded elsewhere: a CSV file with a header and the columns `worker,seconds`.

One row an arrival: the group that delivered (0, 1, ...) and when, in seconds from the start.
Columns `control.NAME` and `control.NAME.0`, `control.NAME.1`, ... hold what else was decided then,
and `version`, if it is there, how many updates the gradient's parameters had. Where an update is of
K arrivals the row is that of the last, and `control.worker.0` and so on say whose all of them are.
A real run records itself in such a file.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from research.timeline.base import Timeline, TimelineError, from_arrivals
from research.timeline.several import blank
from research.timeline.versions import NOBODY, Versions, fill

PREFIX = "control."


class Recorded(NamedTuple):
    """The first updates of a file."""

    path: str
    worker: np.ndarray  # (steps,) int, or (steps, K) of updates of K arrivals
    seconds: np.ndarray  # (steps,)
    control: dict[str, np.ndarray]
    version: np.ndarray | None  # (steps,)


def trace(
    path: str,
    groups: int,
    steps: int,
    bound: float = math.inf,
    arrivals: int = 1,
    waiting: str = NOBODY,
) -> Timeline:
    """The first `steps` arrivals of the file; `TimelineError` in one line if it cannot serve.

    With a finite `bound` of the staleness groups waited for one another (`versions.py`), and
    updates are of K `arrivals` for which groups wait as `waiting` says (`several.py`).
    """
    single = (arrivals, waiting) == (1, NOBODY)
    held = recorded(path, groups, steps, every=single)
    if arrivals > 1:
        held = held._replace(worker=_whose(held, arrivals, groups))
    if single and bound == math.inf:
        made = from_arrivals(held.worker, held.seconds, groups)
    else:
        try:
            made = blank(groups, steps, arrivals, waiting)
            fill(Versions(made, groups, bound, arrivals, waiting), held.worker, held.seconds)
        except TimelineError as error:
            raise TimelineError(f"trace {path}: {error}") from error
    late = made.staleness if arrivals == 1 else made.staleness[:, -1]
    verify(held, made.worker, np.arange(steps) - late)
    known = {"read": (made.control or {})["read"]} if arrivals > 1 else {}
    return made._replace(control={**held.control, **known})


def recorded(path: str, groups: int, steps: int, every: bool = True) -> Recorded:
    """The first `steps` rows of the file; with `every` group among its arrivals.

    Raises `TimelineError`.
    """
    import pandas as pd  # here, for it takes long and few runs need it

    try:
        table = pd.read_csv(path)
        worker = table["worker"].to_numpy(np.float64)  # a fraction or a blank is found below
        seconds = table["seconds"].to_numpy(np.float64)
        control = _control(table)
    except OSError as error:
        raise TimelineError(f"trace {path}: {error.strerror or error}") from error
    except (KeyError, ValueError) as error:
        raise TimelineError(
            f"trace {path}: not a CSV file with the columns worker (integers) and seconds, "
            f"and {PREFIX}NAME (integers) if any"
        ) from error
    if len(worker) < steps:
        raise TimelineError(f"trace {path}: {len(worker)} arrivals, the run has {steps} steps")
    _known(path, worker, groups)
    missing = np.setdiff1d(np.arange(groups), worker)
    if every and len(missing):
        raise TimelineError(f"trace {path}: no arrival of worker {missing[0]} of {groups}")
    if not np.all(np.isfinite(seconds)) or np.any(np.diff(seconds) < 0) or seconds[0] < 0:
        raise TimelineError(f"trace {path}: seconds must be finite, from 0 up and in order")
    control = {name: values[:steps] for name, values in control.items()}
    version = table["version"].to_numpy()[:steps] if "version" in table else None
    return Recorded(path, worker[:steps].astype(np.int32), seconds[:steps], control, version)


def verify(held: Recorded, worker: np.ndarray, read: np.ndarray) -> None:
    """Raises `TimelineError` where a version in the file is not that `read` by the order."""
    if held.version is None:
        return
    others = np.flatnonzero(held.version != read)
    if len(others):
        t = others[0]
        raise TimelineError(
            f"trace {held.path}: arrival {t}, of worker {worker[t]}, says version "
            f"{held.version[t]}, and by the order of arrivals it had read {read[t]}"
        )


def arrived(table: Any) -> np.ndarray:
    """Whose the arrivals of a race's trace are, as `fill` takes them: (n,), or (n, K)."""
    whose = _control(table).get("worker")
    return table["worker"].to_numpy(np.int32) if whose is None else whose


def _known(path: str, worker: np.ndarray, groups: int) -> None:
    strangers = worker[~np.isin(worker, np.arange(groups))]
    if len(strangers):
        raise TimelineError(
            f"trace {path}: worker {strangers[0]:g}, but groups are 0..{groups - 1}"
        )


def _whose(held: Recorded, arrivals: int, groups: int) -> np.ndarray:
    """(steps, K) groups, in the order of arrival."""
    found = held.control.get("worker", held.worker)
    if found.shape != (len(held.worker), arrivals):
        raise TimelineError(
            f"trace {held.path}: needs the columns {PREFIX}worker.0 to .{arrivals - 1}, whose the "
            f"arrivals of an update are"
        )
    _known(held.path, found, groups)
    return found


def replay(path: str, steps: int, needed: Mapping[str, int]) -> Timeline:
    """A real run's trace of updates by all workers together.

    `needed`: what must have been decided, by name, and how many columns it has (0: one without a
    number). Raises `TimelineError`, also where one is missing.
    """
    made = trace(path, 1, steps)
    for name, columns in needed.items():
        shape = (steps, columns) if columns else (steps,)
        if np.shape((made.control or {}).get(name, ())) != shape:
            numbers = f".0 to .{columns - 1}" if columns else ""
            raise TimelineError(f"trace {path}: needs the columns {PREFIX}{name}{numbers}")
    return made


def _control(table: Any) -> dict[str, np.ndarray]:
    """(steps,) or (steps, n) int32 by name."""
    columns: dict[str, list[str]] = {}
    for column in table.columns:
        if column.startswith(PREFIX):
            columns.setdefault(column.split(".")[1], []).append(column)

    def values(name: str, of: list[str]) -> np.ndarray:
        alone = of == [PREFIX + name]
        own = table[of[0] if alone else [f"{PREFIX}{name}.{n}" for n in range(len(of))]]
        found = own.to_numpy(np.float64)
        if not np.all((found == np.floor(found)) & (np.abs(found) < 2**31)):
            raise ValueError(f"{PREFIX}{name} are no whole numbers")
        return found.astype(np.int32)

    return {name: values(name, of) for name, of in columns.items()}
