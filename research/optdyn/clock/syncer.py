"""Learners on clocks of their own, and the syncer that merges what some of them have sent.

A learner sends fragment p of P after its first p H / P local steps, rounded down, and then after
every H. `grace` seconds after messages of K learners are there the syncer merges all that have
arrived by then, and sends Theta back to these learners. A learner takes it over at the end of a
local step, at least `delay` of its own steps, and at least one, after it had sent.

Nobody knows of what is under way. A learner's newer message takes the place of its older one when
it arrives, and is dropped if the older has been merged by then, as both began at the same Theta. A
learner has one message under way at most, and gives it up when it takes Theta over. It sends none
while Theta waits for that, nor in the step that takes it over: the message would be empty, and yet
count for the quorum. A merge belongs to the last local step before it; after the very last step
there are none.
"""

import math
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from optdyn.clock.trace import Held

NEVER = math.inf
DROPPED = -1


class Rounds(NamedTuple):
    """What follows each local step, (steps, P)."""

    receive: np.ndarray  # bool, whether the learner takes Theta over
    send: np.ndarray  # bool, whether it sends then
    into: np.ndarray  # int32, number of the merge that this message is in; 0: of none; or DROPPED
    merge: np.ndarray  # int32, number of the last merge that follows, from 1 on; 0: none does


def rounds(
    worker: np.ndarray,
    seconds: np.ndarray,
    message: np.ndarray,
    period: int,
    delay: int = 0,
    quorum: int = 0,
    grace: float = 0.0,
) -> Rounds:
    """What learners exchange at their local steps, and the merges that come of it.

    `worker`, (steps,): the learner of each local step; `seconds`, (steps,): when it is done.
    `message`, (learners, P): seconds of a message, in either direction. `period` is H, in local
    steps; `quorum` is K, 0: all learners; `delay` and `grace` as at the top of this file.
    """
    steps, (learners, fragments) = len(worker), message.shape
    phases = [p * period // fragments for p in range(fragments)]
    quorum, delay, takes = quorum or learners, max(delay, 1), message.T.tolist()
    receive, send = np.zeros((2, steps, fragments), bool)
    into, merge = np.zeros((2, steps, fragments), np.int32)
    done, count, nth = [0] * learners, [0] * fragments, list[int]()
    # Of each fragment: letters (second of arrival, learner, local step) on their way, and the local
    # steps of those that are there; when the next merge is; (second of arrival, own step of the
    # learner that is answered) of Theta; by which local step a learner took it over.
    under_way = [list[tuple[float, int, int]]() for _ in range(fragments)]
    there = [dict[int, int]() for _ in range(fragments)]
    due = [NEVER] * fragments
    back = [dict[int, tuple[float, int]]() for _ in range(fragments)]
    taken, free = ([[-1.0] * learners for _ in range(fragments)] for _ in range(2))

    def is_answered(p: int, m: int, sent: int) -> bool:
        return m in back[p] or sent < taken[p][m]

    for t, (m, now) in enumerate(zip(worker.tolist(), seconds.tolist(), strict=True)):
        done[m] += 1
        nth.append(done[m])
        end = seconds[t + 1] if t + 1 < steps else now
        for p, phase in enumerate(phases):
            arrives, since = back[p].get(m, (NEVER, 0))
            if arrives <= now:
                if done[m] >= since + delay:
                    receive[t, p], taken[p][m], free[p][m] = True, t, now
                    del back[p][m]
            elif (done[m] - phase) % period == 0 and free[p][m] <= now:
                send[t, p], free[p][m] = True, now + takes[p][m]
                heappush(under_way[p], (free[p][m], m, t))
            while True:
                if under_way[p] and under_way[p][0][0] <= min(due[p], end):
                    at, n, sent = heappop(under_way[p])
                    if is_answered(p, n, sent):
                        into[sent, p] = DROPPED
                        continue
                    there[p][n] = sent
                    if due[p] == NEVER and len(there[p]) == quorum:
                        due[p] = at + grace
                elif due[p] <= end:
                    count[p] += 1
                    merge[t, p] = count[p]
                    for n, sent in there[p].items():
                        into[sent, p] = count[p]
                        back[p][n] = due[p] + takes[p][n], nth[sent]
                    there[p], due[p] = {}, NEVER
                else:
                    break
    for p, letters in enumerate(under_way):
        for _, n, sent in letters:
            if is_answered(p, n, sent):
                into[sent, p] = DROPPED
    return Rounds(receive, send, into, merge)


def recorded(held: Held, fragments: int, steps: int) -> Rounds:
    """The rounds of a run that a trace holds. Raises `TimelineError`."""
    lows = {"into": DROPPED}
    each = (held.whole(name, (fragments,), lows.get(name, 0), steps) for name in Rounds._fields)
    receive, send, into, merge = each
    return Rounds(receive.astype(bool), send.astype(bool), into, merge)


def merges(last: np.ndarray) -> np.ndarray:
    """(steps, P) int32: how many merges follow each local step, from `Rounds.merge`."""
    return np.diff(np.maximum.accumulate(last, axis=0), axis=0, prepend=last[:1] * 0)


def ages(worker: np.ndarray, of: Rounds) -> tuple[np.ndarray, np.ndarray]:
    """(steps, P) a learner's local steps since it last took a merge over, and (steps, P) how many
    merges of the fragment it has not seen.
    """
    order = np.argsort(worker, kind="stable")  # a learner's steps are together, in order
    place = np.arange(len(worker))[:, None]
    own = worker[order]
    begin = np.searchsorted(own, own)[:, None]  # of the learner's steps

    def latest(flags: np.ndarray) -> np.ndarray:
        """The place of the learner's last flagged step so far, or the one before it begins."""
        return np.maximum(np.maximum.accumulate(np.where(flags[order], place, -1)), begin - 1)

    def held(values: np.ndarray, at: np.ndarray) -> np.ndarray:
        """What is at those places, and 0 before a learner begins."""
        return np.where(at >= begin, np.take_along_axis(values, np.maximum(at, 0), axis=0), 0)

    received = latest(of.receive)
    # The merge that the last message is in which was not dropped.
    letter = held(of.into[order], latest(of.send & (of.into != DROPPED)))
    seen = held(held(letter, received), place - 1)  # before the step
    made = np.maximum.accumulate(np.insert(of.merge, 0, 0, axis=0)[:-1], axis=0)
    back = np.argsort(order)
    steps, late = (place - received)[back], made - seen[back]
    return steps.astype(np.int32), late.astype(np.int32)
