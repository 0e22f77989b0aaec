"""Arrivals recorded elsewhere: a CSV file with a header and the columns `worker,seconds`.

One row an update: the group that delivered (0, 1, ...; of several the last) and when, in seconds
from the start. `version`, if it is there, is how many updates the gradient's parameters had. The
fields of what the run's timeline decided are columns `control.FIELD`, or `control.FIELD.0`,
`control.FIELD.1`, ... where a field has several numbers, and those of nodes are
`control.inner.FIELD.0` and so on. A real run records itself in such a file.

Nothing in the file is believed that something else decides. A clock makes the timeline of a replay
as it makes all others, from the order of the arrivals, and asks the file only for what it cannot
know, such as measured shares. What the file says besides must be what the clock has found.
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
SERVED = "served"  # a column that a race adds: seconds that its server is at an update
CLOSE = 1e-6  # relative, of numbers that are float32


class RecordedTrace(NamedTuple):
    """The first updates of a file."""

    path: str
    worker: np.ndarray  # (steps,) int32
    seconds: np.ndarray  # (steps,) float64
    fields: Mapping[str, np.ndarray]  # (steps,) or (steps, n) float64, by name
    version: np.ndarray | None = None  # (steps,)
    inside: str = ""  # before the names of the fields of a choice inside nodes
    named: frozenset[int] = frozenset()  # workers in the whole file

    @property
    def inner(self) -> "RecordedTrace":
        """The trace, whose fields are now those of the choice inside nodes."""
        return self._replace(inside=self.inside + "inner.")

    def order(self, worker: np.ndarray) -> "RecordedTrace":
        """A trace that says that workers arrived in this order, and nothing else."""
        return self._replace(worker=worker, fields={})

    def node(self, node: int, nodes: int) -> "RecordedTrace":
        """The arrivals inside one of so many nodes. The file has no seconds of theirs."""
        worker = self.inner.inside + "worker"
        found = self.fields.get(worker)
        width = found.shape[1] // nodes if found is not None and found.ndim > 1 else 1
        every = self.inner.numbers("worker", (nodes, width))[:, node]
        self.require(worker, every == np.floor(every), "whole numbers")
        fields = {"worker": every} if width > 1 else {}
        for name in ("dropped", "receive", "send", "into", "merge"):  # seconds decide these
            said = self.fields.get(self.inner.inside + name)
            if said is not None and said.ndim > 1 and said.shape[1] % nodes == 0:
                fields[name] = said.reshape(len(said), nodes, -1)[:, node]
        order, clock = every[:, -1].astype(np.int32), np.arange(len(every), dtype=float)
        return RecordedTrace(self.path, order, clock, fields)

    def has(self, field: str) -> bool:
        """Whether the file has columns of that field."""
        return self.inside + field in self.fields

    def numbers(self, field: str, shape: tuple[int, ...] = ()) -> np.ndarray:
        """(steps, *shape) float64. Raises `TimelineError` if the file has not as many columns."""
        name, steps = self.inside + field, len(self.seconds)
        count = math.prod(shape)
        found = self.fields.get(name)
        if found is None or found.shape != ((steps, count) if shape else (steps,)):
            raise TimelineError(_needs(self.path, name, (count,) if shape else ()))
        return found.reshape(steps, *shape)

    def whole(self, field: str, shape: tuple[int, ...], least: int, most: int) -> np.ndarray:
        """`numbers` as int32, from `least` to `most`; `TimelineError` where one is none."""
        found = self.numbers(field, shape)
        good = (found == np.floor(found)) & (found >= least) & (found <= most)
        self.require(field, good, f"whole numbers from {least} to {most}")
        return found.astype(np.int32)

    def flags(self, field: str, shape: tuple[int, ...] = ()) -> np.ndarray:
        """`numbers` as bool; `TimelineError` where one is neither 0 nor 1."""
        return self.whole(field, shape, 0, 1).astype(bool)

    def require(self, field: str, good: np.ndarray, wanted: str) -> None:
        """Raises `TimelineError`, which names the first row where it isn't `good`, (steps, ...)."""
        bad = np.flatnonzero(~good.reshape(len(good), -1).all(axis=1))
        if len(bad):
            t = bad[0]
            has = np.atleast_1d(self.fields[self.inside + field][t])
            shown = ", ".join(f"{number:g}" for number in has[:8]) + ", ..." * (len(has) > 8)
            raise TimelineError(
                f"trace {self.path}: update {t} has {PREFIX}{self.inside}{field} = {shown}: "
                f"must be {wanted}"
            )

    def groups(self, worker: np.ndarray, groups: int, everyone: bool = False) -> None:
        """Raises `TimelineError` where a worker is no group of so many.

        With `everyone` also where one of them is not in the file.
        """
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
        """(steps, *shape) int32: whose all the arrivals of an update are."""
        found = self.numbers("worker", shape)
        self.groups(found, groups)
        return found.astype(np.int32)


def read_table(path: str | Path) -> "pd.DataFrame":
    """The file, to the bit. Raises `OSError`, and `ValueError` if it is no CSV file."""
    import pandas as pd  # here, for it takes long and few runs need it

    return pd.read_csv(path, float_precision="round_trip")


def read_trace(path: str, steps: int) -> RecordedTrace:
    """The first `steps` rows of the file. Raises `TimelineError`."""
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
        fields = {name: trace[:steps] for name, trace in _fields(table)}
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
    for one in worker[~((worker == np.floor(worker)) & (worker >= 0) & (worker < 2**31))][:1]:
        yield True, f"trace {path}: worker {one:g} is no whole number from 0 up"
    good = np.isfinite(seconds).all() and (np.diff(seconds, prepend=0.0) >= 0).all()
    yield not good, f"trace {path}: seconds must be finite, from 0 up and in order"
    for name, trace in fields.items():
        line = f"trace {path}: {PREFIX}{name} has what is no finite number"
        yield not np.isfinite(trace).all(), line


def _needs(path: str, name: str, shape: tuple[int, ...]) -> str:
    """The line of columns that are not there, or not as many."""
    many = f".0 to .{shape[0] - 1}" if shape else ""
    return f"trace {path}: needs the columns {PREFIX}{name}{many}"


def replay(trace: RecordedTrace, groups: int, policy: Policy = FREE_RUNNING) -> Timeline:
    """The timeline of the arrivals that a trace holds, of groups with that policy.

    Where something is dropped it also says whose that was. Raises `TimelineError`.
    """
    worker = trace.worker
    if policy.arrivals > 1:
        worker = trace.workers((policy.arrivals,), groups)
    trace.groups(worker, groups, everyone=policy.is_free and not trace.has("read"))
    if policy.is_free and trace.has("read"):  # reads do not follow from the order then
        read, write = (trace.whole(name, (), 0, len(worker)) for name in ("read", "write"))
        slots, late = 1 + int(max(read.max(), write.max())), staleness_of(read, write)
        return Timeline(worker, late, trace.seconds, slots, Arrival(worker, read, write))
    if policy.is_free:
        line = from_arrivals(worker, trace.seconds, groups)
        t, late = np.arange(len(worker), dtype=np.int32), line.staleness
        # Its reader was the first, or read as many updates ago as it is late (`read_versions.py`).
        return line._replace(batch=np.where(late == t, worker, groups + t - late - 1))
    dropped = trace.flags("dropped", (groups,)) if policy.drops else None
    line = blank_timeline(groups, len(worker), policy)
    order = Versions(line, groups, policy)
    drop = order.drop if policy.allotted < math.inf else None
    replay_order(order, worker, trace.seconds, dropped, drop, f"trace {trace.path}: ")
    return line


def read_versions(line: Timeline) -> np.ndarray:
    """(steps,) int, how many updates that others read each gradient had in its parameters.

    Of several gradients it is that of the last. Workers that take local steps are read from where
    they exchange, and only then; of gradients that are gathered in a table, where it is applied.
    """
    late = line.staleness if line.staleness.ndim == 1 else line.staleness[:, -1]
    exchange = getattr(line.plan, "exchange", None)
    updates = np.arange(len(late)) if exchange is None else np.cumsum(exchange) - exchange
    return updates - late


def check_replay(trace: RecordedTrace, line: Timeline) -> Timeline:
    """The timeline that a clock has made of the file, at its seconds.

    Raises `TimelineError` where the file says something else than that.
    """
    TimelineError.refuse(_wrong_line(trace, line))
    line = line._replace(batch=line.batch if BATCH in trace.fields else None)
    return line._replace(seconds=trace.seconds)


def _wrong_line(trace: RecordedTrace, line: Timeline) -> Iterator[Check]:
    """What a file says else than the timeline that a clock has made of it."""
    where = f"trace {trace.path}"
    for t in _unlike(trace.worker, line.worker):
        said = f"update {t} has worker {trace.worker[t]}, and it is that of {line.worker[t]}"
        yield True, f"{where}: {said}"
    if trace.version is not None:
        version = read_versions(line)
        for t in _unlike(trace.version, version):
            said = f"says version {trace.version[t]:g}, and by the order of arrivals it had read "
            yield True, f"{where}: arrival {t}, of worker {trace.worker[t]}, {said}{version[t]}"
    known = _columns(line)
    for name, found in trace.fields.items():
        has = ", ".join(PREFIX + each for each in known) or "no such columns"
        said = f"{PREFIX}{name} is of another method, this one has {has}"
        yield name not in known, f"{where}: {said}"
        expected = known[name]
        yield found.shape != expected.shape, _needs(trace.path, name, expected.shape[1:])
        for t in _unlike(found, expected):
            one, other = (np.ravel(each[t]) for each in (found, expected))
            place = np.flatnonzero(~np.isclose(one, other, CLOSE, 0))[0]
            which = f"update {t} has {PREFIX}{name}{f'.{place}' * (len(one) > 1)}"
            said = f"and by the config and the order of arrivals it is {other[place]:g}"
            yield True, f"{where}: {which} = {one[place]:g}, {said}"


def trace_columns(line: Timeline, window: slice = slice(None)) -> dict[str, np.ndarray]:
    """What a file says of a timeline besides `worker` and `seconds`: (steps,) or (steps, n).

    That is all that these two don't say. In a race of single arrivals, and where groups read when
    they write, the order of the workers also says which versions are read.
    """
    every, choice = _columns(line, window), line.plan
    by_order: tuple[str, ...] = ("worker",)
    if line.batch is not None or getattr(choice, "read", None) is getattr(choice, "worker", 0):
        by_order = ("worker", "read", "write")
    several = line.batch is None or line.batch.ndim > 1
    return {n: v for n, v in every.items() if n not in by_order or (several and v.ndim > 1)}


def _columns(line: Timeline, window: slice = slice(None)) -> dict[str, np.ndarray]:
    """All that can be said of a timeline."""
    fields = dict(_leaves(line.plan)) | ({} if line.batch is None else {BATCH: line.batch})
    cut = {name: np.asarray(v[window]) for name, v in fields.items()}
    cut = {name: v.astype(np.int32) if v.dtype == bool else v for name, v in cut.items()}
    return {
        name: v if v.ndim == 1 else v.reshape(len(v), math.prod(v.shape[1:]))
        for name, v in cut.items()
    }


def _leaves(choice: Plan, inside: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a choice by the names that their columns have."""
    for name, value in zip(getattr(choice, "_fields", ()), choice, strict=True):
        if name == "inner":
            yield from _leaves(value, f"{inside}inner.")
        elif isinstance(value, Mapping):
            yield from ((inside + key, leaf) for key, leaf in value.items())
        elif hasattr(value, "shape"):
            yield inside + name, value


def _unlike(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The rows in which they differ."""
    same = np.isclose(found, expected, CLOSE, 0)
    return np.flatnonzero(~same.reshape(len(same), -1).all(axis=1))


def _fields(table: "pd.DataFrame") -> Iterator[tuple[str, np.ndarray]]:
    """(rows,) or (rows, n) float64 by name."""
    numbers: dict[str, list[str]] = {}
    for column in table.columns:
        if match := COLUMN.fullmatch(column):
            numbers.setdefault(match["name"], []).append(column)
    for name, of in numbers.items():
        if of == [PREFIX + name]:
            yield name, table[of[0]].to_numpy(np.float64)
        else:
            each = [f"{PREFIX}{name}.{n}" for n in range(len(of))]
            yield name, table[each].to_numpy(np.float64)
