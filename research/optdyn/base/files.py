"""Files that are whole or absent, also if the process is killed or the machine stops."""

import contextlib
import errno
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from optdyn.base.errors import InputError, first_line, short_repr
from optdyn.base.trees import Array, Json

FULL = (errno.ENOSPC, errno.EDQUOT)
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
NUMBER = (int, float)
# Types of the figures in summary.json and metrics.jsonl that are read again; null is valid, too.
FIGURE_TYPES: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("epoch", "train_loss", "learning_rate", "momentum"), NUMBER),
    **dict.fromkeys(("simulated_seconds", "simulated_seconds_per_step", "wall_seconds"), NUMBER),
    **dict.fromkeys(("staleness_mean", "test_loss", "test_accuracy"), NUMBER),
    **{"step": NUMBER, "steps": int, "status": str, "versions": dict, "device": dict},
    "staleness_histogram": list,
    "dropped_arrivals": int,
}


class WorkdirError(InputError):
    """A workdir that cannot be used."""


class DiskFull(Exception):
    """Something could not be written for want of space; the message is one line."""

    def __init__(self, what: object, whole: str = "what was saved before is whole"):
        how = "the same command goes on when there is space"
        super().__init__(f"disk full at {what}: {whole}; {how}")
        self.what = what


@contextlib.contextmanager
def disk_full_errors(what: object = None) -> Iterator[None]:
    """Turns errors of a full disk into `DiskFull` at `what`, by default the error's file."""
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        if full := _disk_full_cause(error):
            raise DiskFull(what or getattr(full, "filename", None) or "a file") from error
        raise


@contextlib.contextmanager
def permission_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in DENIED or not error.filename:
            raise
        raise WorkdirError(f"{error.filename}: cannot be used ({short_line(error)})") from error


@contextlib.contextmanager
def workdir_errors(line: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turns `OSError` and errors of these kinds into `WorkdirError`: the line, then the reason."""
    caught: tuple[type[Exception], ...] = (OSError, *kinds)
    try:
        yield
    except caught as error:
        raise WorkdirError(f"{line} ({short_line(error)})") from error


def _disk_full_cause(error: BaseException | None) -> BaseException | None:
    """Returns the error of a full disk among causes; some libraries say it in their text only."""
    while error is not None:
        text = str(error)
        if getattr(error, "errno", 0) in FULL or any(os.strerror(n) in text for n in FULL):
            return error
        error = error.__cause__ or error.__context__
    return None


def write(path: Path, text: str, suffix: str = "part") -> None:
    """Replaces the file in one step; writers at a time need other suffixes. Raises `DiskFull`."""
    temporary = path.with_name(f".{path.name}.{suffix}")
    _replace(path, temporary, lambda file: file.write(text.encode()))


def as_json(value: Json) -> str:
    """Returns the value as JSON, with null for numbers that are not finite."""
    return json.dumps(finite(value), indent=2)


def write_json(path: Path, value: Json) -> None:
    write(path, as_json(value) + "\n")


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Replaces the file in one step. Raises `DiskFull`."""
    temporary = path.with_name(f".{path.stem}.part.npz")
    _replace(path, temporary, lambda file: np.savez(file, **dict[str, Any](arrays)))


def _replace(path: Path, temporary: Path, put: Callable[[IO[bytes]], object]) -> None:
    with disk_full_errors(path):
        try:
            with temporary.open("wb") as file:
                put(file)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)  # it takes space that is needed
            raise
        os.replace(temporary, path)
        sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file's contents, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(path: Path, text: str) -> None:
    """Adds the text to the end of the file. Raises `DiskFull`; the last line may then be torn."""
    with disk_full_errors(path), path.open("a") as file:
        file.write(text)


def crc32(path: Path, start: int = 0, size: float = math.inf) -> int:
    """Returns the checksum of up to `size` bytes of the file from `start` on."""
    total = 0
    with path.open("rb") as file:
        file.seek(start)
        while piece := file.read(int(min(size, 2**20))):
            total, size = zlib.crc32(piece, total), size - len(piece)
    return total


class AppendedBytes(NamedTuple):
    """The contents of a file that only grows: `size` bytes from `start` on, and their checksum."""

    size: int = 0
    crc32: int = 0
    start: int = 0

    def plus(self, content: bytes) -> "AppendedBytes":
        return self._replace(size=self.size + len(content), crc32=zlib.crc32(content, self.crc32))

    def difference(self, path: Path) -> str:
        """Returns how the file differs from these contents, which more may follow; '' if not."""
        try:
            present = max(path.stat().st_size - self.start, 0) if path.exists() else 0
            if present < self.size:
                return f"{present:,} of {self.size:,} bytes are there"
            same = not self.size or crc32(path, self.start, self.size) == self.crc32
            return "" if same else f"its first {self.size:,} bytes are others"
        except OSError as error:
            return short_line(error)


def read_json(path: Path) -> Json:
    """Returns the object in the file, {} if there is no file. Raises `WorkdirError`."""
    unreadable = workdir_errors(f"{path}: cannot be read", ValueError)
    with unreadable, contextlib.suppress(FileNotFoundError):
        return _parse_object(path.read_text())
    return {}


def read_rows(path: Path, size: int | None = None) -> list[Json]:
    """Returns the objects in a file's lines, or in its first `size` bytes, without a torn last
    line.

    Raises `WorkdirError`.
    """
    if not path.exists():
        return []
    with workdir_errors(f"{path}: cannot be read", ValueError):
        lines = path.read_bytes()[:size].decode().split("\n")[:-1]
        return [_parse_object(line) for line in lines if line]


def finite(value: Any) -> Any:
    """Returns the value as JSON has it: lists, and None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def short_line(error: BaseException) -> str:
    return first_line(error)[:160]


def _parse_object(text: str) -> Json:
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def odd_figure(row: Mapping[str, object]) -> str:
    """Returns a line on the first figure of another type than runs write; '' if there is none."""
    for key, value in row.items():
        kind = FIGURE_TYPES.get(key, object)
        large = isinstance(value, int) and abs(value) >= 2**63
        odd = isinstance(value, bool) and key in FIGURE_TYPES
        if large or odd or not (value is None or isinstance(value, kind)):
            return f"{key} = {short_repr(value)} is not what a run writes there"
    return ""
