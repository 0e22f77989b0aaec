"""Which version each group has read, kept up as they arrive: what their order alone decides.

A group that arrives reads the version it makes, or waits (`several.py`) and
reads a later one. So the order of the arrivals, drawn or raced, says all: slots, staleness, who
goes on, and which batch is whose. Batches 0, 1, ... of the order of examples go to the first,
second, ... reader, for a group that races has to know its batch before anybody knows the number of
its update. Where an update is of several arrivals these are parts of batches.

Workers that exchange with every H_i-th local step, kept up as they arrive.

Of a race a worker is heard of when it exchanges, and its H_i local steps are then listed together:
what workers do by themselves in between has no order that would change anything.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from optdyn.base.errors import Wrong
from optdyn.base.trees import Array
from optdyn.clock.timeline import Arrival, Timeline, TimelineError

# Who waits where an update is of K arrivals (`several.py`).
WAITING = ("k_sync", "k_batch_sync", "k_async", "k_batch_async")
NOBODY = "k_batch_async"


class Reading(NamedTuple):
    """What a group is working on."""

    slot: int
    version: int  # updates of what it has read, before its read
    batch: int  # the first of its batches
    batches: int = 1

    @property
    def numbers(self) -> range:
        """The numbers of its batches."""
        return range(self.batch, self.batch + self.batches)


class Arrived(NamedTuple):
    """What an arrival did."""

    row: bool  # whether the timeline has an entry more
    update: bool  # whether it is one that changes what others read
    readers: list[int]  # groups that begin now, and drop what they were at
    dropped: bool = False  # whether its gradient is too old and counts for nothing


class Order(Protocol):
    """An order of arrivals: it writes the entries of a timeline as groups arrive."""

    working: dict[int, Reading]

    def left(self, group: int) -> int:
        """Arrivals until the group has done what it is at."""

    def arrive(self, group: int, seconds: float) -> Arrived:
        """The group is at work, and has come one arrival further."""


class Slots:
    """Slots of a table of versions, which those hold who have read one."""

    def __init__(self, slots: int):
        self._holders, self._free = [0] * slots, list(range(slots))

    def hold(self, slot: int) -> None:
        """One group more reads the slot."""
        self._holders[slot] += 1

    def release(self, slot: int) -> None:
        """One group less reads the slot, which is free when none does."""
        self._holders[slot] -= 1
        if not self._holders[slot]:
            heapq.heappush(self._free, slot)

    def next(self) -> int:
        """The lowest free slot; it is not taken yet."""
        while self._holders[self._free[0]]:
            heapq.heappop(self._free)
        return self._free[0]


class Versions:
    """An `Order` of groups that share parameters, none further ahead than `bound` of the slowest.

    With K `arrivals` an update the others wait for it as `waiting` says. An arrival that had read
    `delay_bound` or more updates ago is dropped, and its group begins again at the newest version.
    Who is dropped keeps its batch. A new version is written to a slot that no group at work has
    read, so that as many slots as groups do.
    """

    def __init__(
        self,
        line: Timeline,
        groups: int,
        bound: float = math.inf,
        arrivals: int = 1,
        waiting: str = NOBODY,
        delay_bound: float = math.inf,
    ):
        self._line, self._groups, self._bound = line, groups, bound
        self._delay_bound = delay_bound
        self._arrivals, self._again = arrivals, "batch" in waiting
        self._dropped = waiting.endswith("_sync")
        self._slots = Slots(groups)
        self._clock = [0] * groups
        self._updates, self._batches, self._newest = 0, groups, 0
        self.working = {group: Reading(0, 0, group) for group in range(groups)}
        self._had = list[tuple[int, Reading]]()  # arrivals of the next update
        self._waiting = list[int]()
        for _ in range(groups):
            self._slots.hold(0)

    def left(self, group: int) -> int:
        """One arrival: a group delivers whole gradients."""
        return 1

    def arrive(self, group: int, seconds: float) -> Arrived:
        """The group has delivered; the last of an update writes the timeline's next entry."""
        if self._updates - self.working[group].version >= self._delay_bound:
            self.drop(group)
            return Arrived(False, False, [group], dropped=True)
        had = self.working.pop(group)
        self._slots.release(had.slot)
        self._had.append((group, had))
        self._clock[group] += 1
        self._waiting.append(group)
        update = len(self._had) == self._arrivals
        kept = dict[int, Reading]()
        if update and self._dropped:
            kept, self._waiting = self.working, list(range(self._groups))
            self.working = {}
            for reading in kept.values():
                self._slots.release(reading.slot)
        if update:
            self._newest = self._slots.next()
            put(self._line, self._updates, seconds, self._had, self._newest)
            self._updates, self._had = self._updates + 1, []
        if not (update or self._again):
            return Arrived(False, False, [])
        goes_on = math.inf if self._bound == math.inf else min(self._clock) + self._bound
        readers = [other for other in self._waiting if self._clock[other] <= goes_on]
        self._waiting = [other for other in self._waiting if self._clock[other] > goes_on]
        for other in readers:
            batch = kept[other].batch if other in kept else self._batches
            self._batches += other not in kept
            self._begin(other, batch)
        return Arrived(update, update, readers)

    def drop(self, group: int) -> None:
        """What the group is at counts for nothing, and it begins again.

        It is written down only if the group had read an older version: otherwise it reads the same
        again, and a trace does not say whether that was before or after an arrival of its own.
        """
        had = self.working.pop(group)
        self._slots.release(had.slot)
        if had.version < self._updates:
            self._line.plan.dropped[self._updates, group] = True
        self._begin(group, had.batch)

    def _begin(self, group: int, batch: int) -> None:
        self._slots.hold(self._newest)
        self.working[group] = Reading(self._newest, self._updates, batch)


def empty(slots: int, steps: int, arrivals: int = 1, drops: int = 0) -> Timeline:
    """The timeline of a race before it is run: an `Order` writes its updates as they come.

    With several `arrivals` K an update is of parts of batches, and what is of each is (steps, K).
    Where something may be dropped it has room for whose that was, of `drops` groups.
    """
    worker, write = np.zeros((2, steps), np.int32)
    shape = (steps,) if arrivals == 1 else (steps, arrivals)
    staleness, batch, who, read = np.zeros((4, *shape), np.int32)
    dropped = np.zeros((steps, drops), bool) if drops else None
    choice = Arrival(worker if arrivals == 1 else who, read, write, dropped=dropped)
    return Timeline(worker, staleness, np.zeros(steps), slots, choice, batch)


def blank(groups: int, steps: int, arrivals: int, waiting: str, drops: bool) -> Timeline:
    """`empty` for groups that wait so for one another (`several.py`), or drop what is late.

    One slot does where an update drops all other work (`k_sync`, `k_batch_sync`).
    """
    slots = 1 if waiting.endswith("_sync") else groups
    return empty(slots, steps, arrivals, groups if drops else 0)


def put(line: Timeline, t: int, seconds: float, had: list[tuple[int, Reading]], write: int) -> None:
    """Writes update t, of groups and what they had read, into the arrays of the timeline."""
    line.worker[t], line.seconds[t] = had[-1][0], seconds
    assert line.batch is not None
    single = len(had) == 1
    for array, values in (
        (line.plan.worker, [group for group, _ in had]),
        (line.plan.read, [own.slot for _, own in had]),
        (line.batch, [own.batch for _, own in had]),
        (line.staleness, [t - own.version for _, own in had]),
    ):
        array[t] = values[0] if single else values  # of one, where there are several, all servers'
    line.plan.write[t] = write


def fill(
    order: Order,
    worker: np.ndarray,
    seconds: np.ndarray,
    dropped: np.ndarray | None = None,
    drop: Callable[[int], None] | None = None,
    where: str = "",
) -> None:
    """Arrivals in that order, (n,) or, of n updates, (n, K); `seconds`, (n,), are an update's.

    `dropped`, (n, groups), has those that were dropped before each update: that arrived too late,
    or have not arrived at all where there is a `drop`. Raises `TimelineError` where a group arrives
    that waits for others, or is dropped and should not be; the line begins with `where`.
    """
    wrongs = _wrong_arrivals(order, worker, seconds, dropped, drop)
    TimelineError.refuse((wrong, where + line) for wrong, line in wrongs)


def _wrong_arrivals(
    order: Order,
    worker: np.ndarray,
    seconds: np.ndarray,
    dropped: np.ndarray | None,
    drop: Callable[[int], None] | None,
) -> Iterator[Wrong]:
    """What is wrong with an arrival, each before the next is filled in."""
    for t, groups in enumerate(worker.tolist()):
        late = [] if dropped is None else np.flatnonzero(dropped[t]).tolist()
        for n, group in enumerate([*late, *(groups if isinstance(groups, list) else [groups])]):
            waits = group not in order.working
            yield waits, f"arrival {t}: worker {group} waits for others then"
            if drop and n < len(late):
                drop(group)
                continue
            unlike = order.arrive(group, float(seconds[t])).dropped != (n < len(late))
            is_too = "is not too" if n < len(late) else "is too"
            yield unlike, f"arrival {t}: what worker {group} has {is_too} old to apply"


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
            getattr(line.plan, name)[t] = value
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
