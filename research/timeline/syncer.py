"""Learners on clocks of their own, and the syncer that merges what some of them have sent.

A fragment p of P is sent by a learner after its local steps p H / P, rounded down, and then every H
of them. The syncer merges it `window` seconds after the message of the K-th learner is there: those
of all learners whose message is there by then. Theta goes back to these. A learner takes it over at
the end of a local step, `delay` or more of its own after it had sent, and one at least.

A learner has one message of a fragment at most: under way to the syncer, or there, where a newer
one may take its place until a merge is due; or on its way back, and then it sends none. Nor does
it in the step that takes one over: there is nothing to tell yet, and it would count for the quorum.
A merge is of the update that its seconds follow; one that would be after the last update is none.
"""

import math
from typing import NamedTuple

import numpy as np

AWAY = math.inf  # when a message is there that is nowhere


class Rounds(NamedTuple):
    """What follows each local step, (steps, P)."""

    receive: np.ndarray  # bool, whether the learner takes over what is back
    send: np.ndarray  # bool, whether it sends then
    into: np.ndarray  # int32, the number of the merge that this is in; 0: it is overtaken
    merge: np.ndarray  # int32, of merges made then the last one's number, from 1 on; 0: none


def rounds(
    worker: np.ndarray,
    seconds: np.ndarray,
    message: np.ndarray,
    period: int,
    delay: int = 0,
    quorum: int = 0,
    window: float = 0.0,
) -> Rounds:
    """What learners exchange at their local steps, and the merges that come of it.

    `worker`, (steps,): the learner of each local step; `seconds`, (steps,): when it is done.
    `message`, (learners, P): seconds of a message, in either direction. `period` is H, in local
    steps; `quorum` is K, 0: all learners; `delay` and `window` as at the top of this file.
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
        return float(np.partition(known, quorum - 1)[quorum - 1]) + window

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
