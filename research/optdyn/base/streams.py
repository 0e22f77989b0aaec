"""Standard streams that are closed, full, or read by nobody: none of it is a reason to stop."""

import contextlib
import io
import os
import sys
from typing import Any


class Heedless(io.FileIO):
    """A file that drops what it cannot take."""

    def write(self, data: Any) -> int:
        left = memoryview(data)
        with contextlib.suppress(OSError):
            while left and (taken := super().write(left)):
                left = left[taken:]
        return len(data)


def settle() -> None:
    """Makes standard error one that never fails, and /dev/null of the streams that are closed.

    Else the next file that is opened takes the number of one that is closed, and gets what is
    written there.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = io.TextIOWrapper(
        Heedless(2, "w", closefd=False),
        encoding=getattr(sys.stderr, "encoding", None),
        errors="backslashreplace",
        line_buffering=True,
        write_through=True,
    )


def put(text: str) -> None:
    """Writes the text on standard error, if there is one that takes it."""
    # It is None; gone; closed; or a signal's handler comes amid another write.
    with contextlib.suppress(AttributeError, OSError, ValueError, RuntimeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def tell(*lines: object) -> None:
    """Prints lines that a file has too on standard output, if there is one that takes them."""
    try:
        print(*lines, sep="\n", flush=True)
    except (OSError, ValueError):
        drop()


def drop() -> None:
    """Standard output is /dev/null from now on.

    What is still in its buffer would else fail once more as Python ends, with another exit code.
    """
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
