"""The file `trace` of a real run (`clock/trace.py`), as it goes."""

import os
import time
from pathlib import Path

import numpy as np

from optdyn.base.files import AppendedBytes, append, crc32, sync
from optdyn.clock.timeline import Timeline
from optdyn.clock.trace import PREFIX, SERVED, read_table, read_versions, trace_columns
from optdyn.train.loop import Chunk, Hook


class Recorder(Hook):
    """Records an update a row; opening keeps the first `size` bytes. Raises `DiskFull`."""

    def __init__(self, path: Path, size: int):
        self._path, self._written, self._seconds = path, AppendedBytes(), 0.0
        if size:
            os.truncate(path, size)
            self._written = AppendedBytes(size, crc32(path))
            self._seconds = float(read_table(path)["seconds"].iloc[-1])
        else:
            path.unlink(missing_ok=True)

    def chunk(self, chunk: Chunk) -> None:
        """Records the updates of a race with their times, and others with even ones."""
        if chunk.step > chunk.start:
            made, line = slice(chunk.start, chunk.step), chunk.run.timeline
            if SERVED in chunk.infos:
                self.raced(line, made, chunk.infos[SERVED])
            else:
                self.append(line, made, time.monotonic() - chunk.begun)

    def append(self, made: Timeline, window: slice, seconds: float) -> None:
        """The updates of the window, which took `seconds` together."""
        count = len(made.worker[window])
        self._append(made, window, self._seconds + seconds * np.arange(1, count + 1) / count)
        self._seconds += seconds

    def raced(self, made: Timeline, window: slice, served: np.ndarray) -> None:
        """Writes updates of a race, each with its own time and the version that it had read.

        Of several arrivals it is that of the last one. `served`: seconds that the server was at
        each, and did not wait for a message, (m,).
        """
        own = {"version": read_versions(made)[window], SERVED: np.round(served, 6)}
        self._append(made, window, made.seconds[window], **own)

    def _append(
        self, made: Timeline, window: slice, seconds: np.ndarray, **more: np.ndarray
    ) -> None:
        import pandas as pd  # here, for it takes long, and a simulated run needs none

        rows = {"worker": made.worker[window], "seconds": seconds, **more}
        for name, values in trace_columns(made, window).items():
            if values.ndim == 1:
                rows[PREFIX + name] = values
            else:
                rows |= {f"{PREFIX}{name}.{n}": column for n, column in enumerate(values.T)}
        text = pd.DataFrame(rows).to_csv(header=not self._written.size, index=False)
        append(self._path, text)
        self._written = self._written.plus(text.encode())

    def synced(self) -> AppendedBytes:
        """What the file has, which is on the disk now."""
        if self._written.size:
            sync(self._path)
        return self._written
