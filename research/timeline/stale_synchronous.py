"""Stale synchronous parallel: asynchronous arrivals, but nobody gets far ahead.

Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server" (NIPS
2013). A group's clock c is the number of its updates so far. With staleness bound s a group goes on
only while

    c <= min over groups of c + s

and otherwise waits, without parameters, until the slowest group's next update. With s = 0 everybody
waits for everybody after each update, and with s = infinity nobody ever waits.

The update rule is that of `strategies/asynchronous.py`. Only the order of arrivals differs, and
what is read: a group that waited reads the parameters as they are when it goes on.
"""

import heapq

import numpy as np

from research.timeline.arrivals import services
from research.timeline.base import Timeline
from research.timeline.service import Law
from research.timeline.versions import Versions, empty


def stale_synchronous(
    seed: int, law: Law, mean_seconds: np.ndarray, steps: int, bound: float
) -> Timeline:
    """The first `steps` arrivals of `groups` groups of `k` workers, with staleness bound `bound`.

    Arguments as those of `arrivals`, whose draws these are. A new version is written to a slot that
    no group at work has read, so `groups` slots do.
    """
    groups = len(mean_seconds)

    service = [services(seed, law, mean_seconds, steps, group) for group in range(groups)]
    working = [(next(service[group]), group) for group in range(groups)]
    heapq.heapify(working)
    line = empty(groups, steps)
    versions = Versions(line, groups, bound)
    for _ in range(steps):
        now, group = heapq.heappop(working)
        for other in versions.arrive(group, now).readers:
            heapq.heappush(working, (now + next(service[other]), other))
    return line._replace(control=None)  # batches are of updates here, not of readers
