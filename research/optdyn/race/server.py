"""The server of a race: this process, or several parts with some of the blocks each.

    x_{t+1} = step(x_t, message)      the method's own update rule

A merged server computes the blocks that it has (arXiv 1606.04487):

    group    h = front(x_r, batch)            its activations, of update t if they are the t-th
    server   y_{t+1} from back(y_t, h)        at once, and dl/dh back to the group
    group    dl/dx
    server   x_{t+1} from dl/dx               in the order of the numbers

y is ahead of x by the updates whose groups have not sent dl/dx yet. A group that is faster than an
earlier one waits for it, and reads the version that it made.
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
from optdyn.train.run import Run, join_parts


class Server(NamedTuple):
    """The server of a race. States are those of the trainer's run."""

    begin: Callable[[Chunk], None]  # compiles, before the clock of the race begins
    update: Callable[[Chunk, State, int, Sequence[Tree]], tuple[State, Info]]  # (.., t, messages)
    inputs: Callable[[State, Iterable[int]], Mapping[int, Tree]]  # what workers read, by slot
    state: Callable[[State], State]  # the state after updates


def event_of(run: Run, t: int) -> Event:
    line, hyper = run.timeline, {name: values[t] for name, values in run.hypers.items()}
    return Event(entries_at(line.plan, t), hyper, line.staleness[t])


def single_server(run: Run) -> Server:
    halves = compiled_halves(run)
    examples = device_examples(run)
    second, parts = batch_indices(run, independent=True), arrivals_per_update(run)

    def begin(chunk: Chunk) -> None:
        shapes = message_of(run)
        shapes = shapes._replace(loss=jax.ShapeDtypeStruct((), shapes.loss.dtype))
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        for metered in {False, run.config.probes.momentum}:
            state = jax.tree.map(jnp.copy, chunk.state)
            update(replace(chunk, metered=metered), state, 0, [zeros] * parts)

    def update(chunk: Chunk, state: State, t: int, sent: Sequence[Tree]) -> tuple[State, Info]:
        message = jax.tree.map(lambda *leaves: np.stack(leaves), *sent) if parts > 1 else sent[0]
        event = event_of(chunk.run, t)
        if not chunk.metered:
            return halves.update(state, event, message)
        assert run.timeline.batch is not None
        numbers = np.ravel(run.timeline.batch[t])
        other = join_parts(second(numbers), parts)[0]
        return halves.metered(state, event, message, examples, other)

    def inputs(state: State, slots: Iterable[int]) -> dict[int, Tree]:
        return {slot: jax.device_get(halves.parameters_at(state, slot)) for slot in slots}

    return Server(begin, update, inputs, lambda state: state)


def server_in_parts(run: Run, parts: Shards) -> Server:
    """Returns a server whose parts have the state; the run has it as of the last chunk."""

    def update(chunk: Chunk, state: State, t: int, sent: Sequence[Tree]) -> tuple[State, Info]:
        (message,) = sent
        parts.step(event_of(chunk.run, t), message.grads)
        return state, {"loss": message.loss}

    def inputs(state: State, slots: Iterable[int]) -> dict[int, Tree]:
        return {slot: slot for slot in slots}

    return Server(lambda chunk: parts.put(chunk.state), update, inputs, lambda state: parts.get())


def merged_server(run: Run, working: Mapping[int, Task], workers: Workers, first: Chunk) -> Workers:
    """Returns groups of a merged server: messages are whole gradients, in the order of updates.

    y is computed by the run's compiled update, with zeros for the gradients of the other blocks.
    """
    halves = compiled_halves(run)
    assert halves.merged
    examples = device_examples(run)
    chosen, state = batch_indices(run), first.state
    pieces, numbers = halves.merged, itertools.count(first.start)
    ahead = jax.tree.map(jnp.copy, state)
    zeros = jax.tree.map(np.zeros_like, jax.device_get(state.params))
    read, gradient = dict[int, Params](), dict[int, Params]()  # x_r and dl/dx, by group
    half_done = deque[tuple[int, Message]]()  # updates that y has had and x has not

    def send(group: int, params: Params, numbers: range) -> None:
        read[group] = params
        workers.send(group, params, numbers)

    def first_half(group: int, h: np.ndarray) -> None:
        nonlocal ahead
        t, task = next(numbers), working[group]
        if t >= run.config.steps:
            return  # the run has all its updates
        batch = chosen(task.numbers)[0]
        loss, grads, slope = jax.device_get(pieces.serve(ahead.fresh, h, examples, batch))
        workers.send(group, Answer(read[group], slope), task.numbers)
        half_done.append((group, Message(loss, grads)))
        event = event_of(first.run, t)
        event = event._replace(staleness=np.asarray(t - task.version, np.int32))
        ahead, _ = halves.update(ahead, event, Message(loss, {**zeros, **grads}))

    def receive(seconds: float) -> tuple[int, Message] | None:
        until = time.monotonic() + seconds
        while True:
            if half_done and half_done[0][0] in gradient:
                group, half = half_done.popleft()
                return group, half._replace(grads={**half.grads, **gradient.pop(group)})
            received = workers.receive(max(until - time.monotonic(), 0.0))
            if received is None:
                return None
            group, message = received
            if isinstance(message, Activations):
                first_half(group, message.h)
            else:
                gradient[group] = message

    return Workers(send, receive)
