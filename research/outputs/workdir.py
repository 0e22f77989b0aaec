"""The files of a run. Each is either whole or absent, whenever the process is killed.

config.json     the resolved config            metrics.jsonl   one object a log point
summary.json    final figures and status       checkpoints/    orbax
events.*        TensorBoard, the same numbers as metrics.jsonl
"""

import json
import math
import os
import shutil
import time
import zlib
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import ConfigDict
from tensorboardX import SummaryWriter

from research import config as configs
from research.outputs.figures import missing, unlike
from research.values import InputError

SUMS = "crc32.json"  # written last into a checkpoint: without it there is none


class WorkdirError(InputError):
    """A workdir that cannot be used; the message is one line."""


def write(path: Path, text: str) -> None:
    """Replaces the file in one step."""
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(text)
    os.replace(aside, path)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replaces the file in one step; numbers that are not finite become null."""
    write(path, json.dumps(_finite(value), indent=2) + "\n")


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Replaces the file in one step."""
    aside = path.with_name(f".{path.stem}.part.npz")
    np.savez(aside, **arrays)
    os.replace(aside, path)


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file, {} if there is none."""
    try:
        return _object(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise WorkdirError(f"{path}: cannot be read ({_line(error)})") from error


def claim(workdir: Path, config: ConfigDict) -> None:
    """Makes the workdir this config's, or raises `WorkdirError` and leaves it as it is."""
    text = configs.to_json(config)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        held = read_json(workdir / "config.json")
        if held:
            names = configs.differences(configs.with_new_keys(held), json.loads(text))
            if names:
                raise WorkdirError(
                    f"workdir {workdir} holds another run: its config differs in "
                    f"{', '.join(names)}; give another --workdir"
                )
        elif any(workdir.glob("metrics.jsonl")) or any(workdir.glob("points")):
            raise WorkdirError(f"workdir {workdir} holds a run but no config.json")
        else:
            write(workdir / "config.json", text)
    except OSError as error:
        raise WorkdirError(f"workdir {workdir}: cannot be written ({_line(error)})") from error


class Metrics:
    """`metrics.jsonl` and the TensorBoard event file, which repeats it.

    Opening keeps the rows up to `step` and rewrites the event file from them, so that a killed run
    leaves neither a torn line nor a log point twice.
    """

    def __init__(self, workdir: Path, step: int):
        path = workdir / "metrics.jsonl"
        before = rows(path)
        for number, row in enumerate(before, start=1):
            if why := unlike(row) or missing(row, ("step", "wall_seconds")):
                raise WorkdirError(f"{path}: line {number}: {why}")
        self.rows = [row for row in before if row["step"] <= step]
        write(path, "".join(json.dumps(row) + "\n" for row in self.rows))
        stale = list(workdir.glob("events.out.tfevents.*"))
        suffix = f".{time.time_ns()}"  # the default name holds whole seconds only
        self._events = SummaryWriter(str(workdir), flush_secs=10, filename_suffix=suffix)
        for row in self.rows:
            self._write_events(row)
        self._events.flush()
        for old in stale:
            old.unlink()
        self._file = path.open("a")

    def append(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._file.write(json.dumps(_finite(row)) + "\n")
        self._file.flush()
        self._write_events(_finite(row))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._events.close()

    def _write_events(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "step" and isinstance(value, (int, float)):
                self._events.add_scalar(name, value, row["step"])


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file."""
    if not path.exists():
        return []
    try:
        lines = path.read_text().split("\n")[:-1]  # what follows the last newline is torn
        return [_object(line) for line in lines if line]
    except (OSError, ValueError) as error:
        raise WorkdirError(f"{path}: cannot be read ({_line(error)})") from error


def _flat(tree: Any) -> Any:
    """A state as it is saved: what one keeps of another, its `inner`, is on a level with the rest.

    So a state is found where it would be by itself.
    """
    if not hasattr(tree, "_fields"):
        return tree
    if "inner" not in tree._fields:
        return type(tree)(*map(_flat, tree))
    rest = {name: leaf for name, leaf in tree._asdict().items() if jax.tree.leaves(leaf)}
    inner = _flat(rest.pop("inner"))
    return (inner if isinstance(inner, dict) else inner._asdict()) | rest


def _nested(like: Any, flat: Any) -> Any:
    """What `_flat` made of such a tree, as that again."""
    if not hasattr(like, "_fields"):
        return flat
    found = flat if isinstance(flat, dict) else flat._asdict()
    return type(like)(
        *(
            _nested(part, found if name == "inner" else found.get(name, part))
            for name, part in zip(like._fields, like, strict=True)
        )
    )


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
        self.path.mkdir(exist_ok=True)
        process = jax.process_index()  # each by itself: states are whole on every process
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2,
            create=False,
            enable_async_checkpointing=False,
            cleanup_tmp_directories=True,
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=process,
                active_processes={process},
                barrier_sync_key_prefix=f"process{process}",
            ),
        )
        self._manager = ocp.CheckpointManager(self.path, options=options)

    def save(self, step: int, state: Any) -> None:
        if step == self.latest():
            return
        self._manager.save(step, args=ocp.args.StandardSave(_flat(state)))
        folder = self.path / str(step)
        write_json(folder / SUMS, _file_sums(folder))

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """(step, state) of the latest checkpoint, shaped as `like`; None if there is none."""
        step = self.latest()
        if step is None:
            return None
        try:
            found = self._manager.restore(step, args=ocp.args.StandardRestore(_flat(like)))
            return step, _nested(like, found)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._unusable(step, _line(error)) from error

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
            raise self._unusable(step, _line(error)) from error
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


def _file_sums(folder: Path) -> dict[str, int]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SUMS)
    return {str(path.relative_to(folder)): zlib.crc32(path.read_bytes()) for path in files}


def fingerprint(tree: Any) -> int:
    """One number for all bits of a pytree of arrays: equal for equal floats."""
    sums = [zlib.crc32(np.ascontiguousarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)]
    return zlib.crc32(json.dumps(sums).encode())


def _line(error: BaseException) -> str:
    """An exception's message, first line, shortened."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.strip().split("\n")[0][:160]
