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
from research.timeline.versions import WAITING, Versions, empty


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
    if waiting not in WAITING or arrivals < 1 or (arrivals > groups and "batch" not in waiting):
        raise TimelineError(f"{arrivals} arrivals of {groups} groups, {waiting!r}: never come")

    service = [services(seed, law, mean_seconds, steps, group) for group in range(groups)]
    working = [(next(service[group]), group) for group in range(groups)]
    heapq.heapify(working)
    line = blank(groups, steps, arrivals, waiting)
    versions = Versions(line, groups, arrivals=arrivals, waiting=waiting)
    for _ in range(steps * arrivals):
        now, group = heapq.heappop(working)
        readers = versions.arrive(group, now).readers
        if len(readers) > 1:  # some of them may be at work, and drop that
            working = [entry for entry in working if entry[1] not in readers]
            heapq.heapify(working)
        for other in readers:
            heapq.heappush(working, (now + next(service[other]), other))
    # Batches are of updates here, not of readers.
    return line._replace(
        control={"read": line.control["read"]} if line.control and arrivals > 1 else None
    )


def blank(groups: int, steps: int, arrivals: int, waiting: str) -> Timeline:
    """Such a timeline before anybody has arrived. Where all others are dropped, one slot does."""
    return empty(1 if waiting.endswith("_sync") else groups, steps, arrivals)
