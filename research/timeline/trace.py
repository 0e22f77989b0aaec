"""Arrivals recorded elsewhere: a CSV file with a header and the columns `worker,seconds`.

One row an arrival: the group that delivered (0, 1, ...) and when, in seconds from the start.
Columns `control.NAME` and `control.NAME.0`, `control.NAME.1`, ... hold what else was decided then,
and `version`, if it is there, how many updates the gradient's parameters had. A real run records
itself in such a file.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from research.timeline.base import Timeline, TimelineError, from_arrivals
from research.timeline.versions import empty, fill

PREFIX = "control."


def trace(path: str, groups: int, steps: int, bound: float = math.inf) -> Timeline:
    """The first `steps` arrivals of the file; `TimelineError` in one line if it cannot serve.

    With a finite `bound` of the staleness groups waited for one another (`versions.py`).
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
    strangers = worker[~np.isin(worker, np.arange(groups))]
    if len(strangers):
        raise TimelineError(
            f"trace {path}: worker {strangers[0]:g}, but groups are 0..{groups - 1}"
        )
    missing = np.setdiff1d(np.arange(groups), worker)
    if len(missing):
        raise TimelineError(f"trace {path}: no arrival of worker {missing[0]} of {groups}")
    if not np.all(np.isfinite(seconds)) or np.any(np.diff(seconds) < 0) or seconds[0] < 0:
        raise TimelineError(f"trace {path}: seconds must be finite, from 0 up and in order")
    made = from_arrivals(worker[:steps], seconds[:steps], groups)
    if bound < math.inf:
        made = empty(groups, steps)
        try:
            fill(made, worker[:steps].astype(int).tolist(), seconds, bound)
        except TimelineError as error:
            raise TimelineError(f"trace {path}: {error}") from error
    if "version" in table:
        read = np.arange(steps) - made.staleness
        others = np.flatnonzero(table["version"].to_numpy()[:steps] != read)
        if len(others):
            t = others[0]
            raise TimelineError(
                f"trace {path}: arrival {t}, of worker {worker[t]:g}, says version "
                f"{table['version'][t]}, and by the order of arrivals it had read {read[t]}"
            )
    return made._replace(control={name: values[:steps] for name, values in control.items()})


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
