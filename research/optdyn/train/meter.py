"""The momentum meter of a run: windows of its updates, what they recorded, and what that says.

    sketches.npy   (updates in windows, 3, q) float32: displacement, raw step, independent gradient

of every update of the windows (`methods/compose.py`), in order. `momentum/readings.py` reads them.
"""

import io
import math
import os
from functools import partial
from pathlib import Path

import numpy as np

from optdyn import optimizers
from optdyn.base.files import AppendedBytes, crc32, disk_full_errors
from optdyn.base.processes import is_writer
from optdyn.base.trees import Json, numbers_in
from optdyn.devices.first_process import from_first
from optdyn.experiment import Config
from optdyn.methods.compose import METERED, SKETCH
from optdyn.methods.setup import Probes
from optdyn.momentum import order_of_arrivals
from optdyn.momentum.readings import Window, Windows, in_place, said
from optdyn.problem.data import order
from optdyn.train import program
from optdyn.train.loop import Chunk, Hook
from optdyn.train.run import Run, momenta
from optdyn.train.workdir import SKETCHES

FILE = SKETCHES


def windows(probes: Probes, steps: int) -> Windows:
    """The windows that `config.probes` ask for."""
    return Windows(probes.every, probes.window, steps)


def read(
    rows: np.ndarray,
    config: Config,
    examples: int,
    worker: np.ndarray | None,
    since: int,
    step: int,
) -> list[Window]:
    """The windows that ended after `since` and by `step`, of the `rows` of `sketches.npy`.

    `examples` is how many the run is trained on, which says where its epochs begin; `worker`
    (steps,) are the groups that arrived.
    """
    own = config.methods
    drawn = config.cluster.service.name == "geometric"  # staleness alone: no group arrives
    told = own.simple and own.groups > 1 and not drawn
    it, rates = windows(config.probes, config.steps), _rates(config)
    found = []
    for start, stop in it.ended(since, step):
        moved, raw, gradients = np.array(rows[it.before(start) : it.before(stop)]).swapaxes(0, 1)
        away = partial(_away, config, examples, start, stop)
        came = worker[start:stop] if worker is not None and told else None
        ages = None if came is None else partial(order_of_arrivals.ages, came, own.groups)
        rate = rates[start:stop, None]
        over = moved / rate if rate.all() else None
        found.append(Window(over, raw, gradients, away, ages))
    return found


def _away(config: Config, examples: int, start: int, stop: int, past: int) -> np.ndarray:
    """`data.away`; of nodes that have shards of their own, from the epoch that is nearest."""
    nodes, replacement = (
        config.cluster.nodes if config.data.dirichlet else 1,
        config.data.replacement,
    )
    sizes = {int(size) for size in order.shard_sizes(examples, nodes)}
    batch = config.batch_size // nodes
    each = [order.distance_to_epoch(start, stop, batch, size, past, replacement) for size in sizes]
    return np.minimum.reduce(each)


class Meter(Hook):
    """Records what updates of a run's windows say, and logs what it reads off them."""

    def __init__(self, run: Run, log: list[Json], path: Path | None = None, held: int = 0):
        """`held` are the bytes that the file at `path` has; without one it records in memory."""
        config = run.config
        self.windows = windows(config.probes, config.steps)
        self._examples, self._log, self._written = run.examples, log, AppendedBytes()
        rows = self.windows.before(config.steps)
        shape = (rows, len(METERED), min(SKETCH, numbers_in(run.params)))
        self._rows = opened(path, shape) if path else np.zeros(shape, np.float32)
        if isinstance(self._rows, np.memmap) and path:
            start = self._rows.offset
            self._written = AppendedBytes(held, crc32(path, start, held), start)

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
        """The summary has the reading of all windows since the momentum was last steered."""
        if is_writer():
            since = next((at for at, _ in momenta(chunk.run, self._log)[1:]), 0)
            found = in_place(summary, self._read(chunk, since)).copy()
            summary.clear()
            summary.update(found)

    def synced(self) -> AppendedBytes:
        """What the file has, which is on the disk now."""
        if isinstance(self._rows, np.memmap):
            self._rows.flush()
        return self._written

    def _read(self, chunk: Chunk, since: int) -> Json:
        """Fitted to the windows that ended after `since` and by the chunk's end; {} if none did."""
        config, step = chunk.run.config, chunk.good
        worker = chunk.run.timeline.worker
        ended = read(self._rows, config, self._examples, worker, since, step)
        return said(ended, lags(config), is_plain(config), rate(config, step)) if ended else {}


def opened(path: Path, shape: tuple[int, ...]) -> np.memmap:
    """The array in the file, to be written to; made, or of another length than it was.

    Its header is written anew, whatever it was. All its space is taken now: there is no error to
    catch where what is mapped finds the disk full. Raises `DiskFull`.
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


def rate(config: Config, step: int) -> float:
    """Learning rate of the last of `step` updates."""
    return float(_rates(config)[step - 1])


def is_plain(config: Config) -> bool:
    """Whether displacements over their learning rates are the raw steps, and need no second fit."""
    optimizer = config.optimizer
    more = _has_momentum(config) or optimizer.options or optimizer.chain
    return optimizer.name == "sgd" and not more


def lags(config: Config) -> int:
    """Terms of heavy-ball SGD on these groups; 0 for optimizers that have no such polynomial."""
    optimizer = config.optimizer
    if not optimizers.is_heavy_ball(optimizer.name):
        return 0
    if optimizer.options or optimizer.chain:
        return 0
    return 1 + (_has_momentum(config) and config.methods.groups > 1)


def _has_momentum(config: Config) -> bool:
    """Whether there is explicit momentum; with a total of 0 it is steered below 0."""
    return bool(config.optimizer.momentum or config.probes.steer)


def _rates(config: Config) -> np.ndarray:
    return program.hypers(config)["learning_rate"]
