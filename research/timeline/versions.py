"""Which version each group has read, kept up as they arrive: what their order alone decides.

A group that arrives reads the version it makes, or waits (`stale_synchronous.py`) and reads a later
one. So the order of the arrivals, drawn or raced, says all: slots, staleness, who goes on, and
which batch is whose. Batches 0, 1, ... of the order of examples go to the first, second, ...
reader, for a group that races has to know its batch before anybody knows the number of its update.
"""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from research.timeline.base import Timeline, TimelineError


class Reading(NamedTuple):
    """What a group is working on."""

    slot: int
    version: int  # updates before its read
    batch: int


class Slots:
    """Slots of a table of versions, which those hold who have read one."""

    def __init__(self, slots: int):
        self._holders, self._free = [0] * slots, list(range(slots))

    def hold(self, slot: int) -> None:
        self._holders[slot] += 1

    def release(self, slot: int) -> None:
        self._holders[slot] -= 1
        if not self._holders[slot]:
            heapq.heappush(self._free, slot)

    def next(self) -> int:
        """The first slot that nobody holds; it is the next one again until somebody holds it."""
        while self._holders[self._free[0]]:
            heapq.heappop(self._free)
        return self._free[0]


class Versions:
    """Versions that `groups` groups hold, none further ahead than `bound` of the slowest."""

    def __init__(self, groups: int, bound: float = math.inf):
        self._bound, self._slots = bound, Slots(groups)
        self._clock = [0] * groups
        self._updates, self._batches = 0, groups
        self.working = {group: Reading(0, 0, group) for group in range(groups)}
        self._waiting: list[int] = []
        for _ in range(groups):
            self._slots.hold(0)

    def arrive(self, group: int) -> tuple[Reading, int, list[int]]:
        """An update by a group that is working: what it had read, the slot written, who reads now.

        A new version is written to a slot that no group at work has read, so `groups` slots do.
        """
        had = self.working.pop(group)
        self._slots.release(had.slot)
        write = self._slots.next()
        self._updates += 1
        self._clock[group] += 1
        self._waiting.append(group)
        goes_on = math.inf if self._bound == math.inf else min(self._clock) + self._bound
        readers = [other for other in self._waiting if self._clock[other] <= goes_on]
        for other in readers:
            self._waiting.remove(other)
            self._slots.hold(write)
            self.working[other] = Reading(write, self._updates, self._batches)
            self._batches += 1
        return had, write, readers


def empty(groups: int, steps: int) -> Timeline:
    """The timeline of a race before it is run: `put` writes its updates as they come.

    Its `control` has the batch of each update, (steps,).
    """
    worker, read, write, staleness, batch = np.zeros((5, steps), np.int32)
    return Timeline(worker, read, write, staleness, np.zeros(steps), groups, {"batch": batch})


def put(line: Timeline, t: int, group: int, seconds: float, had: Reading, write: int) -> None:
    """Writes update t into the arrays of the timeline."""
    line.worker[t], line.seconds[t] = group, seconds
    line.read[t], line.write[t], line.staleness[t] = had.slot, write, t - had.version
    control = line.control or {}
    for name, value in {"batch": had.batch, "read": had.slot, "write": write}.items():
        if name in control:
            control[name][t] = value  # of every server


def fill(
    line: Timeline, worker: Sequence[int], seconds: np.ndarray, bound: float = math.inf
) -> Versions:
    """Writes arrivals in that order into the timeline; returns where the groups are after them.

    Raises `TimelineError` where a group arrives that waits for others.
    """
    versions = Versions(line.slots, bound)
    for t, group in enumerate(worker):
        if group not in versions.working:
            raise TimelineError(f"arrival {t}: worker {group} waits, with staleness bound {bound}")
        had, write, _ = versions.arrive(group)
        put(line, t, group, seconds[t], had, write)
    return versions
