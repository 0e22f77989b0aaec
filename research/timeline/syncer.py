"""Learners on clocks of their own, and the syncer that merges what some of them have sent.

A learner sends fragment p of P after its first p H / P local steps, rounded down, and then after
every H. `grace` seconds after the K-th learner's message the syncer merges all that have arrived by
then, and sends Theta back to these learners. A learner takes it over at the end of a local step, at
least `delay` of its own steps, and at least one, after it had sent.

A learner has at most one message of a fragment. While it waits at the syncer a newer one may take
its place, until a merge is due. While Theta is on its way back the learner sends none, nor in the
step that takes Theta over: that message would be empty, and yet count for the quorum. A merge
belongs to the last local step before it; after the very last step there are none.
"""

import math
from bisect import bisect_left, insort
from typing import NamedTuple

import numpy as np

from optdyn.timeline.trace import Held

AWAY = math.inf  # when a message arrives that is nowhere


class Rounds(NamedTuple):
    """What follows each local step, (steps, P)."""

    receive: np.ndarray  # bool, whether the learner takes Theta over
    send: np.ndarray  # bool, whether it sends then
    into: np.ndarray  # int32, the number of the merge that this message is in; 0: of none
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
    done, count = [0] * learners, [0] * fragments
    there = [dict[int, float]() for _ in range(fragments)]  # when a learner's message arrives
    known = [list[float]() for _ in range(fragments)]  # these seconds, in order
    due = [AWAY] * fragments  # when the next merge is, as far as it is known
    back = [dict[int, float]() for _ in range(fragments)]  # when Theta arrives at a learner
    # By which update a message was sent, and by which of the learner's own steps.
    sent, step = ([[0] * learners for _ in range(fragments)] for _ in range(2))

    def next_merge(p: int) -> float:
        return known[p][quorum - 1] + grace if len(known[p]) >= quorum else AWAY

    for t, (m, now) in enumerate(zip(worker.tolist(), seconds.tolist(), strict=True)):
        done[m] += 1
        end = seconds[t + 1] if t + 1 < steps else now
        for p, phase in enumerate(phases):
            if m in back[p]:
                if back[p][m] <= now and done[m] >= step[p][m] + delay:
                    receive[t, p] = True
                    del back[p][m]
            elif (done[m] - phase) % period == 0:
                before = there[p].get(m, AWAY)
                if before == AWAY or (before <= now and due[p] == AWAY):
                    if before < AWAY:
                        del known[p][bisect_left(known[p], before)]
                    there[p][m] = now + takes[p][m]
                    insort(known[p], there[p][m])
                    send[t, p], sent[p][m], step[p][m] = True, t, done[m]
                    due[p] = next_merge(p)
            while due[p] <= end:
                members = [m for m, at in there[p].items() if at <= due[p]]
                count[p] += 1
                merge[t, p] = count[p]
                for member in members:
                    into[sent[p][member], p] = count[p]
                    back[p][member] = due[p] + takes[p][member]
                    del there[p][member]
                del known[p][: len(members)]
                due[p] = next_merge(p)
    return Rounds(receive, send, into, merge)


def recorded(held: Held, fragments: int, steps: int) -> Rounds:
    """The rounds of a run that a trace holds. Raises `TimelineError`."""
    each = (held.whole(name, (fragments,), 0, steps) for name in Rounds._fields)
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
    letter = held(of.into[order], latest(of.send))  # the merge that the last message is in
    seen = held(held(letter, received), place - 1)  # before the step
    made = np.maximum.accumulate(np.insert(of.merge, 0, 0, axis=0)[:-1], axis=0)
    back = np.argsort(order)
    steps, late = (place - received)[back], made - seen[back]
    return steps.astype(np.int32), late.astype(np.int32)
