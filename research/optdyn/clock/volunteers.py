"""Asynchronous arrivals of volunteers: their pace follows the hour, and they come and go.

    service   a draw times the load at the second at which it begins (`habits.Load`), and messages
    presence  a group leaves after an exponential time, loses what it was at, and when it is back
              reads what is newest then and begins anew
    server    one link, which every arrival holds for `sending` seconds, in order of arrival; then
              the update is made, and the group reads it

Event by event, from a queue: O(log groups) an event. Without any of the three it is `arrivals.py`,
to the rounding of a sum.
"""

from math import sin

import numpy as np

from optdyn.clock.arrivals import Queue, Work, computing, rounding
from optdyn.clock.base import Arrival, Timeline, TimelineError
from optdyn.clock.habits import Habits
from optdyn.clock.service import Draw
from optdyn.clock.versions import Slots

LOST = 100  # absences an update, at most
JOINS, DELIVERS, IS_DONE = range(3)  # kinds of events


def volunteers(
    seed: int, law: Draw, work: Work, steps: int, habits: Habits
) -> tuple[Timeline, np.ndarray]:
    """The first `steps` updates, and the absences so far: (n, 3), group, since when, until when.

    Other arguments as those of `arrivals`, whose draws these are. A group leaves, and has its hour,
    as a whole. All are there at second 0. A new version is written to a slot that no group needs,
    so `groups` slots do. Longer runs begin with shorter ones. Raises `TimelineError` where groups
    leave before they get anything done.
    """
    groups, (load, presence, absence, sending) = len(work.compute), habits
    service = [computing(seed, law, work, steps, group) for group in range(groups)]
    exchange, overlap = [float(work.of(group)[1][0]) for group in range(groups)], work.overlap
    amplitude, speed = (load.amplitude, load.speed) if load else (0.0, 0.0)
    phase = load.phase.tolist() if load else [0.0] * groups
    # A stream of their own, so that who is away does not depend on how much is computed.
    comings = [
        np.random.default_rng((seed, group, 1)) for group in range(groups if presence else 0)
    ]
    leaves = [rng.exponential(presence) for rng in comings]
    slots, newest, t = Slots(groups), 0, 0  # t: updates so far
    held, version = [0] * groups, [0] * groups
    worker, read, write, staleness = np.empty((4, steps), np.int32)
    seconds, away = np.empty(steps), list[tuple[int, float, float]]()
    free = 0.0  # the second at which the server's link is

    def next_of(group: int, now: float) -> tuple[float, int, int]:
        """What becomes of a group that begins at this second."""
        takes = next(service[group])
        if load:
            takes *= 1 + amplitude * sin(speed * now + phase[group])
        takes = max(takes, takes * (1 - overlap) + exchange[group])
        while presence and leaves[group] <= now + takes:
            left = leaves[group]
            back = left + comings[group].exponential(absence)
            leaves[group] = back + comings[group].exponential(presence)
            away.append((group, left, back))
            if len(away) > LOST * (t + groups):
                raise TimelineError(
                    f"config.cluster.presence = {presence:g}: after {t:,} updates groups "
                    f"have left {len(away):,} times, and must be there for longer than a service"
                )
            if back > now:
                return back, group, JOINS
        held[group], version[group] = newest, t
        slots.hold(newest)
        return now + takes, group, DELIVERS

    events = Queue([next_of(group, 0.0) for group in range(groups)], rounding(law))
    while t < steps:
        now, group, kind = events.pop()
        if kind == DELIVERS and sending:
            free = max(free, now) + sending
            events.push((free, group, IS_DONE))
            continue
        if kind != JOINS:
            worker[t], read[t], staleness[t] = group, held[group], t - version[group]
            slots.release(held[group])
            write[t] = newest = slots.next()
            seconds[t] = now
            t += 1
        events.push(next_of(group, now))
    absences = np.array(away).reshape(-1, 3)
    choice = Arrival(worker, read, write)
    return Timeline(worker, staleness, seconds, groups, choice), absences
