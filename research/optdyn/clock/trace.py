"""Recorded arrivals: a CSV file with the columns `worker,seconds`, and their replay.

A replay reads from the file only what nothing else decides. A clock makes its timeline as it makes
all others, from the order of the arrivals, and asks the file for what it cannot know, such as
measured shares. All else in the file must be what the clock has found.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optdyn.base.errors import Check
from optdyn.base.trees import Plan
from optdyn.clock.timeline import Arrival, Timeline, TimelineError, from_arrivals, staleness_of
from optdyn.clock.versions import FREE_RUNNING, Policy, Versions, blank_timeline, replay_order

if TYPE_CHECKING:
    import pandas as pd

PREFIX = "control."
COLUMN = re.compile(r"control\.(?P<name>.+?)(?:\.(?P<number>\d+))?")
BATCH = "batch"
SERVED = "served"  # a column of races: seconds that the server takes over an update
CLOSE = 1e-6  # relative difference of numbers that are float32


class RecordedTrace(NamedTuple):
    """The first updates of a file, a row an update.

    Fields of the plan are columns `control.FIELD`, or `control.FIELD.0`, `control.FIELD.1`, ...
    where a field has several numbers; those inside nodes are `control.inner.FIELD.0` and so on.
    """

    path: str
    worker: np.ndarray  # (steps,) int32
    seconds: np.ndarray  # (steps,) float64
    fields: Mapping[str, np.ndarray]  # (steps,) or (steps, n) float64, by name
    version: np.ndarray | None = None  # (steps,)
    prefix: str = ""  # of the names of fields: "inner." for plans inside nodes
    named: frozenset[int] = frozenset()  # workers in the whole file

    @property
    def inner(self) -> "RecordedTrace":
        """The trace of the plans inside nodes."""
        return self._replace(prefix=self.prefix + "inner.")

    def with_order(self, worker: np.ndarray) -> "RecordedTrace":
        """Returns a trace of workers that arrive in this order, without fields."""
        return self._replace(worker=worker, fields={})

    def at_node(self, node: int, nodes: int) -> "RecordedTrace":
        """Returns the arrivals inside one of the nodes, of which the file has no seconds."""
        worker = self.inner.prefix + "worker"
        found = self.fields.get(worker)
        width = found.shape[1] // nodes if found is not None and found.ndim > 1 else 1
        numbers = self.inner.numbers("worker", (nodes, width))[:, node]
        self.require(worker, numbers == np.floor(numbers), "whole numbers")
        fields = {"worker": numbers} if width > 1 else {}
        for name in ("dropped", "receive", "send", "into", "merge"):  # seconds decide these
            values = self.fields.get(self.inner.prefix + name)
            if values is not None and values.ndim > 1 and values.shape[1] % nodes == 0:
                fields[name] = values.reshape(len(values), nodes, -1)[:, node]
        order, clock = numbers[:, -1].astype(np.int32), np.arange(len(numbers), dtype=float)
        return RecordedTrace(self.path, order, clock, fields)

    def has(self, field: str) -> bool:
        return self.prefix + field in self.fields

    def numbers(self, field: str, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Returns a field, (steps, *shape) float64. Raises `TimelineError` for another shape."""
        name, steps = self.prefix + field, len(self.seconds)
        count = math.prod(shape)
        found = self.fields.get(name)
        if found is None or found.shape != ((steps, count) if shape else (steps,)):
            raise TimelineError(_needs(self.path, name, (count,) if shape else ()))
        return found.reshape(steps, *shape)

    def integers(self, field: str, shape: tuple[int, ...], least: int, most: int) -> np.ndarray:
        """Returns `numbers` as int32. Raises `TimelineError` unless from `least` to `most`."""
        found = self.numbers(field, shape)
        good = (found == np.floor(found)) & (found >= least) & (found <= most)
        self.require(field, good, f"whole numbers from {least} to {most}")
        return found.astype(np.int32)

    def flags(self, field: str, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Returns `numbers` as bool. Raises `TimelineError` if one is neither 0 nor 1."""
        return self.integers(field, shape, 0, 1).astype(bool)

    def require(self, field: str, good: np.ndarray, expected: str) -> None:
        """Raises `TimelineError` at the first row that is not `good`, (steps, ...)."""
        bad = np.flatnonzero(~good.reshape(len(good), -1).all(axis=1))
        if len(bad):
            t = bad[0]
            row = np.atleast_1d(self.fields[self.prefix + field][t])
            shown = ", ".join(f"{number:g}" for number in row[:8]) + ", ..." * (len(row) > 8)
            raise TimelineError(
                f"trace {self.path}: update {t} has {PREFIX}{self.prefix}{field} = {shown}: "
                f"must be {expected}"
            )

    def require_groups(self, worker: np.ndarray, groups: int, everyone: bool = False) -> None:
        """Raises `TimelineError` unless workers are groups; with `everyone`, if one is missing."""
        strange = worker[~np.isin(worker, np.arange(groups))]
        if len(strange):
            raise TimelineError(
                f"trace {self.path}: worker {strange[0]:g}, but groups are 0..{groups - 1}"
            )
        missing = set(range(groups)) - self.named
        if everyone and self.named and missing:
            raise TimelineError(
                f"trace {self.path}: no arrival of worker {min(missing)} of {groups}"
            )

    def workers(self, shape: tuple[int, ...], groups: int) -> np.ndarray:
        """Returns the workers of all arrivals of each update, (steps, *shape) int32."""
        found = self.numbers("worker", shape)
        self.require_groups(found, groups)
        return found.astype(np.int32)


def read_table(path: str | Path) -> "pd.DataFrame":
    """Returns the file's numbers to the bit. Raises `OSError`, and `ValueError` if it is no CSV."""
    import pandas as pd  # here, as it takes long and few runs need it

    return pd.read_csv(path, float_precision="round_trip")


def read_trace(path: str, steps: int) -> RecordedTrace:
    """Returns the first `steps` rows of the file. Raises `TimelineError`."""
    not_csv = f"trace {path}: not a CSV file with the columns worker (integers) and seconds, and "
    not_csv += f"{PREFIX}NAME (numbers) if any"
    with (
        TimelineError.at(f"trace {path}", OSError),
        TimelineError.at(not_csv, KeyError, ValueError),
    ):
        table = read_table(path)
        worker = table["worker"].to_numpy(np.float64)  # a fraction or a blank is found below
        seconds = table["seconds"].to_numpy(np.float64)
        version = table["version"].to_numpy(np.float64)[:steps] if "version" in table else None
        fields = {name: values[:steps] for name, values in _fields(table)}
    TimelineError.refuse(_wrong_rows(path, steps, worker, seconds, fields))
    named = frozenset(np.unique(worker).astype(int).tolist())
    return RecordedTrace(
        path, worker[:steps].astype(np.int32), seconds[:steps], fields, version, named=named
    )


def _wrong_rows(
    path: str,
    steps: int,
    worker: np.ndarray,
    seconds: np.ndarray,
    fields: Mapping[str, np.ndarray],
) -> Iterator[Check]:
    few = f"trace {path}: {len(worker)} arrivals, the run has {steps} steps"
    yield len(worker) < steps, few
    for bad in worker[~((worker == np.floor(worker)) & (worker >= 0) & (worker < 2**31))][:1]:
        yield True, f"trace {path}: worker = {bad:g}: must be a whole number from 0 up"
    good = np.isfinite(seconds).all() and (np.diff(seconds, prepend=0.0) >= 0).all()
    yield not good, f"trace {path}: seconds must be finite, from 0 up and in order"
    for name, values in fields.items():
        yield not np.isfinite(values).all(), f"trace {path}: {PREFIX}{name} must be finite numbers"


def _needs(path: str, name: str, shape: tuple[int, ...]) -> str:
    numbers = f".0 to .{shape[0] - 1}" if shape else ""
    return f"trace {path}: needs the columns {PREFIX}{name}{numbers}"


def replay(trace: RecordedTrace, groups: int, policy: Policy = FREE_RUNNING) -> Timeline:
    """Returns the timeline of the recorded arrivals. Raises `TimelineError`."""
    worker = trace.worker
    if policy.arrivals > 1:
        worker = trace.workers((policy.arrivals,), groups)
    trace.require_groups(worker, groups, everyone=policy.is_free and not trace.has("read"))
    if policy.is_free and trace.has("read"):  # reads do not follow from the order then
        read, write = (trace.integers(name, (), 0, len(worker)) for name in ("read", "write"))
        slots, staleness = 1 + int(max(read.max(), write.max())), staleness_of(read, write)
        return Timeline(worker, staleness, trace.seconds, slots, Arrival(worker, read, write))
    if policy.is_free:
        line = from_arrivals(worker, trace.seconds, groups)
        t, staleness = np.arange(len(worker), dtype=np.int32), line.staleness
        # A batch's reader is one of the first, or read as many updates ago as it is stale.
        batch = np.where(staleness == t, worker, groups + t - staleness - 1)
        return line._replace(batch=batch)
    dropped = trace.flags("dropped", (groups,)) if policy.drops else None
    line = blank_timeline(groups, len(worker), policy)
    order = Versions(line, groups, policy)
    drop = order.drop if policy.allotted < math.inf else None
    replay_order(order, worker, trace.seconds, dropped, drop, f"trace {trace.path}: ")
    return line


def read_versions(line: Timeline) -> np.ndarray:
    """Returns how many updates the parameters of each gradient, the last of several, had, (steps,).

    Workers with local steps change what others read only where they exchange. A gradient that is
    gathered in a table counts where it is applied.
    """
    staleness = line.staleness if line.staleness.ndim == 1 else line.staleness[:, -1]
    exchange = getattr(line.plan, "exchange", None)
    updates = np.arange(len(staleness)) if exchange is None else np.cumsum(exchange) - exchange
    return updates - staleness


def check_replay(trace: RecordedTrace, line: Timeline) -> Timeline:
    """Returns the clock's timeline at the file's seconds. Raises `TimelineError` if they differ."""
    TimelineError.refuse(_differences(trace, line))
    line = line._replace(batch=line.batch if BATCH in trace.fields else None)
    return line._replace(seconds=trace.seconds)


def _differences(trace: RecordedTrace, line: Timeline) -> Iterator[Check]:
    where = f"trace {trace.path}"
    for t in _unlike(trace.worker, line.worker):
        must = f"must be {line.worker[t]}"
        yield True, f"{where}: update {t} has worker {trace.worker[t]}: {must}"
    if trace.version is not None:
        version = read_versions(line)
        for t in _unlike(trace.version, version):
            arrival = f"arrival {t}, of worker {trace.worker[t]}, has version {trace.version[t]:g}"
            yield True, f"{where}: {arrival}: must be {version[t]} by the order of arrivals"
    known = _columns(line)
    for name, found in trace.fields.items():
        columns = ", ".join(PREFIX + column for column in known) or "no such columns"
        another = f"{PREFIX}{name} is of another method, this one has {columns}"
        yield name not in known, f"{where}: {another}"
        expected = known[name]
        yield found.shape != expected.shape, _needs(trace.path, name, expected.shape[1:])
        for t in _unlike(found, expected):
            row, good = (np.ravel(values[t]) for values in (found, expected))
            place = np.flatnonzero(~np.isclose(row, good, CLOSE, 0))[0]
            column = f"{PREFIX}{name}{f'.{place}' * (len(row) > 1)}"
            must = f"must be {good[place]:g} by the config and the order of arrivals"
            yield True, f"{where}: update {t} has {column} = {row[place]:g}: {must}"


def trace_columns(line: Timeline, window: slice = slice(None)) -> dict[str, np.ndarray]:
    """Returns a timeline's columns besides `worker` and `seconds`, (steps,) or (steps, n).

    Left out is what follows from these two: in a race of single arrivals, and where groups read
    when they write, also the versions that are read.
    """
    columns, plan = _columns(line, window), line.plan
    by_order: tuple[str, ...] = ("worker",)
    if line.batch is not None or getattr(plan, "read", None) is getattr(plan, "worker", 0):
        by_order = ("worker", "read", "write")
    several = line.batch is None or line.batch.ndim > 1
    return {n: v for n, v in columns.items() if n not in by_order or (several and v.ndim > 1)}


def _columns(line: Timeline, window: slice = slice(None)) -> dict[str, np.ndarray]:
    fields = dict(_leaves(line.plan)) | ({} if line.batch is None else {BATCH: line.batch})
    columns = {}
    for name, field in fields.items():
        values = np.asarray(field[window])
        values = values.astype(np.int32) if values.dtype == bool else values
        width = math.prod(values.shape[1:])
        columns[name] = values if values.ndim == 1 else values.reshape(len(values), width)
    return columns


def _leaves(plan: Plan, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yields the arrays of a plan with the names of their columns."""
    for name, value in zip(getattr(plan, "_fields", ()), plan, strict=True):
        if name == "inner":
            yield from _leaves(value, f"{prefix}inner.")
        elif isinstance(value, Mapping):
            yield from ((prefix + key, leaf) for key, leaf in value.items())
        elif hasattr(value, "shape"):
            yield prefix + name, value


def _unlike(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    same = np.isclose(found, expected, CLOSE, 0)
    return np.flatnonzero(~same.reshape(len(same), -1).all(axis=1))


def _fields(table: "pd.DataFrame") -> Iterator[tuple[str, np.ndarray]]:
    """Yields names and values of fields, (rows,) or (rows, n) float64."""
    columns_of: dict[str, list[str]] = {}
    for column in table.columns:
        if match := COLUMN.fullmatch(column):
            columns_of.setdefault(match["name"], []).append(column)
    for name, columns in columns_of.items():
        if columns == [PREFIX + name]:
            yield name, table[columns[0]].to_numpy(np.float64)
        else:
            numbered = [f"{PREFIX}{name}.{n}" for n in range(len(columns))]
            yield name, table[numbered].to_numpy(np.float64)
