"""Writes the trace of a real run (`clock/trace.py`) while it runs."""

import os
import time
from pathlib import Path

import numpy as np

from optdyn.base.files import AppendedBytes, append, crc32, sync
from optdyn.clock.timeline import Timeline
from optdyn.clock.trace import PREFIX, SERVED, read_table, read_versions, trace_columns
from optdyn.train.loop import Chunk, Hook


class Recorder(Hook):
    """Appends a row an update; opening keeps the first `size` bytes. Raises `DiskFull`."""

    def __init__(self, path: Path, size: int):
        self._path, self._written, self._seconds = path, AppendedBytes(), 0.0
        if size:
            os.truncate(path, size)
            self._written = AppendedBytes(size, crc32(path))
            self._seconds = float(read_table(path)["seconds"].iloc[-1])
        else:
            path.unlink(missing_ok=True)

    def chunk(self, chunk: Chunk) -> None:
        """Records the updates of a race with their times, and others evenly spaced."""
        if chunk.step > chunk.start:
            window, line = slice(chunk.start, chunk.step), chunk.run.timeline
            if SERVED in chunk.infos:
                self.append_raced(line, window, chunk.infos[SERVED])
            else:
                self.append(line, window, time.monotonic() - chunk.requested)

    def append(self, line: Timeline, window: slice, seconds: float) -> None:
        count = len(line.worker[window])
        self._append(line, window, self._seconds + seconds * np.arange(1, count + 1) / count)
        self._seconds += seconds

    def append_raced(self, line: Timeline, window: slice, served: np.ndarray) -> None:
        """Appends updates of a race, each with its time and the version that it had read.

        The version of several arrivals is that of the last one. `served`, (m,): seconds of the
        server's work on each update, without its wait for a message.
        """
        more = {"version": read_versions(line)[window], SERVED: np.round(served, 6)}
        self._append(line, window, line.seconds[window], **more)

    def _append(
        self, line: Timeline, window: slice, seconds: np.ndarray, **more: np.ndarray
    ) -> None:
        import pandas as pd  # here, for it takes long, and a simulated run needs none

        rows = {"worker": line.worker[window], "seconds": seconds, **more}
        for name, values in trace_columns(line, window).items():
            if values.ndim == 1:
                rows[PREFIX + name] = values
            else:
                rows |= {f"{PREFIX}{name}.{n}": column for n, column in enumerate(values.T)}
        text = pd.DataFrame(rows).to_csv(header=not self._written.size, index=False)
        append(self._path, text)
        self._written = self._written.plus(text.encode())

    def synced(self) -> AppendedBytes:
        if self._written.size:
            sync(self._path)
        return self._written
