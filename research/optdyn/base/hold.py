"""One process at a time in a workdir: a lock that ends with the process that holds it."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from optdyn.base.files import WorkdirError, failing, line_of, read_json, writing
from optdyn.base.progress import say

LOCK = ".lock"  # empty while nobody holds it; else who does


@contextlib.contextmanager
def held(workdir: Path, name: str = LOCK) -> Iterator[None]:
    """Inside, the workdir is this process's; makes it. Raises `WorkdirError` if it is another's.

    What holds it is the kernel's lock on the file, not the file, so a process that was killed holds
    nothing. Where the file system knows no locks it says so and goes on.
    """
    path = workdir / name
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        with writing(workdir):
            with failing(f"workdir {workdir}: cannot be written"):
                workdir.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
    except Timeout:
        raise WorkdirError(
            f"workdir {workdir} is in use by {_holder(path)}; let it end, or give another --workdir"
        ) from None
    except (OSError, NotImplementedError) as error:
        if os.access(workdir, os.W_OK):  # else a finished run can be read, and no other goes on
            say(
                f"workdir {workdir} cannot be locked ({line_of(error)}): see to it that only one "
                "process uses it"
            )
        yield
        return
    try:
        with contextlib.suppress(OSError):  # it is held all the same
            now = datetime.now().astimezone().isoformat(timespec="seconds")
            about = {"process": os.getpid(), "host": socket.gethostname(), "since": now}
            path.write_text(json.dumps(about))
        yield
    finally:
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
        lock.release()


def writable(workdir: Path) -> None:
    """Raises `WorkdirError` if the workdir can be neither written to nor made; makes none.

    One that holds a run may be only readable, and must be: a run that is finished is read.
    """
    path = workdir.absolute()
    there = next(part for part in (path, *path.parents) if os.path.lexists(part))
    holds_a_run = any((path / name).exists() for name in ("config.json", "points"))
    denied = not holds_a_run and not os.access(there, os.W_OK | os.X_OK)
    said, instead = f"workdir {workdir}: cannot be written", "give another --workdir"
    if not there.is_dir():
        raise WorkdirError(f"{said} ({there} is no folder); {instead}")
    if denied:
        raise WorkdirError(f"{said} (no permission to write into {there}); {instead}")
    read_json(path / "config.json")


def free(workdir: Path) -> None:
    """Raises `WorkdirError` if another process holds the workdir; makes none."""
    if (workdir / LOCK).exists():
        with held(workdir):
            pass


def _holder(path: Path) -> str:
    """`process 1234 on HOST since 14:03`, as far as it is known."""
    try:
        found = json.loads(path.read_text())
        since = datetime.fromisoformat(found["since"]).astimezone()
        today = since.date() == datetime.now().astimezone().date()
        shown = since.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
        return f"process {found['process']} on {found['host']} since {shown}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
