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
    phases = np.arange(fragments) * period // fragments
    quorum, delay = quorum or learners, max(delay, 1)
    made = Rounds(*np.zeros((4, steps, fragments), np.int32))
    receive, send = np.zeros((2, steps, fragments), bool)
    done, count = np.zeros(learners, int), np.zeros(fragments, int)
    due = np.full(fragments, AWAY)  # when the next merge is
    there, back = np.full((2, fragments, learners), AWAY)
    sent, step = np.zeros((2, fragments, learners), int)  # by which update, and own local step

    def merge_of(p: int) -> float:
        """When the next merge is, as far as it is known."""
        known = there[p][there[p] < AWAY]
        if len(known) < quorum:
            return AWAY
        return float(np.partition(known, quorum - 1)[quorum - 1]) + grace

    for t, (m, now) in enumerate(zip(worker.tolist(), seconds.tolist(), strict=True)):
        done[m] += 1
        receive[t] = (back[:, m] <= now) & (done[m] >= step[:, m] + delay)
        back[receive[t], m] = AWAY
        stands = (there[:, m] == AWAY) | ((there[:, m] <= now) & (due == AWAY))
        turn = (done[m] - phases) % period == 0
        send[t] = turn & stands & (back[:, m] == AWAY) & ~receive[t]
        for p in np.flatnonzero(send[t]).tolist():
            there[p, m], sent[p, m], step[p, m] = now + message[m, p], t, done[m]
            due[p] = merge_of(p)
        end = seconds[t + 1] if t + 1 < steps else now
        while (ready := np.flatnonzero(due <= end)).size:
            for p in ready.tolist():
                (members,) = np.nonzero(there[p] <= due[p])
                count[p] += 1
                made.merge[t, p] = made.into[sent[p, members], p] = count[p]
                back[p, members], there[p, members] = due[p] + message[members, p], AWAY
                due[p] = merge_of(p)
    return made._replace(receive=receive, send=send)


def recorded(held: Held, fragments: int, steps: int) -> Rounds:
    """The rounds of a run that a trace holds. Raises `TimelineError`."""
    each = (held.whole(name, (fragments,), 0, steps) for name in Rounds._fields)
    receive, send, into, merge = each
    return Rounds(receive.astype(bool), send.astype(bool), into, merge)


def merges(last: np.ndarray) -> np.ndarray:
    """(steps, P) int32: how many merges follow each local step, from `Rounds.merge`."""
    return np.diff(np.maximum.accumulate(last, axis=0), axis=0, prepend=last[:1] * 0)


def ages(worker: np.ndarray, learners: int, of: Rounds) -> tuple[np.ndarray, np.ndarray]:
    """(steps, P) a learner's local steps since it last took a merge over, and (steps, P) how many
    merges of the fragment it has not seen.
    """
    shape = learners, of.send.shape[1]
    since, letter, seen = np.zeros((3, *shape), np.int32)
    made = np.zeros(shape[1], np.int32)
    steps, late = np.zeros((2, *of.send.shape), np.int32)
    for t, m in enumerate(worker.tolist()):
        since[m] += 1
        late[t] = made - seen[m]
        now = of.receive[t]
        since[m, now], seen[m, now] = 0, letter[m, now]
        steps[t] = since[m]
        letter[m] = np.where(of.send[t], of.into[t], letter[m])
        made = np.maximum(made, of.merge[t])
    return steps, late
