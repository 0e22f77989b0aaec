"""Asynchronous arrivals: each group works by itself and delivers when its slowest worker is done.

Groups never wait for one another, so each is a renewal process of its own and the order of
arrivals is the merge of their arrival times. Arrivals at the same second, which constant services
have, are in the order of the groups: speeds of 1, 2 and 3 meet every second, whatever the rounding
of their sums says.
"""

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from optdyn.clock.base import Timeline, from_arrivals
from optdyn.clock.service import Draw, is_constant, with_exchange

BLOCK = 1 << 16  # services of a group that are added up on their own
SPARE = 16  # services drawn beyond what a group is likely to need
ROUNDING = 1e-10  # relative; constant services, of which up to 10^5 are added, differ by less


def rounding(law: Draw) -> float:
    """How much arrivals at the same second may differ, relatively; 0 where times are drawn."""
    return ROUNDING if is_constant(law) else 0.0


class Queue:
    """Deliveries to come, (seconds, group, ...), which are taken in order.

    Those whose seconds differ by the `rounding` only are taken in the order of their groups.
    """

    def __init__(self, entries: list[tuple], rounding: float):
        self._heap, self._rounding = entries, rounding
        self._now = list[tuple]()  # those of one second, the next of them last
        heapq.heapify(self._heap)

    def push(self, entry: tuple) -> None:
        """Adds a delivery that is to come."""
        heapq.heappush(self._heap, entry)

    def pop(self) -> tuple:
        """Takes the next delivery."""
        if not self._rounding:
            return heapq.heappop(self._heap)
        if not self._now:
            self._now.append(heapq.heappop(self._heap))
            end = self._now[0][0] * (1 + self._rounding)
            while self._heap and self._heap[0][0] <= end:
                self._now.append(heapq.heappop(self._heap))
            if len(self._now) > 1:  # their seconds in order, whosever each of them was
                seconds = [entry[0] for entry in self._now]
                ordered = sorted(entry[1:] for entry in self._now)
                self._now = [(s, *of) for s, of in zip(seconds, ordered, strict=True)][::-1]
        return self._now.pop()

    def drop(self, groups: Collection[int]) -> None:
        """Takes the deliveries of these groups out."""
        self._heap, self._now = (
            [entry for entry in entries if entry[1] not in groups]
            for entries in (self._heap, self._now)
        )
        heapq.heapify(self._heap)


class Work(NamedTuple):
    """What groups do from one arrival to the next: services that may be unlike, and take turns.

    `compute`, (groups, k), or (n, k) of each group: mean seconds of each of its workers, the
    slowest of whom it waits for. `exchange`, (groups,), or (n,) of each: seconds of its messages,
    of which `overlap`, the last fraction of the computing, hides what it can.
    """

    compute: np.ndarray | Sequence[np.ndarray]
    exchange: np.ndarray | Sequence[np.ndarray] | float = 0.0
    overlap: float = 0.0

    def of(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, k) and (n,) of its services."""
        compute = np.atleast_2d(self.compute[group])
        exchange = self.exchange if isinstance(self.exchange, float) else self.exchange[group]
        return compute, np.broadcast_to(exchange, len(compute))

    def means(self) -> np.ndarray:
        """(groups, k) mean seconds with the exchange, of groups whose services are alike."""
        exchange = np.reshape(np.broadcast_to(self.exchange, len(self.compute)), (-1, 1))
        return with_exchange(np.asarray(self.compute), exchange, self.overlap)


def drawn(steps: int, groups: int) -> int:
    """Services that each of so many groups draws at a time, for `steps` arrivals of all of them."""
    return min(BLOCK, steps, 2 * -(-steps // groups) + SPARE)


def computing(seed: int, law: Draw, work: Work, steps: int, group: int) -> Iterator[float]:
    """Seconds that a group computes for one service after the other, each of its slowest worker.

    Arguments as those of `arrivals`, whose draws these are; services are alike.
    """
    rng, n = np.random.default_rng((seed, group)), drawn(steps, len(work.compute))
    mean, _ = work.of(group)
    while True:
        yield from (law(rng, (n, mean.shape[1])) * mean).max(axis=1).tolist()


def services(seed: int, law: Draw, work: Work, steps: int, group: int) -> Iterator[float]:
    """Seconds of `computing` together with the exchange, as far as it does not overlap."""
    exchange, overlap = float(work.of(group)[1][0]), work.overlap
    for compute in computing(seed, law, work, steps, group):
        yield max(compute, compute * (1 - overlap) + exchange)


def arrivals(seed: int, law: Draw, work: Work, steps: int) -> Timeline:
    """The first `steps` arrivals of groups.

    Every group draws from a stream of its own, so a longer run begins with the shorter one.
    """
    groups = len(work.compute)
    cycles = [work.of(group) for group in range(groups)]
    streams = [np.random.default_rng((seed, group)) for group in range(groups)]
    times: list[np.ndarray] = [np.zeros(1)] * groups
    begun, since = np.zeros(groups), np.zeros(groups)  # a block's start, and seconds since then

    def extend(group: int) -> None:
        done, (cycle, exchange) = len(times[group]) - 1, cycles[group]
        if done % BLOCK == 0:
            begun[group], since[group] = times[group][-1], 0.0
        number = np.arange(done, done + min(max(drawn(steps, groups), done), BLOCK - done % BLOCK))
        draws = law(streams[group], (len(number), cycle.shape[1]))
        place = number % len(cycle)
        slowest = (draws * cycle[place]).max(axis=1)
        each = with_exchange(slowest, exchange[place], work.overlap)
        sums = np.cumsum(np.append(since[group], each))[1:]
        times[group], since[group] = np.append(times[group], begun[group] + sums), sums[-1]

    short, same = list(range(groups)), rounding(law)
    while True:
        for group in short:
            extend(group)
        # Only up to the horizon that every group has reached is the merge known.
        ends = np.array([group[-1] for group in times])
        horizon = ends.min() * (1 - 2 * same)
        counts = [np.searchsorted(group, horizon, side="right") - 1 for group in times]
        if sum(counts) >= steps:
            break
        short = np.flatnonzero(ends <= 1.5 * ends.min()).tolist()

    seconds = np.concatenate([group[1 : 1 + n] for group, n in zip(times, counts, strict=True)])
    worker = np.repeat(np.arange(groups, dtype=np.int32), counts)
    order = np.argsort(seconds, kind="stable")
    worker, seconds = worker[order], seconds[order]
    if same:
        second = np.cumsum(np.diff(seconds, prepend=0.0) > same * seconds)  # the number of it
        worker = worker[np.lexsort((worker, second))]
    return from_arrivals(worker[:steps], seconds[:steps], groups)
