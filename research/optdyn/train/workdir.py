"""The files of a run. Each is either whole or absent, whenever the process is killed.

config.json     the resolved config            metrics.jsonl   one object a log point
summary.json    final figures and status       checkpoints/    orbax
history.json    every start: when, where, what code, and what it went on from
crc32.json      of a run that has ended: checksums of its summary and of what it recorded
events.*        TensorBoard, the same numbers as metrics.jsonl

A file of checksums, `crc32.json` here and in a checkpoint, is written after its files are synced.
"""

import contextlib
import json
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from tensorboardX import summary as events
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event

from optdyn import experiment as configs
from optdyn.base import lookup
from optdyn.base.files import (
    AppendedBytes,
    DiskFull,
    WorkdirError,
    append,
    as_json,
    crc32,
    disk_full_errors,
    finite,
    odd_figure,
    read_json,
    read_rows,
    sync,
    workdir_errors,
    write,
    write_json,
)
from optdyn.base.trees import Json, Tree
from optdyn.experiment import Config
from optdyn.train.loop import Chunk, Hook

# Keys that may change when a run is resumed.
FREE = ("note", "steps", "log_every", "checkpoint_every", "plan", "tune")
EVENTS = "events.out.tfevents.*"
SUMS = "crc32.json"
LOG, TRACE, SKETCHES, REPLICAS = "metrics.jsonl", "trace.csv", "sketches.npy", "trajectories.npz"
FLUSH = 10.0  # seconds after which TensorBoard sees a log point, at most


def claim(workdir: Path, config: Config, free: Sequence[str] = (), code: str | None = None) -> Json:
    """Makes the workdir this config's, and returns the config that is stored in it.

    The stored config may differ in the dotted keys `free`, or in keys that begin with one of them;
    `steps` may not be fewer than are done. Raises `WorkdirError`, and leaves the workdir as it is,
    if it differs in others, or if an unfinished run was started with other user code than `code`
    (None: the present one) and `config.code` is not 'any'; `ConfigError` if the stored config lacks
    a key.
    """
    text = text_of(config, code)
    with workdir_errors(f"workdir {workdir}: cannot be written"):
        workdir.mkdir(parents=True, exist_ok=True)
        stored = read_json(workdir / "config.json")
        if stored:
            configs.check_whole(stored, config.to_dict(), workdir / "config.json")
        WorkdirError.refuse(_conflicts(workdir, config, stored, text, free))
        if not stored:
            write(workdir / "config.json", text)
        return stored or json.loads(text)


def _conflicts(
    workdir: Path, config: Config, stored: Json, text: str, free: Sequence[str]
) -> Iterator[tuple[object, str]]:
    if not stored:
        has_run = any(workdir.glob("metrics.jsonl")) or any(workdir.glob("points"))
        yield has_run, f"workdir {workdir} holds a run but no config.json"
        return
    before = json.loads(lookup.unnumbered(json.dumps(stored)))
    others = [
        name
        for name in configs.differences(before, json.loads(lookup.unnumbered(text)))
        if not any(f"{name}.".startswith(f"{key}.") for key in (*free, "code"))
    ]
    line = f"its config differs in {', '.join(others)}; give another --workdir"
    yield others, f"workdir {workdir} holds another run: {line}"
    summary = summary_of(workdir)
    yield too_few_steps(workdir, config.steps, summary.get("step") or 0)
    if config.code != lookup.ANY and not is_finished(summary, config.steps):
        other = lookup.changed_files(stored["code"], json.loads(text)["code"])
        line = f"its run was last started with another {other}; give another --workdir"
        yield other, f"workdir {workdir}: {line}, or --config.code=any to go on with other code"


def summary_of(workdir: Path) -> Json:
    """Returns the summary of a run, {} if there is none. Raises `WorkdirError` if it is odd."""
    summary = read_json(workdir / "summary.json")
    if why := odd_figure(summary):
        raise WorkdirError(f"{workdir / 'summary.json'}: {why}")
    return summary


def text_of(config: Config, code: str | None = None) -> str:
    """Returns the text of `config.json`: the config with checksums of the user's present code."""
    now = lookup.fingerprint(config) if code is None else code
    return configs.to_json(config.with_(code=now))


def is_finished(summary: Mapping[str, Tree], steps: int) -> bool:
    """Returns whether a run with this summary needs no update to have done so many steps.

    One that ended `worse` has a finite state to go on from, though it counts as diverged.
    """
    done = summary.get("step") or steps  # a tuner's summary has none
    status = summary.get("status")
    if status == "diverged" and not summary.get("worse"):
        return True
    return status in ("completed", "diverged") and done >= steps


def write_checksums(workdir: Path, summary: Json) -> None:
    """Writes checksums of the recorded files of an ended run, and of its summary, written next."""
    paths = [
        workdir / name for name in (LOG, TRACE, SKETCHES, REPLICAS) if (workdir / name).exists()
    ]
    for path in paths:
        sync(path)
    sums = {path.name: crc32(path) for path in paths}
    text = as_json(summary) + "\n"
    write_json(workdir / SUMS, {**sums, "summary.json": zlib.crc32(text.encode())})


def damaged(workdir: Path) -> str:
    """Returns the first file of an ended run that has changed since; '' if none has."""
    try:
        sums = read_json(workdir / SUMS)
        if "summary.json" not in sums:
            return SUMS
        paths = {workdir / name: value for name, value in sums.items()}
        changed = (p.name for p, value in paths.items() if not p.exists() or crc32(p) != value)
        return next(changed, "")
    except (OSError, WorkdirError):
        return SUMS


def free_keys(config: Config) -> tuple[str, ...]:
    """Returns the keys that may change when a config's run is resumed."""
    kept = ["steps"] if config.replicas.count else []  # replicas are recorded in one array
    kept += ["log_every"] if config.probes.steer else []  # momentum is steered at log points
    return tuple(key for key in FREE if key not in kept)


def too_few_steps(workdir: Path, steps: int, done: int) -> tuple[bool, str]:
    """Returns whether a workdir has done more than `steps`, and the line that refuses it."""
    expected = f"config.steps = {steps} must be as many or more; give another --workdir for fewer"
    return steps < done, f"workdir {workdir} has done {done:,} steps: {expected}"


def tag(name: str) -> str:
    """Returns TensorBoard's name of a logged figure, with the group that it is shown in."""
    kind, _, rest = name.partition("_")
    if name in ("epoch", "simulated_seconds", "wall_seconds"):
        return f"time/{name}"
    if kind in ("train", "test") and rest:  # the loss of both sets side by side
        return f"{rest}/{kind}"
    if name == "learning_rate" or name.startswith("effective"):
        return f"learning_rate/{name}"
    if kind == "staleness":
        return f"staleness/{rest}"
    return f"momentum/{name}" if "momentum" in name else f"probes/{name}"


class Metrics(Hook):
    """Writes the log: `metrics.jsonl`, and the TensorBoard event file, which repeats it.

    Opening keeps the first `size` bytes and rewrites the event file from them, so that no line is
    torn or twice. Raises `DiskFull`.
    """

    def __init__(self, workdir: Path, size: int):
        self._path = workdir / LOG
        content = self._path.read_bytes()[:size] if size else b""
        write(self._path, content.decode())
        self.rows, self._written = read_rows(self._path), AppendedBytes().plus(content)
        stale = set(workdir.glob(EVENTS))
        suffix = f".{time.time_ns()}"  # the default name has whole seconds only
        try:
            with disk_full_errors(workdir / "events.out.tfevents"):
                # Not a SummaryWriter, whose thread would die of a full disk unnoticed.
                self._events = EventsWriter(str(workdir / "events"), suffix)
                for row in self.rows:
                    self._write_events(row)
                self._flush()
        except DiskFull:
            stale = set(workdir.glob(EVENTS)) - stale
            raise
        finally:
            for old in stale:
                old.unlink()

    def chunk(self, chunk: Chunk) -> None:
        if chunk.row is not None:
            self.append(chunk.row)

    def append(self, row: Json) -> None:
        self.rows.append(row)
        line = json.dumps(finite(row)) + "\n"
        append(self._path, line)
        self._written = self._written.plus(line.encode())
        self._write_events(finite(row))
        if time.monotonic() - self._flushed > FLUSH:
            self._flush()

    def synced(self) -> AppendedBytes:
        sync(self._path)
        return self._written

    def summarize(self, config: Config, summary: Mapping[str, object]) -> None:
        """Writes the run's row of TensorBoard's page of hyperparameters; to be called once."""
        defaults, chosen = (json.loads(configs.to_json(c)) for c in (Config(), config))
        changed = {*configs.differences(defaults, chosen), "optimizer.learning_rate", "seed"}
        values = {name: _value(chosen, name) for name in sorted(changed)}
        figures = {
            tag(name): value
            for name, value in summary.items()
            if name.startswith(("train_", "test_")) or name == "simulated_seconds"
        }
        for row in events.hparams(values, figures):
            self._put(Event(summary=row), 0)
        self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with disk_full_errors(self._path), contextlib.suppress(*([OSError] if kind else [])):
            self._events.close()

    def _write_events(self, row: Json) -> None:
        for name, value in row.items():
            if name != "step" and isinstance(value, (int, float)):
                self._put(Event(summary=events.scalar(tag(name), value)), row["step"])

    def _put(self, event: Event, step: int) -> None:
        event.wall_time, event.step = time.time(), step
        with disk_full_errors(self._path.with_name("events.out.tfevents")):
            self._events.write_event(event)

    def _flush(self) -> None:
        with disk_full_errors(self._path.with_name("events.out.tfevents")):
            self._events.flush()
        self._flushed = time.monotonic()


def _value(config: Mapping[str, object], name: str) -> bool | int | float | str:
    found: object = config
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, (bool, int, float, str)) else json.dumps(found)
