"""Groups that wait for one another: for K gradients an update, and for those that lag behind.

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
waits for everybody after each update, and with s = infinity nobody ever waits. A group that waited
reads the parameters as they are when it goes on.

*Ringmaster* (`methods/ringmaster.py`) waits for nobody, and drops an arrival whose gradient was
taken `delay_bound` (R) or more updates ago: its group begins again at the newest parameters.

*MindFlayer* (`methods/mindflayer.py`): who has not delivered after `allotted` times its mean
service drops what it is at, and begins again at the newest parameters.
"""

import math

from optdyn.clock.arrivals import Queue, Work, rounding, services
from optdyn.clock.base import Timeline, TimelineError
from optdyn.clock.service import Draw
from optdyn.clock.versions import NOBODY, Versions, blank

LATE = 1000  # gradients dropped for one that is delivered, at most


def several(
    seed: int,
    law: Draw,
    work: Work,
    steps: int,
    arrivals: int = 1,
    waiting: str = NOBODY,
    bound: float = math.inf,
    delay_bound: float = math.inf,
    allotted: float = math.inf,
) -> Timeline:
    """The first `steps` updates, of `arrivals` (K) gradients each, with staleness bound `bound`.

    Other arguments as those of `timeline.arrivals`, whose draws these are: by default it is the
    same. `worker` is the group that delivers last. `staleness`, and the workers and reads of its
    choice, are (steps, K), in the order of delivery, or (steps,) where K is 1. A new version is
    written to a slot that no group at work has read, so `groups` slots do. K is at most `groups`,
    but where a group delivers several. Raises `TimelineError` if groups hardly deliver.
    """
    groups = len(work.compute)
    service = [services(seed, law, work, steps, group) for group in range(groups)]
    limit = (allotted * work.means().max(axis=1)).tolist() if allotted < math.inf else []

    def next_of(group: int, now: float) -> tuple[float, int, bool]:
        """When the group is done that begins now, or is late."""
        takes = next(service[group])
        if limit and takes > limit[group]:
            return now + limit[group], group, True
        return now + takes, group, False

    working = Queue([next_of(group, 0.0) for group in range(groups)], rounding(law))
    line = blank(groups, steps, arrivals, waiting, min(delay_bound, allotted) < math.inf)
    versions = Versions(line, groups, bound, arrivals, waiting, delay_bound)
    left, late = steps * arrivals, 0
    while left:
        now, group, is_late = working.pop()
        if is_late:
            versions.drop(group)
            working.push(next_of(group, now))
            late += 1
            if late > LATE * (steps * arrivals - left + groups):
                raise TimelineError(
                    f"config.method.allotted = {allotted:g}: groups have begun again {late:,} "
                    "times and hardly deliver; it must be longer"
                )
            continue
        _, _, readers, dropped = versions.arrive(group, now)
        left -= not dropped
        if waiting.endswith("_sync") and len(readers) > 1:  # they may be at work, and drop that
            working.drop(set(readers))
        for other in readers:
            working.push(next_of(other, now))
    return line._replace(batch=None)  # batches are of updates here, not of readers
