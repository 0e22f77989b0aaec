"""A lock on a workdir, for one process at a time; it ends with the process that has it."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from optdyn.base.files import WorkdirError, disk_full_errors, read_json, short_line, workdir_errors
from optdyn.base.progress import say

LOCK = ".lock"  # JSON about the process that has the lock, else empty


@contextlib.contextmanager
def locked(workdir: Path, name: str = LOCK) -> Iterator[None]:
    """Makes the workdir and locks it. Raises `WorkdirError` if another process has the lock.

    The lock is the kernel's, so a process that was killed leaves none. Where there are no locks, a
    line says so.
    """
    path = workdir / name
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        with disk_full_errors(workdir):
            with workdir_errors(f"workdir {workdir}: cannot be written"):
                workdir.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
    except Timeout:
        raise WorkdirError(
            f"workdir {workdir} is in use by {_owner(path)}; let it end, or give another --workdir"
        ) from None
    except (OSError, NotImplementedError) as error:
        if os.access(workdir, os.W_OK):  # else only a finished run can be read
            say(
                f"workdir {workdir} cannot be locked ({short_line(error)}): see that only one "
                "process uses it"
            )
        yield
        return
    try:
        with contextlib.suppress(OSError):  # the lock holds without these words, too
            now = datetime.now().astimezone().isoformat(timespec="seconds")
            owner = {"process": os.getpid(), "host": socket.gethostname(), "since": now}
            path.write_text(json.dumps(owner))
        yield
    finally:
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
        lock.release()


def check_writable(workdir: Path) -> None:
    """Raises `WorkdirError` if the workdir has no run and cannot be written to or made."""
    path = workdir.absolute()
    deepest = next(part for part in (path, *path.parents) if os.path.lexists(part))
    has_run = any((path / name).exists() for name in ("config.json", "points"))
    refusal = f"workdir {workdir}: cannot be written ({{}}); give another --workdir"
    if not deepest.is_dir():
        raise WorkdirError(refusal.format(f"{deepest} is no folder"))
    if not has_run and not os.access(deepest, os.W_OK | os.X_OK):
        raise WorkdirError(refusal.format(f"no permission to write into {deepest}"))
    read_json(path / "config.json")


def check_unlocked(workdir: Path) -> None:
    """Raises `WorkdirError` if another process has the lock; makes nothing."""
    if (workdir / LOCK).exists():
        with locked(workdir):
            pass


def _owner(path: Path) -> str:
    """Returns `process 1234 on HOST since 14:03`, or `another process` if that is not known."""
    try:
        owner = json.loads(path.read_text())
        since = datetime.fromisoformat(owner["since"]).astimezone()
        is_today = since.date() == datetime.now().astimezone().date()
        clock = since.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M")
        return f"process {owner['process']} on {owner['host']} since {clock}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
