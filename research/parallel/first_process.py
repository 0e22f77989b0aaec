"""What the processes of one run must not decide differently: the first decides, and writes."""

import contextlib
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from research.parallel.processes import is_writer

T = TypeVar("T")


def agreed(value: T) -> T:
    """The first process's value, on every process. All must call this in the same order."""
    if jax.process_count() == 1:
        return value
    data = np.frombuffer(pickle.dumps(jax.device_get(value)), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    padded = np.zeros(size, np.uint8)
    padded[: min(size, len(data))] = data[:size]
    return pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())


@contextlib.contextmanager
def own(workdir: Path) -> Iterator[Path]:
    """The workdir for the first process, folders that are thrown away for the others."""
    if is_writer():
        yield workdir
    else:
        with tempfile.TemporaryDirectory(prefix="optdyn-") as folder:
            yield Path(folder)
