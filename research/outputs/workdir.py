"""The files of a run. Each is either whole or absent, whenever the process is killed.

config.json     the resolved config            metrics.jsonl   one object a log point
summary.json    final figures and status       checkpoints/    orbax
history.json    every start: when, where, what code, and what it went on from
events.*        TensorBoard, the same numbers as metrics.jsonl
"""

import contextlib
import json
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from tensorboardX import summary as events
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event

from optdyn import config as configs
from optdyn.basics.files import (
    DiskFull,
    WorkdirError,
    finite,
    line_of,
    missing,
    read_json,
    rows,
    unlike,
    write,
    write_json,
    writing,
)
from optdyn.basics.trees import Json, Params, State, Tree
from optdyn.core import snapshots
from optdyn.experiment import Experiment
from optdyn.outputs import versions
from optdyn.problem import own_code

# Of a run: keys that cannot change its floats, and its length.
FREE = ("note", "steps", "log_every", "checkpoint_every", "plan", "tune")
SUMS = "crc32.json"  # written last into a checkpoint: without it there is none
EVENTS = "events.out.tfevents.*"
FILES = 2**16  # bytes that a checkpoint takes besides its arrays
SHOWN = 10.0  # seconds after which TensorBoard sees a log point, at most


def claim(
    workdir: Path, config: Experiment, free: Sequence[str] = (), code: str | None = None
) -> Json:
    """Makes the workdir this config's; the config that it held, which may differ in keys of `free`.

    Raises `WorkdirError` if it differs in others, and leaves the workdir as it is. `free`: dotted
    keys, or what they begin with. `steps` among them may be any number from those that are done.
    Likewise if what is not finished was started with other code of the user's own than `code`
    (None: what there is now), unless `config.code` is 'any'; before there were checksums a workdir
    did not say.
    """
    text = text_of(config, code)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        held = read_json(workdir / "config.json")
        if held:
            known = configs.with_new_keys(held)
            others = [
                name
                for name in configs.differences(known, json.loads(text))
                if not any(f"{name}.".startswith(f"{key}.") for key in (*free, "code"))
            ]
            if others:
                raise WorkdirError(
                    f"workdir {workdir} holds another run: its config differs in "
                    f"{', '.join(others)}; give another --workdir"
                )
            summary = read_json(workdir / "summary.json")
            if why := unlike(summary):
                raise WorkdirError(f"{workdir / 'summary.json'}: {why}")
            enough(workdir, config.steps, summary.get("step") or 0)
            if not is_finished(summary, config.steps):
                _of_its_code(workdir, config, known["code"], json.loads(text)["code"])
            return known
        if any(workdir.glob("metrics.jsonl")) or any(workdir.glob("points")):
            raise WorkdirError(f"workdir {workdir} holds a run but no config.json")
        write(workdir / "config.json", text)
        return json.loads(text)
    except OSError as error:
        raise WorkdirError(f"workdir {workdir}: cannot be written ({line_of(error)})") from error


def text_of(config: Experiment, code: str | None = None) -> str:
    """What `config.json` holds: the config with checksums of the user's code, by default of now."""
    now = own_code.fingerprint(config) if code is None else code
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


def _of_its_code(workdir: Path, config: Experiment, held: object, now: str) -> None:
    if config.code != own_code.ANY and (said := own_code.changed(held, now)):
        raise WorkdirError(
            f"workdir {workdir}: the code of {said}, or of what is imported there, is not what its "
            "run was last started with; give another --workdir, or --config.code=any to go on with "
            "other code"
        )


def free(config: Experiment) -> tuple[str, ...]:
    """Keys that may change where a config's workdir goes on."""
    kept = ["steps"] if config.replicas.count else []  # of a recording, one array
    kept += ["log_every"] if config.probes.steer else []  # it steers when it logs
    return tuple(key for key in FREE if key not in kept)


def enough(workdir: Path, steps: int, done: int) -> None:
    """Raises `WorkdirError` if a workdir has done more than so many steps."""
    if steps < done:
        raise WorkdirError(
            f"workdir {workdir} has done {done:,} steps: config.steps = {steps} must be as many or "
            "more; give another --workdir for fewer"
        )


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


class Metrics:
    """`metrics.jsonl` and the TensorBoard event file, which repeats it.

    Opening keeps the rows up to `step` and rewrites the event file from them, so that a killed run
    leaves neither a torn line nor a log point twice. Raises `DiskFull`.
    """

    def __init__(self, workdir: Path, step: int):
        self._path = workdir / "metrics.jsonl"
        before = rows(self._path, "step")
        for number, row in enumerate(before, start=1):
            if why := unlike(row) or missing(row, ("wall_seconds",)):
                raise WorkdirError(f"{self._path}: line {number}: {why}")
        self.rows = [row for row in before if row["step"] <= step]
        write(self._path, "".join(json.dumps(row) + "\n" for row in self.rows))
        stale = set(workdir.glob(EVENTS))
        suffix = f".{time.time_ns()}"  # the default name holds whole seconds only
        try:
            with writing(workdir / "events.out.tfevents"):
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
        self._file = self._path.open("a")

    def append(self, row: Json) -> None:
        """Adds a line to the log, and to the event file. Raises `DiskFull`."""
        self.rows.append(row)
        with writing(self._path):
            self._file.write(json.dumps(finite(row)) + "\n")
            self._file.flush()
        self._write_events(finite(row))
        if time.monotonic() - self._flushed > SHOWN:
            self._flush()

    def end(self, config: Experiment, summary: Mapping[str, object]) -> None:
        """What TensorBoard's page of hyperparameters shows of a run: to be written once."""
        usual, given = (json.loads(configs.to_json(c)) for c in (configs.usual(), config))
        changed = {*configs.differences(usual, given), "optimizer.learning_rate", "seed"}
        values = {name: _value(given, name) for name in sorted(changed)}
        figures = {tag(name): value for name, value in summary.items() if _is_tagged(name)}
        for made in events.hparams(values, figures):
            self._put(Event(summary=made), 0)
        self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for file in (self._file, self._events):
            with writing(self._path), contextlib.suppress(*([OSError] if kind else [])):
                file.close()

    def _write_events(self, row: Json) -> None:
        for name, value in row.items():
            if name != "step" and isinstance(value, (int, float)):
                self._put(Event(summary=events.scalar(tag(name), value)), row["step"])

    def _put(self, event: Event, step: int) -> None:
        event.wall_time, event.step = time.time(), step
        with writing(self._path.with_name("events.out.tfevents")):
            self._events.write_event(event)

    def _flush(self) -> None:
        with writing(self._path.with_name("events.out.tfevents")):
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


Name = tuple[str, ...]


def _names(tree: Tree) -> dict[Name, Tree]:
    """The arrays of a state by name: a name has no types, as what is saved has none."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    part = partial(jax.tree_util.keystr, simple=True)
    return {tuple(part((key,)) for key in path): leaf for path, leaf in leaves}


def _saved(wanted: Iterable[Name], names: Iterable[Name]) -> list[Name]:
    """By which of the `names` each of those wanted is saved.

    Fields of an `inner` state once lay beside those of the state around it. Raises ValueError if
    one is not there, or if any is left.
    """

    def without(name: Name) -> Name:
        return tuple(part for part in name if part != "inner")

    left = dict.fromkeys(names)
    once = {without(name): name for name in left}
    found = []
    for name in wanted:
        known = name if name in left else once.get(without(name))
        if known not in left:
            raise ValueError(f"it has no {'.'.join(name)}")
        left.pop(known)
        found.append(known)
    if left:
        raise ValueError(f"{'.'.join(min(left))} is not of this run")
    return found


SAVING = (
    RLock()
)  # one checkpoint at a time, or others would take the room that it was found to have


class Checkpoints:
    """The last two states of a run, with a checksum of every file.

    Opening raises `WorkdirError` if a file of the latest is not what was written: before it is
    parsed, since what parses a damaged file may fail in any way, or not at all.
    """

    def __init__(self, workdir: Path):
        self.path = (workdir / "checkpoints").absolute()
        for step in self._steps():
            if not (self.path / str(step) / SUMS).exists():  # killed before it was whole
                shutil.rmtree(self.path / str(step))
        self._verify()
        with writing(self.path):
            self.path.mkdir(exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2,
            create=False,
            enable_async_checkpointing=False,
            cleanup_tmp_directories=True,
            multiprocessing_options=_alone(jax.process_index()),
        )
        self._manager = ocp.CheckpointManager(self.path, options=options)

    def save(self, step: int, state: State) -> None:
        """Writes the state after `step` updates, unless it is there. Raises `DiskFull`."""
        if step == self.latest():
            return
        folder = self.path / str(step)
        try:
            with writing(self.path), SAVING:
                self._has_room(state)
                large = versions.has_large(state)
                kept = state._replace(slots={}) if large else state
                self._manager.save(step, args=ocp.args.StandardSave(kept))
                if large:
                    versions.write(folder, state.slots)
                write_json(folder / SUMS, _file_sums(folder))
        except DiskFull:
            for torn in (folder, *self.path.glob(f"{step}.*")):  # it takes space that is wanted
                shutil.rmtree(torn, ignore_errors=True)
            raise

    def _has_room(self, state: State) -> None:
        """Raises `DiskFull` before anything is written: Orbax may not survive a stop midway."""
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + FILES
        if shutil.disk_usage(self.path).free < needed:
            raise DiskFull(self.path)

    def restore(self, like: Tree) -> tuple[int, Tree] | None:
        """(step, state) of the latest checkpoint, shaped as `like`; None if there is none."""
        step = self.latest()
        if step is None:
            return None
        try:
            folder = self.path / str(step)
            large = (folder / versions.FOLDER).exists()
            kept = like._replace(slots={}) if large else like
            whole = self._restored(step, kept)
            return step, whole._replace(slots=versions.read(folder, like.slots)) if large else whole
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._unusable(step, line_of(error)) from error

    def _restored(self, step: int, like: Tree) -> Tree:
        """What is saved, as `like` by the names of its arrays.

        So fields in which there is no array may come and go from one version to the next. Raises
        ValueError if the arrays are others.
        """
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=_alone(jax.process_index()))
        saved = handler.metadata(self.path / str(step) / "default").tree
        leaves, names = _names(like), _names(saved)
        held = _saved(leaves, names)
        by_name = dict(zip(held, leaves.values(), strict=True))
        target = jax.tree.unflatten(jax.tree.structure(saved), [by_name[name] for name in names])
        found = _names(self._manager.restore(step, args=ocp.args.StandardRestore(target)))
        return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in held])

    def latest(self) -> int | None:
        """The step of the latest checkpoint."""
        return max(self._steps(), default=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    def _steps(self) -> list[int]:
        return [int(path.name) for path in self.path.glob("*") if path.name.isdigit()]

    def _verify(self) -> None:
        step = self.latest()
        if step is None:
            return
        folder = self.path / str(step)
        try:
            expected, sums = read_json(folder / SUMS), _file_sums(folder)
        except (OSError, WorkdirError) as error:
            raise self._unusable(step, line_of(error)) from error
        damaged = [name for name in expected if sums.get(name) != expected[name]]
        if damaged or not expected:
            raise self._unusable(step, f"{damaged[0] if damaged else SUMS} is not as written")

    def _unusable(self, step: int, why: str) -> WorkdirError:
        earlier = max((other for other in self._steps() if other < step), default=None)
        resume = "the start" if earlier is None else f"step {earlier}"
        return WorkdirError(
            f"checkpoint {self.path / str(step)} is corrupt ({why}); move that folder away to "
            f"resume from {resume}"
        )


def latest(workdir: Path) -> int | None:
    """The step of a workdir's latest whole checkpoint, which is only looked at."""
    whole = (path.parent.name for path in workdir.glob(f"checkpoints/*/{SUMS}"))
    return max((int(name) for name in whole if name.isdigit()), default=None)


@contextlib.contextmanager
def saving(workdir: Path) -> Iterator[None]:
    """Inside, `DiskFull` says up to which step the run is whole."""
    try:
        with writing(workdir):
            yield
    except DiskFull as error:
        whole = f"what was saved up to step {latest(workdir) or 0:,} is whole"
        raise DiskFull(error.what, whole) from error


def parameters(workdir: Path) -> tuple[int, Params]:
    """(step, parameters) of another run's latest checkpoint, whatever its method and layout.

    Raises `WorkdirError` if there is none, or it is none of a run's.
    """
    step = latest(workdir)
    if step is None:
        raise WorkdirError(f"{workdir}: no checkpoint in it; give the workdir of a run")
    folder = workdir / "checkpoints" / str(step)
    sums, expected = _file_sums(folder), read_json(folder / SUMS)
    if damaged := [name for name in expected if sums.get(name) != expected[name]]:
        raise WorkdirError(f"checkpoint {folder} is corrupt ({damaged[0]} is not as written)")
    process = jax.process_index()
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=_alone(process))
    try:
        path = (folder / "default").absolute()
        tree = handler.metadata(path).tree
        whole = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        saved = handler.restore(path, args=ocp.args.PyTreeRestore(restore_args=whole))
        large = (folder / versions.FOLDER).exists()
        return step, _parameters({**saved, "slots": versions.mapped(folder)} if large else saved)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WorkdirError(f"checkpoint {folder}: no parameters ({line_of(error)})") from error


def _parameters(saved: Mapping[str, Tree]) -> Params:
    """The parameters in a saved state: of the first node, the newest of a table, or their mean."""
    if "state" in saved:
        return _parameters(jax.tree.map(lambda leaf: leaf[0], saved["state"]))
    if "inner" in saved:
        return _parameters(saved["inner"])
    if "params" not in saved and "workers" in saved:  # each has its own, and nobody those of all
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), saved["workers"])
    if "slots" not in saved:
        return saved["params"]
    fields = {name: saved.get(name, {}) for name in snapshots.State._fields}
    return snapshots.State(**fields).params


def _alone(process: int) -> ocp.options.MultiprocessingOptions:
    """Each process by itself: states are whole on every one."""
    return ocp.options.MultiprocessingOptions(
        primary_host=process,
        active_processes={process},
        barrier_sync_key_prefix=f"process{process}",
    )


def _file_sums(folder: Path) -> dict[str, int]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SUMS)
    return {str(path.relative_to(folder)): _sum(path) for path in files}


def _sum(path: Path) -> int:
    """Read in pieces: a table of versions is as large as the memory that it takes."""
    total = 0
    with path.open("rb") as file:
        while piece := file.read(2**20):
            total = zlib.crc32(piece, total)
    return total


def fingerprint(tree: Tree) -> int:
    """One number for all bits of a pytree of arrays: equal for equal floats."""
    sums = [zlib.crc32(np.ascontiguousarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)]
    return zlib.crc32(json.dumps(sums).encode())
