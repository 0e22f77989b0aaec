"""The states of a run on disk, `checkpoints/`: the last two, each whole or absent.

A folder a state, called by its number of updates, as Orbax writes it, with a checksum of every
file. Large tables of versions are files of their own (`versions.py`). `run.json` there has what the
run's own files held when the state was saved, so that a run goes on only from where they reach.
"""

import contextlib
import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from optdyn.base.files import (
    AppendedBytes,
    DiskFull,
    WorkdirError,
    crc32,
    disk_full_errors,
    read_json,
    short_line,
    sync,
    write_json,
)
from optdyn.base.trees import Json, Params, Tree
from optdyn.core import snapshots
from optdyn.train import versions

SUMS = "crc32.json"  # written last into a checkpoint: without it there is none
RECORD = "run.json"  # of a checkpoint: {"files": {name: Written}, ...}
FILES = 2**16  # bytes that a checkpoint takes besides its arrays
Name = tuple[str, ...]


def _names(tree: Tree) -> dict[Name, Tree]:
    """The arrays of a state by name: a name has no types, as what is saved has none."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    part = partial(jax.tree_util.keystr, simple=True)
    return {tuple(part((key,)) for key in path): leaf for path, leaf in leaves}


# One checkpoint at a time, or others would take the room that it was found to have.
SAVING = RLock()


class Checkpoints:
    """The last two states of a run, with a checksum of every file.

    Opening finds the latest that the files of the run reach, and changes none. Raises
    `WorkdirError` if they reach none, or if a file of that checkpoint is not what was written:
    before it is parsed, since what parses a damaged file may fail in any way, or not at all.
    """

    def __init__(self, workdir: Path):
        self.path = (workdir / "checkpoints").absolute()
        self.record: Callable[[], Json] = dict  # syncs files, and says what is in them
        self._latest, self.passed = self._found(workdir)
        with disk_full_errors(self.path):
            self.path.mkdir(exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2,
            create=False,
            enable_async_checkpointing=False,
            cleanup_tmp_directories=True,
            multiprocessing_options=_alone(jax.process_index()),
        )
        try:
            self._manager = ocp.CheckpointManager(self.path, options=options)
        except (OSError, ValueError, KeyError, TypeError):
            for step in _whole(workdir):  # it looks into all
                self._verify(step)
            raise

    def _found(self, workdir: Path) -> tuple[int | None, str]:
        """The latest step to go on from, if any; and why not from a later one, in words."""
        passed = ""
        for step in sorted(_whole(workdir), reverse=True):
            self._verify(step)
            held = read_json(self.path / str(step) / RECORD).get("files", {})
            unlike = {
                name: AppendedBytes(*was).difference(workdir / name) for name, was in held.items()
            }
            wrong = [f"{workdir / name} ({why})" for name, why in unlike.items() if why]
            if not wrong:
                return step, passed
            passed = passed or f"not what was saved at update {step:,}: {wrong[0]}"
        if passed:
            raise WorkdirError(
                f"{passed}; put that file back, or move {workdir} away to start again"
            )
        return None, ""

    def recorded(self) -> Json:
        """What `record` said when the latest state was saved; {} if there is none."""
        return read_json(self.path / str(self._latest) / RECORD)

    def _remove_others(self) -> None:
        """Removes checkpoints that were not whole, or are beyond where the run went on from."""
        for folder in self.path.glob("*"):
            number = int(folder.name) if folder.name.isdigit() else -1
            if number > (self._latest or 0) or (number >= 0 and not (folder / SUMS).exists()):
                shutil.rmtree(folder)
        self._manager.reload()

    def save(self, step: int, state: Tree) -> None:
        """Writes the state after `step` updates, unless it is there. Raises `DiskFull`."""
        if step == self.latest():
            return
        folder = self.path / str(step)
        try:
            with disk_full_errors(self.path), SAVING:
                self._remove_others()
                self._has_room(state)
                large = versions.has_large(state)
                kept = state._replace(slots={}) if large else state
                self._manager.save(step, args=ocp.args.StandardSave(kept))
                if large:
                    versions.write(folder, state.slots)
                write_json(folder / RECORD, self.record())
                sums = _file_sums(folder)
                for path in (*folder.rglob("*"), self.path):
                    sync(path)
                write_json(folder / SUMS, sums)
                self._latest = step
        except DiskFull:
            for torn in (folder, *self.path.glob(f"{step}.*")):  # it takes space that is wanted
                shutil.rmtree(torn, ignore_errors=True)
            raise

    def _has_room(self, state: Tree) -> None:
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
            raise self._unusable(step, short_line(error)) from error

    def _restored(self, step: int, like: Tree) -> Tree:
        """What is saved, as `like` by the names of its arrays.

        Raises ValueError if the arrays are others.
        """
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=_alone(jax.process_index()))
        saved = handler.metadata(self.path / str(step) / "default").tree
        leaves, names = _names(like), _names(saved)
        if lacking := leaves.keys() - names.keys():
            raise ValueError(f"it has no {'.'.join(min(lacking))}")
        if left := names.keys() - leaves.keys():
            raise ValueError(f"{'.'.join(min(left))} is not of this run")
        target = jax.tree.unflatten(jax.tree.structure(saved), [leaves[name] for name in names])
        found = _names(self._manager.restore(step, args=ocp.args.StandardRestore(target)))
        return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in leaves])

    def latest(self) -> int | None:
        """The step of the latest checkpoint."""
        return self._latest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    def _verify(self, step: int) -> None:
        folder = self.path / str(step)
        try:
            if damaged := _damaged(folder):
                raise self._unusable(step, f"{damaged} is not as written")
        except OSError as error:
            raise self._unusable(step, short_line(error)) from error

    def _unusable(self, step: int, why: str) -> WorkdirError:
        other = max((other for other in _whole(self.path.parent) if other != step), default=None)
        resume = "the start" if other is None else f"step {other}"
        return WorkdirError(
            f"checkpoint {self.path / str(step)} is corrupt ({why}); move that folder away to "
            f"resume from {resume}"
        )


def _whole(workdir: Path) -> list[int]:
    """The steps of a workdir's checkpoints that are whole."""
    names = (path.parent.name for path in workdir.glob(f"checkpoints/*/{SUMS}"))
    return [int(name) for name in names if name.isdigit()]


def latest(workdir: Path) -> int | None:
    """The step of a workdir's latest whole checkpoint, which is only looked at."""
    return max(_whole(workdir), default=None)


def held_in(record: Json, name: str) -> int:
    """The bytes that a file of the run had, as a checkpoint's record says."""
    return AppendedBytes(*record.get("files", {}).get(name, ())).size


@contextlib.contextmanager
def saving(workdir: Path) -> Iterator[None]:
    """Inside, `DiskFull` says up to which step the run is whole."""
    try:
        with disk_full_errors(workdir):
            yield
    except DiskFull as error:
        whole = f"what was saved up to step {latest(workdir) or 0:,} is whole"
        raise DiskFull(error.what, whole) from error


def parameters(workdir: Path) -> tuple[int, Params]:
    """(step, parameters) of another run's latest checkpoint, whatever its method and layout.

    Raises `WorkdirError` if there is none, or it is none of a run's.
    """
    step = latest(workdir)
    folder = workdir / "checkpoints" / str(step)
    damaged = _damaged(folder)
    rows = (
        (step is None, f"{workdir}: no checkpoint in it; give the workdir of a run"),
        (damaged, f"checkpoint {folder} is corrupt ({damaged} is not as written)"),
    )
    WorkdirError.refuse(rows)
    assert step is not None
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
        raise WorkdirError(f"checkpoint {folder}: no parameters ({short_line(error)})") from error


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
    fields = {name: saved.get(name, {}) for name in snapshots.SnapshotState._fields}
    return snapshots.SnapshotState(**fields).params


def _alone(process: int) -> ocp.options.MultiprocessingOptions:
    """Each process by itself: states are whole on every one."""
    return ocp.options.MultiprocessingOptions(
        primary_host=process,
        active_processes={process},
        barrier_sync_key_prefix=f"process{process}",
    )


def _file_sums(folder: Path) -> dict[str, int]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SUMS)
    return {str(path.relative_to(folder)): crc32(path) for path in files}


def _damaged(folder: Path) -> str:
    """The name of a file of the checkpoint that is not as written; '' if all are."""
    try:
        expected = read_json(folder / SUMS)
    except WorkdirError:
        return SUMS
    sums = _file_sums(folder)
    names = (name for name in expected | sums if sums.get(name) != expected.get(name))
    return next(names, "" if expected else SUMS)


def fingerprint(tree: Tree) -> int:
    """One number for all bits of a pytree of arrays: equal for equal floats."""
    sums = [zlib.crc32(np.ascontiguousarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)]
    return zlib.crc32(json.dumps(sums).encode())
