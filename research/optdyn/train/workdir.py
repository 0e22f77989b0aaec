"""The files of a run. Each is either whole or absent, whenever the process is killed.

config.json     the resolved config            metrics.jsonl   one object a log point
summary.json    final figures and status       checkpoints/    orbax
history.json    every start: when, where, what code, and what it went on from
crc32.json      of a run that has ended: checksums of its summary and of what it recorded
events.*        TensorBoard, the same numbers as metrics.jsonl

Of files that vouch for others, `crc32.json` here and in a checkpoint, those others are on the disk
before they are written.
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

# Of a run: keys that cannot change its floats, and its length.
FREE = ("note", "steps", "log_every", "checkpoint_every", "plan", "tune")
EVENTS = "events.out.tfevents.*"
SUMS = "crc32.json"
LOG, TRACE, SKETCHES, REPLICAS = "metrics.jsonl", "trace.csv", "sketches.npy", "trajectories.npz"
SHOWN = 10.0  # seconds after which TensorBoard sees a log point, at most


def claim(workdir: Path, config: Config, free: Sequence[str] = (), code: str | None = None) -> Json:
    """Makes the workdir this config's; the config that it held, which may differ in keys of `free`.

    Raises `WorkdirError` if it differs in others, and leaves the workdir as it is. `free`: dotted
    keys, or what they begin with. `steps` among them may be any number from those that are done.
    Likewise if what is not finished was started with other code of the user's own than `code`
    (None: what there is now), unless `config.code` is 'any'. `ConfigError` if what it held lacks a
    key.
    """
    text = text_of(config, code)
    with workdir_errors(f"workdir {workdir}: cannot be written"):
        workdir.mkdir(parents=True, exist_ok=True)
        held = read_json(workdir / "config.json")
        if held:
            configs.check_whole(held, config.to_dict(), workdir / "config.json")
        WorkdirError.refuse(_is_of_another(workdir, config, held, text, free))
        if not held:
            write(workdir / "config.json", text)
        return held or json.loads(text)


def _is_of_another(
    workdir: Path, config: Config, held: Json, text: str, free: Sequence[str]
) -> Iterator[tuple[object, str]]:
    """In what a workdir that has the config `held` is not that of this one, whose `text` it is."""
    if not held:
        has_run = any(workdir.glob("metrics.jsonl")) or any(workdir.glob("points"))
        yield has_run, f"workdir {workdir} holds a run but no config.json"
        return
    before = json.loads(lookup.unnumbered(json.dumps(held)))
    others = [
        name
        for name in configs.differences(before, json.loads(lookup.unnumbered(text)))
        if not any(f"{name}.".startswith(f"{key}.") for key in (*free, "code"))
    ]
    said = f"its config differs in {', '.join(others)}; give another --workdir"
    yield others, f"workdir {workdir} holds another run: {said}"
    summary = summary_of(workdir)
    yield too_few(workdir, config.steps, summary.get("step") or 0)
    if config.code != lookup.ANY and not is_finished(summary, config.steps):
        other = lookup.changed_files(held["code"], json.loads(text)["code"])
        said = f"its run was last started with another {other}; give another --workdir"
        yield other, f"workdir {workdir}: {said}, or --config.code=any to go on with other code"


def summary_of(workdir: Path) -> Json:
    """The summary of a run, {} if it has none; `WorkdirError` if it is none that a run writes."""
    summary = read_json(workdir / "summary.json")
    if why := odd_figure(summary):
        raise WorkdirError(f"{workdir / 'summary.json'}: {why}")
    return summary


def text_of(config: Config, code: str | None = None) -> str:
    """What `config.json` holds: the config with checksums of the user's code, by default of now."""
    now = lookup.fingerprint(config) if code is None else code
    return configs.to_json(config.with_(code=now))


def is_finished(summary: Mapping[str, Tree], steps: int) -> bool:
    """Whether a run has nothing left to do to have done so many steps.

    One whose loss is not finite has nothing left. One that ended `worse`, though it counts as
    diverged, has a finite state to go on from.
    """
    done = summary.get("step") or steps  # what `launch.tune` writes has none
    status = summary.get("status")
    if status == "diverged" and not summary.get("worse"):
        return True
    return status in ("completed", "diverged") and done >= steps


def vouch(workdir: Path, summary: Json) -> None:
    """Writes checksums of what a run has recorded that has ended, and of its summary to come."""
    paths = [
        workdir / name for name in (LOG, TRACE, SKETCHES, REPLICAS) if (workdir / name).exists()
    ]
    for path in paths:
        sync(path)
    sums = {path.name: crc32(path) for path in paths}
    text = as_json(summary) + "\n"
    write_json(workdir / SUMS, {**sums, "summary.json": zlib.crc32(text.encode())})


def damaged(workdir: Path) -> str:
    """The first file of a run that has ended that is not as it was left; '' if all are."""
    try:
        sums = read_json(workdir / SUMS)
        if "summary.json" not in sums:
            return SUMS
        paths = {workdir / name: value for name, value in sums.items()}
        changed = (p.name for p, value in paths.items() if not p.exists() or crc32(p) != value)
        return next(changed, "")
    except (OSError, WorkdirError):
        return SUMS


def free(config: Config) -> tuple[str, ...]:
    """Keys that may change where a config's workdir goes on."""
    kept = ["steps"] if config.replicas.count else []  # of a recording, one array
    kept += ["log_every"] if config.probes.steer else []  # it steers when it logs
    return tuple(key for key in FREE if key not in kept)


def too_few(workdir: Path, steps: int, done: int) -> tuple[bool, str]:
    """Whether a workdir has done more than so many steps, and the line that says so."""
    said = f"config.steps = {steps} must be as many or more; give another --workdir for fewer"
    return steps < done, f"workdir {workdir} has done {done:,} steps: {said}"


def tag(name: str) -> str:
    """TensorBoard's name of a logged figure: with the group that it is shown in."""
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

    Opening keeps the first `size` bytes and rewrites the event file from them, so that a killed run
    leaves neither a torn line nor a log point twice. Raises `DiskFull`.
    """

    def __init__(self, workdir: Path, size: int):
        self._path = workdir / LOG
        held = self._path.read_bytes()[:size] if size else b""
        write(self._path, held.decode())
        self.rows, self._written = read_rows(self._path), AppendedBytes().plus(held)
        stale = set(workdir.glob(EVENTS))
        suffix = f".{time.time_ns()}"  # the default name holds whole seconds only
        try:
            with disk_full_errors(workdir / "events.out.tfevents"):
                # Not a SummaryWriter: its thread would die of a full disk, and nobody hear of it.
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
        """Adds a line to the log, and to the event file. Raises `DiskFull`."""
        self.rows.append(row)
        line = json.dumps(finite(row)) + "\n"
        append(self._path, line)
        self._written = self._written.plus(line.encode())
        self._write_events(finite(row))
        if time.monotonic() - self._flushed > SHOWN:
            self._flush()

    def synced(self) -> AppendedBytes:
        """What the log has, which is on the disk now."""
        sync(self._path)
        return self._written

    def summarize(self, config: Config, summary: Mapping[str, object]) -> None:
        """What TensorBoard's page of hyperparameters shows of a run: to be written once."""
        usual, given = (json.loads(configs.to_json(c)) for c in (Config(), config))
        changed = {*configs.differences(usual, given), "optimizer.learning_rate", "seed"}
        values = {name: _value(given, name) for name in sorted(changed)}
        figures = {tag(name): value for name, value in summary.items() if _is_tagged(name)}
        for made in events.hparams(values, figures):
            self._put(Event(summary=made), 0)
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


def _is_tagged(name: str) -> bool:
    return name.startswith(("train_", "test_")) or name == "simulated_seconds"


def _value(config: Mapping[str, object], name: str) -> bool | int | float | str:
    """The value of a dotted key, as TensorBoard can show it."""
    found: object = config
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, (bool, int, float, str)) else json.dumps(found)
