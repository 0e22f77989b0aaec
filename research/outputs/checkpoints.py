"""The states of a run on disk, `checkpoints/`: the last two, each whole or absent.

A folder a state, called by its number of updates, as Orbax writes it, with a checksum of every
file. Large tables of versions are files of their own (`versions.py`).
"""

import contextlib
import json
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from optdyn.basics.files import DiskFull, WorkdirError, line_of, read_json, write_json, writing
from optdyn.basics.trees import Params, State, Tree
from optdyn.core import snapshots
from optdyn.outputs import versions

SUMS = "crc32.json"  # written last into a checkpoint: without it there is none
FILES = 2**16  # bytes that a checkpoint takes besides its arrays
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


# One checkpoint at a time, or others would take the room that it was found to have.
SAVING = RLock()


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
