"""Who makes the updates of a race: this process, or the parts that keep some blocks each.

    x_{t+1} = step(x_t, message)      the method's own update rule

Both answer the same questions, so that a race only has to put arrivals in order.

A merged server computes the blocks which it keeps (arXiv 1606.04487):

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base.trees import Tree
from optdyn.clock.timeline import entries_at
from optdyn.clock.versions import Task
from optdyn.core import Event, Info, Message, Params, State
from optdyn.race.worker import (
    Activations,
    Answer,
    Shards,
    Workers,
    arrivals_per_update,
    batch_indices,
    compiled_halves,
    device_examples,
    message_of,
)
from optdyn.train.loop import Chunk
from optdyn.train.run import Run, joined


class Server(NamedTuple):
    """What a race asks of it. A state passes through, and is that of the trainer's run."""

    begin: Callable[[Chunk], None]  # all that is not to be on the clock of the race
    update: Callable[[Chunk, State, int, Sequence[Tree]], tuple[State, Info]]  # t, of such messages
    given: Callable[[State, Iterable[int]], Mapping[int, Tree]]  # what a worker reads, by slot
    collected: Callable[[State], State]  # the state after updates


def make_server(run: Run, parts: Shards | None) -> Server:
    """The server of a run's race, in those parts if there are any."""
    return _server_in_parts(run, parts) if parts else _single_server(run)


def event_of(run: Run, t: int) -> Event:
    """Update t as `Raced` takes it."""
    line, hyper = run.timeline, {name: values[t] for name, values in run.hypers.items()}
    return Event(entries_at(line.plan, t), hyper, line.staleness[t])


def _single_server(run: Run) -> Server:
    halves = compiled_halves(run)
    examples = device_examples(run)
    second, parts = batch_indices(run, independent=True), arrivals_per_update(run)

    def begin(chunk: Chunk) -> None:
        shapes = message_of(run)
        shapes = shapes._replace(loss=jax.ShapeDtypeStruct((), shapes.loss.dtype))
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        for metered in {False, run.config.probes.momentum}:
            state = jax.tree.map(jnp.copy, chunk.state)
            update(replace(chunk, metered=metered), state, 0, [nothing] * parts)

    def update(chunk: Chunk, state: State, t: int, sent: Sequence[Tree]) -> tuple[State, Info]:
        message = jax.tree.map(lambda *each: np.stack(each), *sent) if parts > 1 else sent[0]
        at = event_of(chunk.run, t)
        if not chunk.metered:
            return halves.update(state, at, message)
        assert run.timeline.batch is not None
        numbers = np.ravel(run.timeline.batch[t])
        other = joined(second(numbers), parts)[0]
        return halves.metered(state, at, message, examples, other)

    def given(state: State, slots: Iterable[int]) -> dict[int, Tree]:
        return {slot: jax.device_get(halves.given(state, slot)) for slot in slots}

    return Server(begin, update, given, lambda state: state)


def _server_in_parts(run: Run, parts: Shards) -> Server:
    """The parts have the state; that of the run is what they said when they were last asked."""

    def update(chunk: Chunk, state: State, t: int, sent: Sequence[Tree]) -> tuple[State, Info]:
        (message,) = sent
        parts.step(event_of(chunk.run, t), message.grads)
        return state, {"loss": message.loss}

    def given(state: State, slots: Iterable[int]) -> dict[int, Tree]:
        return {slot: slot for slot in slots}

    return Server(lambda chunk: parts.put(chunk.state), update, given, lambda state: parts.get())


def merged_server(
    run: Run, working: Mapping[int, Task], workers: Workers, begins: Chunk
) -> Workers:
    """Groups of a merged server: messages are whole gradients, in the order of their updates.

    `working`: what each is at. y is computed by the run's own compiled update, with zeros for the
    gradients of the other blocks.
    """
    halves = compiled_halves(run)
    assert halves.merged
    examples = device_examples(run)
    chosen, state, step = batch_indices(run), begins.state, begins.start
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
