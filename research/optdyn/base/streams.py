"""Standard streams that are closed, full, or read by nobody; a run goes on without them."""

import contextlib
import io
import os
import sys
from typing import Any


class LossyFile(io.FileIO):
    """A file that drops what cannot be written."""

    def write(self, data: Any) -> int:
        left = memoryview(data)
        with contextlib.suppress(OSError):
            while left and (count := super().write(left)):
                left = left[count:]
        return len(data)


def settle() -> None:
    """Replaces standard error by one that never fails, and closed streams by /dev/null.

    Otherwise the next file that is opened would get a closed stream's descriptor, and its text.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = io.TextIOWrapper(
        LossyFile(2, "w", closefd=False),
        encoding=getattr(sys.stderr, "encoding", None),
        errors="backslashreplace",
        line_buffering=True,
        write_through=True,
    )


def put(text: str) -> None:
    """Writes the text on standard error, if that is possible."""
    # It is None, gone or closed, or a signal handler interrupts another write.
    with contextlib.suppress(AttributeError, OSError, ValueError, RuntimeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def tell(*lines: object) -> None:
    """Prints lines on standard output, if that is possible; a file has them, too."""
    try:
        print(*lines, sep="\n", flush=True)
    except (OSError, ValueError):
        drop()


def drop() -> None:
    """Redirects standard output to /dev/null; its buffer would fail again as Python ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
