"""Files that are whole or absent whenever the process is killed or the machine stops.

A disk that is full is `DiskFull`, wherever it is found out: in one line, with what is whole.
"""

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
GOES_ON = "the same command goes on when there is space"
NUMBER = (int, float)
# Kinds of figures in summary.json and metrics.jsonl that others compute with; null is of any.
KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("epoch", "train_loss", "learning_rate", "momentum"), NUMBER),
    **dict.fromkeys(("simulated_seconds", "simulated_seconds_per_step", "wall_seconds"), NUMBER),
    **dict.fromkeys(("staleness_mean", "test_loss", "test_accuracy"), NUMBER),
    **{"step": NUMBER, "steps": int, "status": str, "versions": dict, "device": dict},
    "staleness_histogram": list,
    "dropped_arrivals": int,
}


class WorkdirError(InputError):
    """A workdir that cannot be used; the message is one line."""


class DiskFull(Exception):
    """What cannot be written for want of space; the message is one line."""

    def __init__(self, what: object, whole: str = "what was saved before is whole"):
        super().__init__(f"disk full at {what}: {whole}; {GOES_ON}")
        self.what = what


@contextlib.contextmanager
def writing(what: object = None) -> Iterator[None]:
    """Inside, an error that says that the disk is full becomes `DiskFull` at `what`.

    By default at the file that the error names.
    """
    try:
        yield
    except DiskFull:
        raise
    except Exception as error:
        if full := _full(error):
            raise DiskFull(what or getattr(full, "filename", None) or "a file") from error
        raise


@contextlib.contextmanager
def permitted() -> Iterator[None]:
    """Inside, an error that says that a file may not be used becomes `WorkdirError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in DENIED or not error.filename:
            raise
        raise WorkdirError(f"{error.filename}: cannot be used ({line_of(error)})") from error


@contextlib.contextmanager
def failing(said: str, *kinds: type[Exception]) -> Iterator[None]:
    """Inside, an error of these kinds, or an `OSError`, becomes a `WorkdirError` that says so."""
    caught: tuple[type[Exception], ...] = (OSError, *kinds)
    try:
        yield
    except caught as error:
        raise WorkdirError(f"{said} ({line_of(error)})") from error


def _full(error: BaseException | None) -> BaseException | None:
    """The error, or that which it came of, that says that the disk is full, if one does.

    Libraries that write checkpoints say so in their text only.
    """
    while error is not None:
        text = str(error)
        if getattr(error, "errno", 0) in FULL or any(os.strerror(n) in text for n in FULL):
            return error
        error = error.__cause__ or error.__context__
    return None


def write(path: Path, text: str, aside: str = "part") -> None:
    """Replaces the file in one step. Raises `DiskFull`.

    `aside` ends the name of what is written meanwhile: unlike ones may be written at a time.
    """
    _replace(path, path.with_name(f".{path.name}.{aside}"), lambda file: file.write(text.encode()))


def as_json(value: Json) -> str:
    """The value as JSON; numbers that are not finite become null."""
    return json.dumps(finite(value), indent=2)


def write_json(path: Path, value: Json) -> None:
    """Replaces the file in one step; numbers that are not finite become null."""
    write(path, as_json(value) + "\n")


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Replaces the file in one step. Raises `DiskFull`."""
    aside = path.with_name(f".{path.stem}.part.npz")
    _replace(path, aside, lambda file: np.savez(file, **dict[str, Any](arrays)))


def _replace(path: Path, aside: Path, put: Callable[[IO[bytes]], object]) -> None:
    with writing(path):
        try:
            with aside.open("wb") as file:
                put(file)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            aside.unlink(missing_ok=True)  # what is half written takes space that is wanted
            raise
        os.replace(aside, path)
        sync(path.parent)


def sync(path: Path) -> None:
    """Waits until what was written to the file, or the names in the folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(path: Path, text: str) -> None:
    """Adds the text to the end of the file. Raises `DiskFull`, and then its end may be torn."""
    with writing(path), path.open("a") as file:
        file.write(text)


def crc32(path: Path, start: int = 0, size: float = math.inf) -> int:
    """The checksum of up to `size` bytes of the file from `start` on, read in pieces."""
    total = 0
    with path.open("rb") as file:
        file.seek(start)
        while piece := file.read(int(min(size, 2**20))):
            total, size = zlib.crc32(piece, total), size - len(piece)
    return total


class Written(NamedTuple):
    """What a file that only grows holds: `size` bytes from `start` on, and their checksum."""

    size: int = 0
    crc32: int = 0
    start: int = 0

    def more(self, content: bytes) -> "Written":
        """With the content after it."""
        return self._replace(size=self.size + len(content), crc32=zlib.crc32(content, self.crc32))

    def unlike(self, path: Path) -> str:
        """In what the file does not begin with that, in words; '' if it does."""
        try:
            held = max(path.stat().st_size - self.start, 0) if path.exists() else 0
            if held < self.size:
                return f"{held:,} of {self.size:,} bytes are there"
            same = not self.size or crc32(path, self.start, self.size) == self.crc32
            return "" if same else f"its first {self.size:,} bytes are others"
        except OSError as error:
            return line_of(error)


def read_json(path: Path) -> Json:
    """The object in the file, {} if there is none. Raises `WorkdirError`."""
    with failing(f"{path}: cannot be read", ValueError), contextlib.suppress(FileNotFoundError):
        return _object(path.read_text())
    return {}


def rows(path: Path, size: int | None = None) -> list[Json]:
    """The objects in the whole lines of a file, or of its first `size` bytes.

    Raises `WorkdirError`.
    """
    if not path.exists():
        return []
    with failing(f"{path}: cannot be read", ValueError):
        # What follows the last newline is torn.
        lines = path.read_bytes()[:size].decode().split("\n")[:-1]
        return [_object(line) for line in lines if line]


def finite(value: Any) -> Any:
    """The value as JSON has it: lists, and null in place of numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def line_of(error: BaseException) -> str:
    """An exception's message, first line, shortened."""
    return first_line(error)[:160]


def _object(text: str) -> Json:
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def unlike(row: Mapping[str, object]) -> str:
    """The first figure of another kind than is written, in words; '' if there is none."""
    for key, value in row.items():
        kind = KINDS.get(key, object)
        large = isinstance(value, int) and abs(value) >= 2**63
        odd = isinstance(value, bool) and key in KINDS
        if large or odd or not (value is None or isinstance(value, kind)):
            return f"{key} = {short_repr(value)} is not what a run writes there"
    return ""
