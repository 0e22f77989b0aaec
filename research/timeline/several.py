"""Updates that wait for several gradients of asynchronous groups (Dutta et al., arXiv 1803.01113).

n groups compute gradients, and an update is made when K are there.

    k_sync          all begin at the newest parameters; the n - K others are dropped
    k_batch_sync    likewise, but a group that has delivered begins another at once
    k_async         who has delivered waits for the update; the others go on, and count for a later
    k_batch_async   nobody waits: who has delivered reads and begins another at once
"""

import heapq

import numpy as np

from research.timeline.arrivals import services
from research.timeline.base import Timeline, TimelineError
from research.timeline.service import Law

WAITING = ("k_sync", "k_batch_sync", "k_async", "k_batch_async")


def several(
    seed: int, law: Law, mean_seconds: np.ndarray, steps: int, arrivals: int, waiting: str
) -> Timeline:
    """The first `steps` updates, of `arrivals` (K) gradients each.

    Other arguments as those of `timeline.arrivals`, whose draws these are: with K = 1
    `k_batch_async` is the same. `worker` is the group that delivers last. `staleness`, and
    `control["read"]`, are (steps, K), in the order of delivery; the one before, (steps,), where
    K is 1. Raises `TimelineError` if K gradients never come.
    """
    groups = len(mean_seconds)
    again, dropped = "batch" in waiting, waiting.endswith("_sync")
    if waiting not in WAITING or arrivals < 1 or (arrivals > groups and not again):
        raise TimelineError(f"{arrivals} arrivals of {groups} groups, {waiting!r}: never come")

    service = [services(seed, law, mean_seconds, steps, group) for group in range(groups)]
    working = list[tuple[float, int]]()
    held, version, newest = [0] * groups, [0] * groups, 0
    read, staleness = np.empty((2, steps, arrivals), np.int32)
    worker, write = np.empty((2, steps), np.int32)
    seconds = np.empty(steps)

    def begin(group: int, now: float, updates: int) -> None:
        held[group], version[group] = newest, updates
        heapq.heappush(working, (now + next(service[group]), group))

    for group in range(groups):
        begin(group, 0.0, 0)
    for t in range(steps):
        idle = list[int]()
        for i in range(arrivals):
            now, group = heapq.heappop(working)
            read[t, i], staleness[t, i] = held[group], t - version[group]
            if again and i < arrivals - 1:
                begin(group, now, t)
            else:
                idle.append(group)
        if dropped:
            idle, working = list(range(groups)), []
        seconds[t], worker[t] = now, group
        # A slot that no group at work has read: there are at most n - 1 of these.
        write[t] = newest = min(set(range(groups)) - {held[other] for _, other in working})
        for group in idle:
            begin(group, now, t + 1)
    slots = 1 if dropped else groups
    if arrivals == 1:
        return Timeline(worker, read[:, 0], write, staleness[:, 0], seconds, slots)
    return Timeline(worker, read[:, 0], write, staleness, seconds, slots, {"read": read})
