"""The momentum meter of a run: windows of its updates, what they recorded, and what that says.

    sketches.npy   (updates in windows, 3, q) float32: displacement, raw step, independent gradient

of every update of the windows (`strategies/metered.py`), in order. Fitted by `dynamics/moments.py`:

    raw steps -g_t            one lag: what asynchrony alone contributes, under any optimizer
    d_t / alpha_t             that and explicit momentum, a lag each: the total of heavy-ball SGD
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from research import data as datasets
from research import optimizers, strategies
from research.dynamics.moments import NotIdentified, fit
from research.strategies.metered import METERED, SKETCH

FILE = "sketches.npy"
LIMIT = 0.95  # of explicit momentum
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


def windows(probes: Mapping[str, Any], steps: int) -> Windows:
    """Those of `config.probes`."""
    return Windows(probes["every"], min(probes["window"], probes["every"]), steps)


class Meter:
    """Records a run's windows, and reads them."""

    def __init__(
        self, folder: Path, config: ConfigDict, rates: np.ndarray, parameters: int, examples: int
    ):
        """`rates`: learning rates, (steps,); how many `parameters` and `examples` there are."""
        self.windows, self._rates = windows(config.probes, config.steps), rates
        self._lags = lags(config)
        self._away = partial(
            datasets.away,
            batch_size=config.batch_size,
            examples=examples,
            replacement=config.data.replacement,
        )
        path, rows = folder / FILE, self.windows.before(config.steps)
        shape = (rows, len(METERED), min(SKETCH, parameters))
        mode = {"mode": "r+"} if path.exists() else {"mode": "w+", "shape": shape}
        self._rows = np.lib.format.open_memmap(path, dtype=np.float32, **mode)

    def append(self, step: int, infos: Mapping[str, np.ndarray]) -> None:
        """What updates of a window said of themselves, from update `step` on."""
        at = self.windows.before(step)
        new = np.stack([infos[name] for name in METERED], axis=1)
        self._rows[at : at + len(new)] = new

    def logged(self, since: int, step: int) -> dict[str, Any]:
        """Fitted to the windows that ended after `since` and by `step`; {} if none did."""
        ended = self.windows.ended(since, step)
        each = [np.array(self._rows[slice(*map(self.windows.before, pair))]) for pair in ended]
        runs = [
            (sketches[:, 0] / self._rates[slice(*pair), None], *sketches.swapaxes(0, 1)[1:])
            for sketches, pair in zip(each, ended, strict=True)
        ]
        away = [partial(self._away, *pair) for pair in ended]
        return said(runs, away, self._lags, self._rates[step - 1]) if runs else {}


def steered(rows: Sequence[Mapping[str, Any]], total: float) -> list[tuple[int, float]]:
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


def lags(config: ConfigDict) -> int:
    """Terms of heavy-ball SGD on these groups; 0 for optimizers that have no such polynomial."""
    optimizer = config.optimizer
    if optimizer.name not in ("sgd", *optimizers.OWN) or optimizer.options:
        return 0
    return 1 + bool(optimizer.momentum and strategies.groups_of(config) > 1)


def said(
    windows: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    away: Sequence[Callable[..., np.ndarray]],
    lags: int,
    rate: float,
) -> dict[str, Any]:
    """For the log: of (displacements over their rates, raw steps, gradients), (T, q) each.

    `implicit_momentum` with its 95 % interval and the p-value of the J test; likewise
    `fitted_momentum`, phi_1 of a lag polynomial of `lags` terms, if there is one: what is explicit
    and what is implicit together; `effective_learning_rate`, rate / g for memoryless groups.

    `away(past)` (T,) of each window: from where an epoch begins, as `data.away` says.
    `implicit_momentum` with its 95 % interval and the p-value of the J test; what a lag polynomial
    of `lags` terms amounts to, `total_momentum`, if there is one; `effective_learning_rate`, which
    is rate / g for memoryless groups.
    """
    found: dict[str, Any] = {}
    many = sum(len(raw) for _, raw, _ in windows)
    parts = [[shortened(sketches, many) for sketches in window] for window in windows]
    for name, terms, which in (("implicit", 1, 1), ("fitted", lags, 0)):
        if not terms:
            continue
        try:
            heed = [far(past=terms) for far in away]
            it = fit([(window[which], window[2]) for window in parts], terms, heed=heed)
        except NotIdentified as error:
            found[f"{name}_momentum_refused"] = str(error)
            continue
        low, high = map(float, it.phi_interval[0])
        found |= {f"{name}_momentum": float(it.phi[0]), f"{name}_momentum_p": it.p}
        found |= {f"{name}_momentum_low": low, f"{name}_momentum_high": high}
        if which:
            found["effective_learning_rate"] = float(rate * it.eta[0])
    return found


def shortened(sketches: np.ndarray, many: int) -> np.ndarray:
    """Sketches (T, q) folded to fewer numbers until `many` of them are NUMBERS at most.

    The number i of a sketch of q is added to i mod q/2: what a sketch of q/2 would have been.
    """
    while many * sketches.shape[1] > NUMBERS and sketches.shape[1] % 2 == 0:
        sketches = sketches.reshape(len(sketches), 2, -1).sum(axis=1)
    return sketches
