"""The version that each group has read, which follows from the order of arrivals alone.

Batches 0, 1, ... of the order of examples go to the first, second, ... reader, as a group that
races needs its batch before anybody knows the number of its update. n groups compute gradients, and
an update is made when K are there (Dutta et al., arXiv 1803.01113).

    k_sync          all begin at the newest parameters; the n - K others are dropped
    k_batch_sync    likewise, but a group that has delivered begins another at once
    k_async         a group that has delivered waits for the update; the others count for a later
    k_batch_async   nobody waits: a group that has delivered reads and begins another at once

*Stale synchronous parallel* (Ho et al., "More effective distributed ML via a stale synchronous
parallel parameter server", NIPS 2013): a group's clock c is the number of its deliveries so far.
With staleness bound s it goes on only while

    c <= min over groups of c + s

and otherwise waits, without parameters, until the slowest group's next update.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from optdyn.base.trees import Array
from optdyn.clock.timeline import Arrival, Timeline, TimelineError

WAITING = ("k_sync", "k_batch_sync", "k_async", "k_batch_async")
NO_WAITING = "k_batch_async"


class Policy(NamedTuple):
    """Who waits for whom, and whose work is dropped."""

    arrivals: int = 1  # K, gradients of an update
    waiting: str = ""  # one of `WAITING`; "" is NO_WAITING
    bound: float = math.inf  # s, deliveries that a group may be ahead of the slowest
    delay_bound: float = math.inf  # R, a gradient as many updates old is dropped
    allotted: float = math.inf  # a, mean services after which a group begins again

    @property
    def drops(self) -> bool:
        """Whether gradients are dropped between updates."""
        return min(self.delay_bound, self.allotted) < math.inf

    @property
    def is_free(self) -> bool:
        """Whether each arrival is an update and its group reads that."""
        return self._replace(waiting=self.waiting or NO_WAITING) == Policy(waiting=NO_WAITING)


FREE_RUNNING = Policy()  # nobody waits, and nothing is dropped


class Task(NamedTuple):
    slot: int
    version: int  # updates before its read
    batch: int  # the first of its batches
    batches: int = 1

    @property
    def numbers(self) -> range:
        return range(self.batch, self.batch + self.batches)


class ArrivalOutcome(NamedTuple):
    row: bool  # whether the timeline has a new entry
    update: bool  # whether that changes what others read
    readers: list[int]  # groups that begin a task now, and drop the one before
    dropped: bool = False  # whether the gradient is too old and counts for nothing


class ArrivalOrder(Protocol):
    """An order of arrivals, which writes the entries of a timeline as groups arrive."""

    working: dict[int, Task]

    def arrivals_left(self, group: int) -> int:
        """Returns how many arrivals the group's task still takes."""

    def arrive(self, group: int, seconds: float) -> ArrivalOutcome:
        """Counts an arrival of a group that is at work."""


def blank_timeline(groups: int, steps: int, policy: Policy = FREE_RUNNING) -> Timeline:
    """Returns a timeline of zeros, for an `ArrivalOrder` to write; (steps, K) with K arrivals."""
    worker, write = np.zeros((2, steps), np.int32)
    shape = (steps,) if policy.arrivals == 1 else (steps, policy.arrivals)
    staleness, batch, workers, read = np.zeros((4, *shape), np.int32)
    dropped = np.zeros((steps, groups), bool) if policy.drops else None
    plan = Arrival(worker if len(shape) == 1 else workers, read, write, dropped=dropped)
    slots = 1 if policy.waiting.endswith("_sync") else groups
    return Timeline(worker, staleness, np.zeros(steps), slots, plan, batch)


class Slots:
    """Slots of a table of versions; a slot is free while no group reads it."""

    def __init__(self, slots: int):
        self._readers, self._free = [0] * slots, list(range(slots))

    def hold(self, slot: int) -> None:
        self._readers[slot] += 1

    def release(self, slot: int) -> None:
        self._readers[slot] -= 1
        if not self._readers[slot]:
            heapq.heappush(self._free, slot)

    def next(self) -> int:
        """Returns the lowest free slot, which stays free until a group reads it."""
        while self._readers[self._free[0]]:
            heapq.heappop(self._free)
        return self._free[0]


class Versions:
    """An `ArrivalOrder` of groups that share parameters, with that policy.

    A group whose work is dropped keeps its batch, and begins again at the newest version. A new
    version is written to a slot that no group at work has read.
    """

    def __init__(self, line: Timeline, groups: int, policy: Policy):
        self._line, self._groups, self._policy = line, groups, policy
        self._goes_on = "batch" in (policy.waiting or NO_WAITING)
        self.drops_others = policy.waiting.endswith("_sync")
        self._slots, self._newest = Slots(groups), 0
        self._clock = [0] * groups
        self._batches = 0
        self.updates = 0
        self.working = dict[int, Task]()
        self._delivered = list[tuple[int, Task]]()  # arrivals of the next update
        self._waiting = list[int]()
        for group in range(groups):
            self._begin_next(group)

    def arrivals_left(self, group: int) -> int:
        return 1

    def arrive(self, group: int, seconds: float) -> ArrivalOutcome:
        """Counts a gradient; the last of an update writes the timeline's next entry."""
        if self.updates - self.working[group].version >= self._policy.delay_bound:
            self.drop(group)
            return ArrivalOutcome(False, False, [group], dropped=True)
        self._delivered.append((group, self.leave(group)))
        self._clock[group] += 1
        self._waiting.append(group)
        update = len(self._delivered) == self._policy.arrivals
        interrupted = dict[int, Task]()
        if update and self.drops_others:
            interrupted = {other: self.leave(other) for other in list(self.working)}
            self._waiting = list(range(self._groups))
        if update:
            self._write(seconds)
        if not (update or self._goes_on):
            return ArrivalOutcome(False, False, [])
        clock, readers, bound = self._clock, self._waiting, self._policy.bound
        self._waiting = []
        if bound < math.inf:
            most = min(clock) + bound
            self._waiting = [other for other in readers if clock[other] > most]
            readers = [other for other in readers if clock[other] <= most]
        for other in readers:
            if other in interrupted:
                self.begin(other, interrupted[other].batch)
            else:
                self._begin_next(other)
        return ArrivalOutcome(update, update, readers)

    def drop(self, group: int) -> None:
        """Drops the group's work; it begins again with the same batch.

        The timeline says so only if the group had read an older version: otherwise it reads the
        same again, and a trace does not say whether that was before or after its arrival.
        """
        task = self.leave(group)
        if task.version < self.updates:
            self._line.plan.dropped[self.updates, group] = True
        self.begin(group, task.batch)

    def leave(self, group: int) -> Task:
        """Ends and returns the group's task."""
        task = self.working.pop(group)
        self._slots.release(task.slot)
        return task

    def begin(self, group: int, batch: int) -> None:
        self._slots.hold(self._newest)
        self.working[group] = Task(self._newest, self.updates, batch)

    def _begin_next(self, group: int) -> None:
        self.begin(group, self._batches)
        self._batches += 1

    def _write(self, seconds: float) -> None:
        line, plan, t, arrivals = self._line, self._line.plan, self.updates, self._delivered
        assert line.batch is not None
        self._newest = plan.write[t] = self._slots.next()
        line.worker[t], line.seconds[t] = arrivals[-1][0], seconds
        for n, (group, task) in enumerate(arrivals):
            place = (t, n) if len(arrivals) > 1 else t  # a single one is at all blocks' servers
            plan.worker[place], plan.read[place] = group, task.slot
            line.staleness[place], line.batch[place] = t - task.version, task.batch
        self.updates, self._delivered = t + 1, []


# (whether arrivals exchange, how many have so far) -> `numbers` of a `WorkerStep`
NumbersOf = Callable[..., Mapping[str, Array]]


class Exchanges:
    """An `ArrivalOrder` of workers with parameters each; an arrival is a local step.

    Worker i has slot i, and exchanges and reads with every `periods[i]`-th step. A race hears of a
    worker when it exchanges, and then lists its local steps together. The staleness is the number
    of others' exchanges since the read, or 0 where that does not count (`is_stale`).
    """

    def __init__(
        self,
        line: Timeline,
        periods: Sequence[int],
        numbers: NumbersOf = lambda *_: {},
        is_stale: bool = True,
    ):
        self._line, self._periods, self._numbers = line, periods, numbers
        self._is_stale = is_stale
        self._steps, self._exchanges, self._batches = 0, 0, 0
        self.working: dict[int, Task] = {}
        self._done = [0] * len(periods)  # local steps since a worker's last exchange
        for worker in range(len(periods)):
            self._read(worker)

    def _read(self, worker: int) -> None:
        period = self._periods[worker]
        self.working[worker] = Task(worker, self._exchanges, self._batches, period)
        self._done[worker], self._batches = 0, self._batches + period

    def arrivals_left(self, group: int) -> int:
        return self._periods[group] - self._done[group]

    def arrive(self, group: int, seconds: float) -> ArrivalOutcome:
        line, t, task = self._line, self._steps, self.working[group]
        exchange = self.arrivals_left(group) == 1
        line.worker[t], line.seconds[t] = group, seconds
        line.staleness[t] = self._exchanges - task.version if self._is_stale else 0
        self._exchanges += exchange
        line.plan.worker[t], line.plan.exchange[t] = group, exchange
        for name, value in self._numbers(exchange, self._exchanges).items():
            line.plan.numbers[name][t] = value
        assert line.batch is not None
        line.batch[t] = task.batch + self._done[group]
        self._steps, self._done[group] = t + 1, self._done[group] + 1
        if exchange:
            self._read(group)
        return ArrivalOutcome(True, exchange, [group] if exchange else [])


def exchanges_and_staleness(
    worker: np.ndarray, periods: Sequence[int], is_stale: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns what `Exchanges` finds, a hundred times as fast: (exchange, staleness), (steps,)."""
    exchange, staleness = np.zeros(len(worker), bool), np.zeros(len(worker), np.int32)
    steps_of = [np.flatnonzero(worker == i) for i in range(len(periods))]
    for steps, period in zip(steps_of, periods, strict=True):
        exchange[steps[period - 1 :: period]] = True
    if not is_stale:
        return exchange, staleness
    before = np.cumsum(exchange) - exchange
    for steps in steps_of:
        last = np.maximum.accumulate(np.where(exchange[steps], before[steps] + 1, 0))
        staleness[steps] = before[steps] - np.append(0, last)[:-1]
    return exchange, staleness


def replay_order(
    order: ArrivalOrder,
    worker: np.ndarray,
    seconds: np.ndarray,
    dropped: np.ndarray | None = None,
    drop: Callable[[int], None] | None = None,
    where: str = "",
) -> None:
    """Lets groups arrive in that order, (n,), or (n, K) for n updates of K arrivals.

    `dropped`, (n, groups), has the groups that were dropped before each update: they arrived too
    late, or not at all where there is a `drop`. Raises `TimelineError`, beginning with `where`, if
    a group arrives that waits for others, or is dropped and should not be.
    """
    for t, groups in enumerate(worker.reshape(len(worker), -1).tolist()):
        late = [] if dropped is None else np.flatnonzero(dropped[t]).tolist()
        for n, group in enumerate([*late, *groups]):
            is_late = n < len(late)
            if group not in order.working:
                raise TimelineError(f"{where}arrival {t}: worker {group} waits for others then")
            if is_late and drop:
                drop(group)
            elif order.arrive(group, float(seconds[t])).dropped != is_late:
                is_too = "is not too" if is_late else "is too"
                raise TimelineError(
                    f"{where}arrival {t}: the gradient of worker {group} {is_too} old to apply"
                )
