"""The server on one core, where its workers share all cores with it.

An update wakes a thread of XLA and waits for it. On two cores that 2 or 4 workers compute on, a
race of an MLP makes a seventh more updates if these threads stay on one of them.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

THREADS = Path("/proc/self/task")  # on Linux; a folder a thread


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Inside, all threads of this process run on one of its cores, where the system can do that."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    _on({min(before)} if before else before)
    try:
        yield
    finally:
        _on(before)


def _on(cores: set[int]) -> None:
    if not (cores and THREADS.exists()):
        return
    for thread in THREADS.iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)
