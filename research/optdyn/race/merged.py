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
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.clock.versions import Reading
from optdyn.core import Message, Params
from optdyn.race.server import event_of
from optdyn.race.worker import Activations, Answer, Workers, examples_of, halves_of, numbered
from optdyn.train.loop import Chunk
from optdyn.train.run import Run


def serve(run: Run, working: Mapping[int, Reading], workers: Workers, begins: Chunk) -> Workers:
    """Groups whose messages are whole gradients, in the order of the updates that they are of.

    `working`: what each is at. y is computed by the run's own compiled update, with zeros for the
    gradients of the other blocks.
    """
    halves = halves_of(run)
    assert halves.merged
    examples = examples_of(run)
    chosen, state, step = numbered(run), begins.state, begins.start
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
        if t >= run.config.steps:
            return  # the run has all its updates
        batch = chosen(reading.numbers)[0]
        loss, grads, slope = jax.device_get(pieces.serve(ahead.fresh, h, examples, batch))
        workers.send(group, Answer(read[group], slope), reading.numbers)
        begun.append((group, Message(loss, grads)))
        at = event_of(begins.run, t)
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
