"""Which version each group has read, kept up as they arrive: what their order alone decides.

A group that arrives reads the version it makes, or waits for others and reads a later one. So the
order of the arrivals, drawn, raced or replayed, says all: slots, staleness, who goes on, and which
batch is whose. Batches 0, 1, ... of the order of examples go to the first, second, ... reader, for
a group that races has to know its batch before anybody knows the number of its update. Where an
update is of several arrivals these are parts of batches.

n groups compute gradients, and an update is made when K are there (Dutta et al., arXiv 1803.01113).

    k_sync          all begin at the newest parameters; the n - K others are dropped
    k_batch_sync    likewise, but a group that has delivered begins another at once
    k_async         who has delivered waits for the update; the others go on, and count for a later
    k_batch_async   nobody waits: who has delivered reads and begins another at once

*Stale synchronous parallel* (Ho et al., "More effective distributed ML via a stale synchronous
parallel parameter server", NIPS 2013): a group's clock c is the number of its deliveries so far.
With staleness bound s it goes on only while

    c <= min over groups of c + s

and otherwise waits, without parameters, until the slowest group's next update. With s = 0 everybody
waits for everybody after each update. A group that waited reads the parameters as they are when it
goes on.
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
    waiting: str = ""  # one of `WAITING`; "" is NOBODY
    bound: float = math.inf  # s, deliveries that a group may be ahead of the slowest
    delay_bound: float = math.inf  # R, a gradient that is as many updates old is dropped
    allotted: float = math.inf  # a, mean services after which a group begins again

    @property
    def drops(self) -> bool:
        """Whether a gradient can be dropped that an update does not drop by itself."""
        return min(self.delay_bound, self.allotted) < math.inf

    @property
    def is_free(self) -> bool:
        """Whether each arrival is an update and its group reads that."""
        return self._replace(waiting=self.waiting or NO_WAITING) == Policy(waiting=NO_WAITING)


FREE_RUNNING = Policy()  # nobody waits, and nothing is dropped


class Task(NamedTuple):
    """What a group is working on."""

    slot: int
    version: int  # updates of what it has read, before its read
    batch: int  # the first of its batches
    batches: int = 1

    @property
    def numbers(self) -> range:
        """The numbers of its batches."""
        return range(self.batch, self.batch + self.batches)


class Outcome(NamedTuple):
    """What an arrival did."""

    row: bool  # whether the timeline has an entry more
    update: bool  # whether it is one that changes what others read
    readers: list[int]  # groups that begin now, and drop what they were at
    dropped: bool = False  # whether its gradient is too old and counts for nothing


class ArrivalOrder(Protocol):
    """An order of arrivals: it writes the entries of a timeline as groups arrive."""

    working: dict[int, Task]

    def left(self, group: int) -> int:
        """Arrivals until the group has done what it is at."""

    def arrive(self, group: int, seconds: float) -> Outcome:
        """The group is at work, and has come one arrival further."""


def blank_timeline(groups: int, steps: int, policy: Policy = FREE_RUNNING) -> Timeline:
    """The timeline of groups before they arrive: an `ArrivalOrder` writes its updates as they come.

    With several arrivals K an update is of parts of batches, and what is of each is (steps, K). One
    slot does where an update drops all other work.
    """
    worker, write = np.zeros((2, steps), np.int32)
    shape = (steps,) if policy.arrivals == 1 else (steps, policy.arrivals)
    staleness, batch, workers, read = np.zeros((4, *shape), np.int32)
    dropped = np.zeros((steps, groups), bool) if policy.drops else None
    plan = Arrival(worker if len(shape) == 1 else workers, read, write, dropped=dropped)
    slots = 1 if policy.waiting.endswith("_sync") else groups
    return Timeline(worker, staleness, np.zeros(steps), slots, plan, batch)


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
    """An `ArrivalOrder` of groups that share parameters, with that policy.

    Who is dropped keeps its batch, and begins again at the newest version. A new version is written
    to a slot that no group at work has read, so that as many slots as groups do.
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
        self._had = list[tuple[int, Task]]()  # arrivals of the next update
        self._waiting = list[int]()
        for group in range(groups):
            self._begin_next(group)

    def left(self, group: int) -> int:
        """One arrival: a group delivers whole gradients."""
        return 1

    def arrive(self, group: int, seconds: float) -> Outcome:
        """The group has delivered; the last of an update writes the timeline's next entry."""
        if self.updates - self.working[group].version >= self._policy.delay_bound:
            self.drop(group)
            return Outcome(False, False, [group], dropped=True)
        self._had.append((group, self.leave(group)))
        self._clock[group] += 1
        self._waiting.append(group)
        update = len(self._had) == self._policy.arrivals
        kept = dict[int, Task]()
        if update and self.drops_others:
            kept = {other: self.leave(other) for other in list(self.working)}
            self._waiting = list(range(self._groups))
        if update:
            self._write(seconds)
        if not (update or self._goes_on):
            return Outcome(False, False, [])
        clock, readers, bound = self._clock, self._waiting, self._policy.bound
        self._waiting = []
        if bound < math.inf:
            most = min(clock) + bound
            self._waiting = [other for other in readers if clock[other] > most]
            readers = [other for other in readers if clock[other] <= most]
        for other in readers:
            if other in kept:
                self.begin(other, kept[other].batch)
            else:
                self._begin_next(other)
        return Outcome(update, update, readers)

    def drop(self, group: int) -> None:
        """What the group is at counts for nothing, and it begins again.

        It is written down only if the group had read an older version: otherwise it reads the same
        again, and a trace does not say whether that was before or after an arrival of its own.
        """
        had = self.leave(group)
        if had.version < self.updates:
            self._line.plan.dropped[self.updates, group] = True
        self.begin(group, had.batch)

    def leave(self, group: int) -> Task:
        """The group is at work no more."""
        had = self.working.pop(group)
        self._slots.release(had.slot)
        return had

    def begin(self, group: int, batch: int) -> None:
        """The group reads the newest version, for the gradient of that batch."""
        self._slots.hold(self._newest)
        self.working[group] = Task(self._newest, self.updates, batch)

    def _begin_next(self, group: int) -> None:
        self.begin(group, self._batches)
        self._batches += 1

    def _write(self, seconds: float) -> None:
        """Writes the next update, which is of the arrivals since the last one."""
        line, plan, t, had = self._line, self._line.plan, self.updates, self._had
        assert line.batch is not None
        self._newest = plan.write[t] = self._slots.next()
        line.worker[t], line.seconds[t] = had[-1][0], seconds
        for n, (group, reading) in enumerate(had):
            place = (t, n) if len(had) > 1 else t  # of one, where there are several, all servers'
            plan.worker[place], plan.read[place] = group, reading.slot
            line.staleness[place], line.batch[place] = t - reading.version, reading.batch
        self.updates, self._had = t + 1, []


# (whether arrivals exchange, how many have so far) -> what else is decided of them, by name
NumbersOf = Callable[..., Mapping[str, Array]]


class Exchanges:
    """An `ArrivalOrder` of workers with parameters of their own; an arrival is a local step.

    Worker i exchanges with every `periods[i]`-th. Of a race it is heard of when it exchanges, and
    its local steps are then listed together: what workers do by themselves in between has no order
    that would change anything. A worker's slot is its own, and it reads as it exchanges. The
    staleness is how many exchanges of others there were since, or none where what it has read does
    not count (`is_stale`).
    """

    def __init__(
        self,
        line: Timeline,
        periods: Sequence[int],
        decided: NumbersOf = lambda *_: {},
        is_stale: bool = True,
    ):
        self._line, self._periods, self._decided = line, periods, decided
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

    def left(self, group: int) -> int:
        """Local steps until the worker exchanges."""
        return self._periods[group] - self._done[group]

    def arrive(self, group: int, seconds: float) -> Outcome:
        """The worker has taken a local step; the timeline's next entry is written."""
        line, t, had = self._line, self._steps, self.working[group]
        exchange = self.left(group) == 1
        line.worker[t], line.seconds[t] = group, seconds
        line.staleness[t] = self._exchanges - had.version if self._is_stale else 0
        self._exchanges += exchange
        line.plan.worker[t], line.plan.exchange[t] = group, exchange
        for name, value in self._decided(exchange, self._exchanges).items():
            line.plan.numbers[name][t] = value
        assert line.batch is not None
        line.batch[t] = had.batch + self._done[group]
        self._steps, self._done[group] = t + 1, self._done[group] + 1
        if exchange:
            self._read(group)
        return Outcome(True, exchange, [group] if exchange else [])


def exchanges_and_staleness(
    worker: np.ndarray, periods: Sequence[int], is_stale: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(steps,) each: whether local steps exchange and their staleness, as `Exchanges` has them.

    It is a hundred times as fast, which the start of a simulated run has to be.
    """
    exchange, late = np.zeros(len(worker), bool), np.zeros(len(worker), np.int32)
    steps_of = [np.flatnonzero(worker == i) for i in range(len(periods))]
    for steps, period in zip(steps_of, periods, strict=True):
        exchange[steps[period - 1 :: period]] = True
    if not is_stale:
        return exchange, late
    before = np.cumsum(exchange) - exchange
    for steps in steps_of:
        last = np.maximum.accumulate(np.where(exchange[steps], before[steps] + 1, 0))
        late[steps] = before[steps] - np.append(0, last)[:-1]
    return exchange, late


def replay_order(
    order: ArrivalOrder,
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
                    f"{where}arrival {t}: what worker {group} has {is_too} old to apply"
                )
