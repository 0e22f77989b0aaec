"""The server of a race that computes the blocks which it keeps (arXiv 1606.04487).

    group    h = front(x_r, batch)            its activations, of update t if they are the t-th
    server   y_{t+1} from back(y_t, h)        at once, and dl/dh back to the group
    group    dl/dx
    server   x_{t+1} from dl/dx               in the order of the numbers

So an update is in two places at a time, and one number says which it is. y is ahead of x by the
updates whose groups are still on their way back. A group whose way was shorter than that of one
before it waits for that one, and reads the version that it made itself.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from research.program import Raced
from research.racing.worker import Activations, Answer, Workers
from research.strategies.base import Event, Message, Params, State
from research.timeline.versions import Reading


def serve(
    workers: Workers,
    halves: Raced,
    working: Mapping[int, Reading],
    batch: Callable[[range], tuple[Any, np.ndarray]],
    event: Callable[[int], Event | None],
    state: State,
    step: int,
) -> Workers:
    """Groups whose messages are whole gradients, in the order of the updates that they are of.

    `working`: what each is at; `batch(numbers)`: examples, and which are of it; `event(t)`: update
    t, if the run has it; `state`: that after `step` updates. y is computed by the run's own
    compiled update, with zeros for the gradients of the other blocks.
    """
    assert halves.merged
    pieces, numbers = halves.merged, itertools.count(step)
    ahead = jax.tree.map(jnp.copy, state)
    nothing = jax.tree.map(np.zeros_like, jax.device_get(state.params))
    read, back = dict[int, Params](), dict[int, Params]()  # x_r and dl/dx, by group
    begun = deque[tuple[int, Message]]()  # updates that y has had and x has not

    def send(group: int, given: Params, numbers: range) -> None:
        read[group] = given
        workers.send(group, given, numbers)

    def first_half(group: int, h: np.ndarray) -> None:
        nonlocal ahead
        t, reading = next(numbers), working[group]
        at = event(t)
        if at is None:
            return  # the run has all its updates
        loss, grads, slope = jax.device_get(pieces.serve(ahead.fresh, h, *batch(reading.numbers)))
        workers.send(group, Answer(read[group], slope), reading.numbers)
        begun.append((group, Message(loss, grads)))
        at = at._replace(staleness=np.asarray(t - reading.version, np.int32))
        ahead, _ = halves.update(ahead, at, Message(loss, {**nothing, **grads}))

    def receive(seconds: float) -> tuple[int, Message] | None:
        until = time.monotonic() + seconds
        while True:
            if begun and begun[0][0] in back:
                group, half = begun.popleft()
                return group, half._replace(grads={**half.grads, **back.pop(group)})
            heard = workers.receive(max(until - time.monotonic(), 0.0))
            if heard is None:
                return None
            group, sent = heard
            if isinstance(sent, Activations):
                first_half(group, sent.h)
            else:
                back[group] = sent

    return Workers(send, receive)
