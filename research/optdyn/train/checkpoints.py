"""The last two states of a run on disk, `checkpoints/STEP/`, each whole or absent.

Orbax writes a state, but for large tables of versions (`versions.py`). `run.json` has what the
run's other files contained when the state was saved, so that a run resumes from there only.
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

SUMS = "crc32.json"  # written last into a checkpoint, which is whole with it
RECORD = "run.json"  # {"files": {name: [size, crc32, start]}, ...}
FILES = 2**16  # bytes of a checkpoint besides its arrays
SAVING = RLock()  # one checkpoint at a time, or another would take its disk space


def arrays_by_name(tree: Tree) -> dict[tuple[str, ...], Tree]:
    """Returns the leaves of a state by path; paths have no types, as saved trees have none."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    part = partial(jax.tree_util.keystr, simple=True)
    return {tuple(part((key,)) for key in path): leaf for path, leaf in leaves}


class Checkpoints:
    """The last two states of a run, with a checksum of each file.

    Raises `WorkdirError` if no state has the other files that it was saved with, or if a file of it
    is not as written: before it is parsed, which may fail in any way or not at all.
    """

    def __init__(self, workdir: Path):
        self.path = (workdir / "checkpoints").absolute()
        self.record: Callable[[], Json] = dict  # syncs the run's files and returns `run.json`
        self._latest, self.why_not_later = self._latest_consistent(workdir)
        with disk_full_errors(self.path):
            self.path.mkdir(exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2,
            create=False,
            enable_async_checkpointing=False,
            cleanup_tmp_directories=True,
            multiprocessing_options=_this_process(),
        )
        try:
            self._manager = ocp.CheckpointManager(self.path, options=options)
        except (OSError, ValueError, KeyError, TypeError):
            for step in _whole(workdir):  # the manager reads all
                self._verify(step)
            raise

    def _latest_consistent(self, workdir: Path) -> tuple[int | None, str]:
        skipped = ""
        for step in sorted(_whole(workdir), reverse=True):
            self._verify(step)
            files = read_json(self.path / str(step) / RECORD).get("files", {})
            unlike = {
                name: AppendedBytes(*was).difference(workdir / name) for name, was in files.items()
            }
            wrong = [f"{workdir / name} ({why})" for name, why in unlike.items() if why]
            if not wrong:
                return step, skipped
            skipped = skipped or f"not what was saved at update {step:,}: {wrong[0]}"
        if skipped:
            raise WorkdirError(
                f"{skipped}; put that file back, or move {workdir} away to start again"
            )
        return None, ""

    def recorded(self) -> Json:
        """Returns the `run.json` of the latest state; {} if there is none."""
        return read_json(self.path / str(self._latest) / RECORD)

    def _remove_others(self) -> None:
        for folder in self.path.glob("*"):
            number = int(folder.name) if folder.name.isdigit() else -1
            if number > (self._latest or 0) or (number >= 0 and not (folder / SUMS).exists()):
                shutil.rmtree(folder)
        self._manager.reload()

    def save(self, step: int, state: Tree) -> None:
        """Writes the state after `step` updates, unless it is there already. Raises `DiskFull`."""
        if step == self.latest():
            return
        folder = self.path / str(step)
        try:
            with disk_full_errors(self.path), SAVING:
                self._remove_others()
                needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + FILES
                if shutil.disk_usage(self.path).free < needed:
                    raise DiskFull(self.path)  # now, as Orbax may not survive a stop midway
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
            for torn in (folder, *self.path.glob(f"{step}.*")):  # frees the disk
                shutil.rmtree(torn, ignore_errors=True)
            raise

    def restore(self, like: Tree) -> tuple[int, Tree] | None:
        """Returns (step, state) of the latest checkpoint, shaped as `like`; None without one."""
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
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=_this_process())
        saved = handler.metadata(self.path / str(step) / "default").tree
        leaves, names = arrays_by_name(like), arrays_by_name(saved)
        if lacking := leaves.keys() - names.keys():
            raise ValueError(f"it has no {'.'.join(min(lacking))}")
        if left := names.keys() - leaves.keys():
            raise ValueError(f"{'.'.join(min(left))} is not of this run")
        target = jax.tree.unflatten(jax.tree.structure(saved), [leaves[name] for name in names])
        found = arrays_by_name(self._manager.restore(step, args=ocp.args.StandardRestore(target)))
        return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in leaves])

    def latest(self) -> int | None:
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
    names = (path.parent.name for path in workdir.glob(f"checkpoints/*/{SUMS}"))
    return [int(name) for name in names if name.isdigit()]


def latest(workdir: Path) -> int | None:
    """Returns the step of a workdir's latest whole checkpoint; None if there is none."""
    return max(_whole(workdir), default=None)


def bytes_in(record: Json, name: str) -> int:
    """Returns the bytes that a file of the run had, as a checkpoint's record has them."""
    return AppendedBytes(*record.get("files", {}).get(name, ())).size


@contextlib.contextmanager
def saving(workdir: Path) -> Iterator[None]:
    """Returns a context in which `DiskFull` says up to which step the run is saved."""
    try:
        with disk_full_errors(workdir):
            yield
    except DiskFull as error:
        whole = f"what was saved up to step {latest(workdir) or 0:,} is whole"
        raise DiskFull(error.what, whole) from error


def parameters(workdir: Path) -> tuple[int, Params]:
    """Returns (step, parameters) of another run's latest checkpoint, of any method and layout.

    Raises `WorkdirError` if there is none, or it is not of a run.
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
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=_this_process())
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
    """Returns the parameters of the first node, the newest of a table, or the workers' mean."""
    if "state" in saved:
        return _parameters(jax.tree.map(lambda leaf: leaf[0], saved["state"]))
    if "inner" in saved:
        return _parameters(saved["inner"])
    if "params" not in saved and "workers" in saved:  # without a server
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), saved["workers"])
    if "slots" not in saved:
        return saved["params"]
    fields = {name: saved.get(name, {}) for name in snapshots.SnapshotState._fields}
    return snapshots.SnapshotState(**fields).params


def _this_process() -> ocp.options.MultiprocessingOptions:
    """States are whole on all processes, so each saves its state by itself."""
    process = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=process,
        active_processes={process},
        barrier_sync_key_prefix=f"process{process}",
    )


def _file_sums(folder: Path) -> dict[str, int]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SUMS)
    return {str(path.relative_to(folder)): crc32(path) for path in files}


def _damaged(folder: Path) -> str:
    try:
        expected = read_json(folder / SUMS)
    except WorkdirError:
        return SUMS
    sums = _file_sums(folder)
    names = (name for name in expected | sums if sums.get(name) != expected.get(name))
    return next(names, "" if expected else SUMS)


def fingerprint(tree: Tree) -> int:
    """Returns a checksum of all bits of a pytree of arrays."""
    sums = [zlib.crc32(np.ascontiguousarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)]
    return zlib.crc32(json.dumps(sums).encode())
