"""The momentum meter of a run: windows of its updates, what they recorded, and what that says.

    sketches.npy   (updates in windows, 3, q) float32: displacement, raw step, independent gradient

of every update of the windows (`methods/compose.py`), in order. Fitted by `momentum/moments.py`:

    raw steps -g_t            one lag: what asynchrony alone contributes, under any optimizer
    d_t / alpha_t             that and explicit momentum, a lag each: the total of heavy-ball SGD

The model is tested twice: by the J test of the fit, and by the order of arrivals, which must not
depend on how long groups have been away (`momentum/order_of_arrivals.py`).
"""

import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from optdyn import optimizers
from optdyn.base.files import Written, crc32, writing
from optdyn.base.trees import Json
from optdyn.experiment import Experiment
from optdyn.methods.compose import METERED, SKETCH
from optdyn.methods.setup import Probes
from optdyn.momentum import order_of_arrivals
from optdyn.momentum.moments import Fit, NotIdentified, fit
from optdyn.momentum.order_of_arrivals import Ages
from optdyn.problem.data import order
from optdyn.train import program
from optdyn.train.workdir import SKETCHES

FILE = SKETCHES
LIMIT = 0.95  # of explicit momentum
READ = ("implicit_momentum", "fitted_momentum", "effective_learning_rate")  # and all they end in
NUMBERS = 2**22  # of a fit's sketches, at most: longer runs are fitted to shorter sketches


class Windows(NamedTuple):
    """Updates k every .. k every + window - 1, for all k, of a run of so many steps."""

    every: int
    window: int
    steps: int

    def until(self, step: int) -> int:
        """The first update from `step` on at which a window begins or ends, or the run."""
        begin = step - step % self.every
        ends = (begin + self.window, begin + self.every)
        return min(self.steps, next(end for end in ends if end > step))

    def has(self, step: int) -> bool:
        """Whether an update is in a window."""
        return step % self.every < self.window

    def before(self, step: int) -> int:
        """Updates of windows before this one."""
        whole, rest = divmod(step, self.every)
        return whole * self.window + min(rest, self.window)

    def ended(self, since: int, step: int) -> list[tuple[int, int]]:
        """(start, stop) of the windows that ended after `since`, and by `step`."""
        starts = range(0, self.steps, self.every)
        every = [(start, min(start + self.window, self.steps)) for start in starts]
        return [(start, stop) for start, stop in every if since < stop <= step]


def windows(probes: Probes, steps: int) -> Windows:
    """The windows that `config.probes` ask for."""
    return Windows(probes.every, probes.window, steps)


class Window(NamedTuple):
    """What updates in a row recorded, (T, q) each."""

    displacements: np.ndarray | None  # over their learning rates; None if one of these is 0
    raw_steps: np.ndarray
    gradients: np.ndarray
    away: Callable[[int], np.ndarray]  # (T,) of so many `past` updates, as `data.away` says
    ages: Callable[[int], Ages] | None  # of so many past gradients; None if nobody knows who came


def read(
    rows: np.ndarray,
    config: Experiment,
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


def _away(config: Experiment, examples: int, start: int, stop: int, past: int) -> np.ndarray:
    """`data.away`; of nodes that have shards of their own, from the epoch that is nearest."""
    nodes, replacement = (
        config.cluster.nodes if config.data.dirichlet else 1,
        config.data.replacement,
    )
    sizes = {int(size) for size in order.sizes(examples, nodes)}
    batch = config.batch_size // nodes
    each = [order.away(start, stop, batch, size, past, replacement) for size in sizes]
    return np.minimum.reduce(each)


class Meter:
    """Records a run's windows, and reads them."""

    def __init__(
        self,
        config: Experiment,
        parameters: int,
        examples: int,
        path: Path | None = None,
        held: int = 0,
    ):
        """How many `parameters` and `examples` there are; bytes that the file at `path` has held.

        Without a file it records in memory.
        """
        self.windows = windows(config.probes, config.steps)
        self._config, self._examples, self._written = config, examples, Written()
        rows = self.windows.before(config.steps)
        shape = (rows, len(METERED), min(SKETCH, parameters))
        self._rows = opened(path, shape) if path else np.zeros(shape, np.float32)
        if isinstance(self._rows, np.memmap) and path:
            start = self._rows.offset
            self._written = Written(held, crc32(path, start, held), start)

    def append(self, step: int, infos: Mapping[str, np.ndarray]) -> None:
        """What updates of a window said of themselves, from update `step` on."""
        at = self.windows.before(step)
        new = np.stack([infos[name] for name in METERED], axis=1)
        self._rows[at : at + len(new)] = new
        self._written = self._written.more(self._rows[at : at + len(new)].tobytes())

    def synced(self) -> Written:
        """What the file has, which is on the disk now."""
        if isinstance(self._rows, np.memmap):
            self._rows.flush()
        return self._written

    def logged(self, worker: np.ndarray, since: int, step: int) -> Json:
        """Fitted to the windows that ended after `since` and by `step`; {} if none did.

        `worker` (steps,) are the groups that arrived.
        """
        ended = read(self._rows, self._config, self._examples, worker, since, step)
        plain = is_plain(self._config)
        return said(ended, lags(self._config), plain, rate(self._config, step)) if ended else {}


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
    with writing(path):
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


def steered(rows: Sequence[Json], total: float) -> list[tuple[int, float]]:
    """(step, explicit momentum from then on) for each reading in the log.

    mu = M - i, which makes phi_1 = mu + i the total aimed at, M; i is the mean of all readings of
    the implicit momentum, each by its precision. Before the first mu is 0: what asynchrony adds is
    not known, and momentum that is too large diverges.
    """
    changes, sums, precision = [(0, 0.0)], 0.0, 0.0
    for row in rows:
        if "implicit_momentum" in row:
            weight = (row["implicit_momentum_high"] - row["implicit_momentum_low"]) ** -2
            sums, precision = sums + weight * row["implicit_momentum"], precision + weight
            explicit = float(np.clip(total - sums / precision, -LIMIT, LIMIT))
            changes.append((row["step"], explicit))
    return changes


def rate(config: Experiment, step: int) -> float:
    """Learning rate of the last of `step` updates."""
    return float(_rates(config)[step - 1])


def is_plain(config: Experiment) -> bool:
    """Whether displacements over their learning rates are the raw steps, and need no second fit."""
    optimizer = config.optimizer
    more = _has_momentum(config) or optimizer.options or optimizer.chain
    return optimizer.name == "sgd" and not more


def lags(config: Experiment) -> int:
    """Terms of heavy-ball SGD on these groups; 0 for optimizers that have no such polynomial."""
    optimizer = config.optimizer
    if not optimizers.is_heavy_ball(optimizer.name):
        return 0
    if optimizer.options or optimizer.chain:
        return 0
    return 1 + (_has_momentum(config) and config.methods.groups > 1)


def _has_momentum(config: Experiment) -> bool:
    """Whether there is explicit momentum; with a total of 0 it is steered below 0."""
    return bool(config.optimizer.momentum or config.probes.steer)


def said(ended: Sequence[Window], lags: int, plain: bool, rate: float) -> Json:
    """The figures of the windows, for the log.

    `implicit_momentum` with its 95 % interval and the p-value of the model; likewise
    `fitted_momentum`, phi_1 of a lag polynomial of `lags` terms, if there is one: what is explicit
    and what is implicit together, or of `plain` SGD the same; `effective_learning_rate`, rate / g
    for memoryless groups.
    """
    found: Json = {}
    for name, terms in (("implicit", 1), ("fitted", lags)):
        if not terms or (plain and name == "fitted"):
            continue
        try:
            it = fitted(ended, terms, raw=name == "implicit")
        except NotIdentified as error:
            found[f"{name}_momentum_refused"] = str(error)
            continue
        low, high = map(float, it.phi_interval[0])
        found |= {f"{name}_momentum": float(it.phi[0]), f"{name}_momentum_p": chance(it, ended)}
        found |= {f"{name}_momentum_low": low, f"{name}_momentum_high": high}
        if name == "implicit":
            found["effective_learning_rate"] = float(rate * it.eta[0])
    if plain:
        implicit = {name: value for name, value in found.items() if name.startswith("implicit")}
        found |= {name.replace("implicit", "fitted", 1): v for name, v in implicit.items()}
    return found


def in_place(row: Json, read: Json) -> Json:
    """The row with these figures in the place of those of its own windows, also of a refusal.

    A row without new figures, {}, stays.
    """
    if not read:
        return row
    return {name: value for name, value in row.items() if not name.startswith(READ)} | read


def fitted(ended: Sequence[Window], lags: int, gradient_lags: int = 0, raw: bool = False) -> Fit:
    """The fit of the displacements over their learning rates, or of the `raw` steps.

    Raises `NotIdentified`.
    """
    many = sum(len(window.gradients) for window in ended)
    runs = []
    for window in ended:
        moved = window.raw_steps if raw else window.displacements
        if moved is None:
            raise NotIdentified(
                "an update's learning rate is 0, so its step says nothing of momentum"
            )
        runs.append((shortened(moved, many), shortened(window.gradients, many)))
    heed = [window.away(max(lags, 1 + gradient_lags)) for window in ended]
    return fit(runs, lags, gradient_lags, heed)


def chance(it: Fit, ended: Sequence[Window], gradient_lags: int = 0) -> float:
    """The p-value of the model: the less of J's and of the arrivals', twice, since they are two.

    J's alone where nobody knows who arrived, or where no lag of steps makes staleness geometric.
    """
    known = [window.ages(gradient_lags) for window in ended if window.ages]
    if not known or not len(it.phi):
        return it.p
    return min(1.0, 2 * min(it.p, order_of_arrivals.chance(known)))


def shortened(sketches: np.ndarray, many: int) -> np.ndarray:
    """Sketches (T, q) folded to fewer numbers until `many` of them are NUMBERS at most.

    The number i of a sketch of q is added to i mod q/2: what a sketch of q/2 would have been.
    """
    while many * sketches.shape[1] > NUMBERS and sketches.shape[1] % 2 == 0:
        sketches = sketches.reshape(len(sketches), 2, -1).sum(axis=1)
    return sketches


def _rates(config: Experiment) -> np.ndarray:
    return program.hypers(config)["learning_rate"]
