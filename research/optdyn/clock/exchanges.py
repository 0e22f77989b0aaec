"""Workers that exchange with every H_i-th local step, kept up as they arrive.

Of a race a worker is heard of when it exchanges, and its H_i local steps are then listed together:
what workers do by themselves in between has no order that would change anything.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from optdyn.base.trees import Array
from optdyn.clock.base import Timeline
from optdyn.clock.versions import Arrived, Reading

# (whether arrivals exchange, how many have so far) -> what else is decided of them, by name
Decided = Callable[..., Mapping[str, Array]]


class Exchanges:
    """An `Order` of workers with parameters of their own; an arrival is a local step.

    A worker's slot is its own, and it reads as it exchanges. The staleness is how many exchanges of
    others there were since, or none where what it has read does not count (`is_stale`).
    """

    def __init__(
        self,
        line: Timeline,
        periods: Sequence[int],
        decided: Decided = lambda *_: {},
        is_stale: bool = True,
    ):
        self._line, self._periods, self._decided = line, periods, decided
        self._is_stale = is_stale
        self._steps, self._exchanges, self._batches = 0, 0, 0
        self.working: dict[int, Reading] = {}
        self._done = [0] * len(periods)  # local steps since a worker's last exchange
        for worker in range(len(periods)):
            self._read(worker)

    def _read(self, worker: int) -> None:
        period = self._periods[worker]
        self.working[worker] = Reading(worker, self._exchanges, self._batches, period)
        self._done[worker], self._batches = 0, self._batches + period

    def left(self, group: int) -> int:
        """Local steps until the worker exchanges."""
        return self._periods[group] - self._done[group]

    def arrive(self, group: int, seconds: float) -> Arrived:
        """The worker has taken a local step; the timeline's next entry is written."""
        line, t, had = self._line, self._steps, self.working[group]
        exchange = self.left(group) == 1
        line.worker[t], line.seconds[t] = group, seconds
        line.staleness[t] = self._exchanges - had.version if self._is_stale else 0
        self._exchanges += exchange
        decided: dict[str, Array | int] = {"worker": group, "exchange": exchange}
        decided |= self._decided(exchange, self._exchanges)
        for name, value in decided.items():
            getattr(line.choice, name)[t] = value
        if line.batch is not None:
            line.batch[t] = had.batch + self._done[group]
        self._steps, self._done[group] = t + 1, self._done[group] + 1
        if exchange:
            self._read(group)
        return Arrived(True, exchange, [group] if exchange else [])


def exchanges(
    worker: np.ndarray, periods: Sequence[int], is_stale: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whether each local step exchanges, its staleness and its version, (steps,) each.

    The version is how many exchanges there had been when its worker read, or where nothing
    `is_stale`, so far.
    """
    exchange, read = np.zeros(len(worker), bool), np.zeros(len(worker), np.int32)
    each = [np.flatnonzero(worker == i) for i in range(len(periods))]
    for mine, period in zip(each, periods, strict=True):
        exchange[mine[period - 1 :: period]] = True
    before = np.cumsum(exchange) - exchange
    if not is_stale:
        return exchange, np.zeros(len(worker), np.int32), before
    for mine in each:
        last = np.maximum.accumulate(np.where(exchange[mine], before[mine] + 1, 0))
        read[mine] = np.append(0, last)[:-1]
    return exchange, (before - read).astype(np.int32), read


def batches(worker: np.ndarray, periods: Sequence[int]) -> np.ndarray:
    """(steps,) int32: the number of each local step's batch in a race of that order.

    A worker that begins takes the numbers of all its local steps up to its next exchange.
    """
    batch, free = np.empty(len(worker), np.int32), sum(periods)
    first = np.cumsum([0, *periods[:-1]]).tolist()
    done = [0] * len(periods)
    for t, i in enumerate(worker.tolist()):
        batch[t], done[i] = first[i] + done[i], done[i] + 1
        if done[i] == periods[i]:
            first[i], done[i], free = free, 0, free + periods[i]
    return batch
