"""What the processes of one run must not decide differently: the first decides, and writes."""

import contextlib
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from optdyn.base.errors import InputError
from optdyn.base.processes import is_writer
from optdyn.base.workdir_lock import LOCK, locked

T = TypeVar("T")


def from_first(value: T) -> T:
    """The first process's value, on every process. All must call this in the same order."""
    if jax.process_count() == 1:
        return value
    data = np.frombuffer(pickle.dumps(jax.device_get(value)), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    padded = np.zeros(size, np.uint8)
    padded[: min(size, len(data))] = data[:size]
    return pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())


def run_on_first(act: Callable[[], T]) -> T:
    """What `act()` returns on the first process, on every process, or the `InputError` it raises.

    All must call this in the same order; the others do not act.
    """
    found: T | InputError | None = None
    if is_writer():
        try:
            found = act()
        except InputError as error:
            found = error
    found = from_first(found)
    if isinstance(found, InputError):
        raise found
    return cast(T, found)


@contextlib.contextmanager
def hold_workdir(workdir: Path, name: str = LOCK) -> Iterator[Path]:
    """The workdir, held, for the first process; folders that are thrown away for the others.

    Raises `WorkdirError` on all of them if another process holds it.
    """
    with contextlib.ExitStack() as stack:
        run_on_first(lambda: stack.enter_context(locked(workdir, name)))
        if is_writer():
            yield workdir
        else:
            folder = tempfile.TemporaryDirectory(prefix="optdyn-")
            yield Path(stack.enter_context(folder))
