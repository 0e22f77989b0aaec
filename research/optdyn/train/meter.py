"""The momentum meter of a run: windows of its updates, their records, and what these say.

    sketches.npy   (updates in windows, 3, q) float32: displacement, raw step, independent gradient

of all updates of the windows (`methods/compose.py`), in order. `implicit_momentum/readings.py`
reads them.
"""

import io
import math
import os
from pathlib import Path

import numpy as np

from optdyn.base.files import AppendedBytes, crc32, disk_full_errors
from optdyn.base.processes import is_writer
from optdyn.base.trees import Json, numbers_in
from optdyn.devices.first_process import from_first
from optdyn.experiment import Config
from optdyn.implicit_momentum import order_of_arrivals
from optdyn.implicit_momentum.readings import (
    Window,
    Windows,
    WindowSums,
    as_row,
    in_place,
    of_window,
    together,
)
from optdyn.methods.compose import METERED, SKETCH
from optdyn.problem.data import order
from optdyn.train import program
from optdyn.train.loop import Chunk, Hook
from optdyn.train.run import Run, steered_momenta


def read(
    rows: np.ndarray,
    config: Config,
    examples: int,
    worker: np.ndarray | None,
    since: int,
    step: int,
    terms: int = 1,
) -> dict[int, Window]:
    """Returns the windows that ended after `since` and by `step`, of the `rows` of `sketches.npy`.

    By their starts; of raw steps, or for two `terms` of displacements over their learning rates.
    `examples` is the size of the training set; `worker`, (steps,), the groups that arrived.
    """
    methods = config.methods
    draws_staleness = config.cluster.service.name == "geometric"  # where no group arrives
    one_arrival = methods.simple and methods.groups > 1 and not draws_staleness
    spans = Windows(config.probes.every, config.probes.window, config.steps)
    rates = program.hypers(config)["learning_rate"] if terms > 1 else None
    found = {}
    for start, stop in spans.ended(since, step):
        recorded = np.array(rows[spans.before(start) : spans.before(stop)])
        displacements, steps, gradients = recorded.swapaxes(0, 1)
        if rates is not None:
            steps = displacements / rates[start:stop, None]
        ages = None
        if worker is not None and one_arrival:
            ages = order_of_arrivals.ages(worker[start:stop], methods.groups)
        heed = _heed(config, examples, start, stop, terms)
        found[start] = Window(steps, gradients, heed, ages)
    return found


def _heed(config: Config, examples: int, start: int, stop: int, past: int) -> np.ndarray:
    nodes = config.cluster.nodes if config.data.dirichlet else 1
    sizes = {int(size) for size in order.shard_sizes(examples, nodes)}
    batch, replacement = config.batch_size // nodes, config.data.replacement
    distances = [
        order.distance_to_epoch(start, stop, batch, size, past, replacement) for size in sizes
    ]
    return np.minimum.reduce(distances)


class Meter(Hook):
    """Records the sketches of updates in windows, and logs the momentum that they tell."""

    def __init__(self, run: Run, log: list[Json], path: Path | None = None, size: int = 0):
        """Keeps the first `size` bytes of the file at `path`; None: records in memory."""
        config = run.config
        self.windows = Windows(config.probes.every, config.probes.window, config.steps)
        self._examples, self._log, self._written = run.examples, log, AppendedBytes()
        rows = self.windows.before(config.steps)
        shape = (rows, len(METERED), min(SKETCH, numbers_in(run.params)))
        self._rows = map_array(path, shape) if path else np.zeros(shape, np.float32)
        self._sums: dict[int, WindowSums] = {}  # by start
        if isinstance(self._rows, np.memmap) and path:
            start = self._rows.offset
            self._written = AppendedBytes(size, crc32(path, start, size), start)

    def chunk(self, chunk: Chunk) -> None:
        if chunk.metered and chunk.step > chunk.start:
            at = self.windows.before(chunk.start)
            new = np.stack([chunk.infos[name] for name in METERED], axis=1)
            self._rows[at : at + len(new)] = new
            self._written = self._written.plus(self._rows[at : at + len(new)].tobytes())
        if chunk.row is not None:
            since = self._log[-1]["step"] if self._log else 0
            chunk.row |= from_first(self._read(chunk, since) if is_writer() else {})

    def end(self, chunk: Chunk, summary: Json) -> None:
        """Puts the reading of all windows since the momentum was last steered into the summary."""
        if is_writer():
            since = next((at for at, _ in steered_momenta(chunk.run, self._log)[1:]), 0)
            found = in_place(summary, self._read(chunk, since)).copy()
            summary.clear()
            summary.update(found)

    def synced(self) -> AppendedBytes:
        if isinstance(self._rows, np.memmap):
            self._rows.flush()
        return self._written

    def _read(self, chunk: Chunk, since: int) -> Json:
        config, step = chunk.run.config, chunk.finite_step
        ended = self.windows.ended(since, step)
        new = min((start for start, _ in ended if start not in self._sums), default=step)
        worker = chunk.run.timeline.worker
        for start, window in read(self._rows, config, self._examples, worker, new, step).items():
            self._sums[start] = of_window(window)
        return as_row(together([self._sums[start] for start, _ in ended])) if ended else {}


def map_array(path: Path, shape: tuple[int, ...]) -> np.memmap:
    """Returns the array of this shape in the file, mapped to be written to; creates or resizes it.

    Takes all disk space now, as a full disk raises no error in a mapped array. Raises `DiskFull`.
    """
    header, array = io.BytesIO(), np.dtype(np.float32)
    about = {"descr": array.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)
    size = len(header.getvalue()) + math.prod(shape) * array.itemsize
    is_new = not path.exists()
    with disk_full_errors(path):
        try:
            with path.open("xb" if is_new else "r+b") as file:
                if hasattr(os, "posix_fallocate"):  # not on macOS
                    os.posix_fallocate(file.fileno(), 0, size)
                file.write(header.getvalue())
                file.truncate(size)
        except OSError:
            if is_new:
                path.unlink()
            raise
    return np.load(path, mmap_mode="r+")
