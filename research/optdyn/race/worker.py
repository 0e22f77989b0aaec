"""A worker of a race: it makes a message from what it reads and from its batches.

With a merged server it does so in two calls: first it makes activations, then, from the server's
answer, the gradient of its blocks.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import numpy as np

from optdyn.base.trees import Tree
from optdyn.clock.versions import ArrivalOrder
from optdyn.core import Event, Params, State
from optdyn.problem import problem, shared_data
from optdyn.problem.problem import Examples
from optdyn.race.messages import ComputeRequest, Forms, forms
from optdyn.train import program
from optdyn.train.program import UpdateHalves
from optdyn.train.run import Run, batch_parts

AHEAD = 64  # batches whose numbers are made at a time

Compute = Callable[[Tree, range], Tree]  # (inputs, numbers of batches) -> message


class Shards(NamedTuple):
    """A server in parts; calls reach the parts in their order."""

    put: Callable[[State], None]  # sets the state
    step: Callable[[Event, int], None]  # makes an update by the gradient that the group has sent
    prepare_read: Callable[[int, int, int], None]  # (slot, group, number of its batch)
    get: Callable[[], State]


class Workers(NamedTuple):
    """The groups: `send` sets one to work, and `receive` waits so many seconds for a message.

    A group that is sent new inputs drops its work, and nothing is received of that any more.
    """

    send: Callable[[int, Tree, range], None]  # (group, inputs, numbers of its batches)
    receive: Callable[[float], tuple[int, Tree] | None]  # (seconds) -> group and message
    shards: Shards | None = None  # that groups send gradients to; messages then have none
    crowded: bool = False  # whether the server has no core to itself


class Activations(NamedTuple):
    """A group's first message to a merged server."""

    h: np.ndarray


class Answer(NamedTuple):
    """The server's answer: dl/dh, and x_r again in case the group has died meanwhile."""

    x: Params
    slope: np.ndarray


def compiled_halves(run: Run) -> UpdateHalves:
    """Returns the run's update in two compiled halves, made once."""
    return program.make_halves(run.config, run.data.classes, run.timeline.slots, run.traits)


def device_examples(run: Run) -> Examples:
    """Returns the training set on this process's devices, put there once."""
    return shared_data.put_on_devices(run.data, run.program.layout.put_examples, run.config).train


def message_of(run: Run) -> Tree:
    """Returns the shapes and types of a group's whole message."""
    hyper = {name: values[0] for name, values in run.hypers.items()}
    inputs = jax.eval_shape(lambda params: run.program.rule.init(params).read_slot(0), run.params)
    chosen = batch_indices(run)(range(1))
    return jax.eval_shape(compiled_halves(run).work, inputs, hyper, device_examples(run), chosen)


def forms_of(run: Run) -> Forms:
    halves, numbers, array = compiled_halves(run), (0, 0, 0), np.zeros(())
    x = halves.parameters_at(run.program.rule.init(run.params), 0)
    if halves.merged:
        answer = ComputeRequest(Answer(x, array), numbers)
        return forms(ComputeRequest(x, numbers), answer, Activations(array), x)
    return forms(ComputeRequest(x, numbers), message_of(run))


def make_compute(run: Run) -> Compute:
    """Returns the worker's computation, whose messages are NumPy arrays."""
    halves = compiled_halves(run)
    examples = device_examples(run)
    chosen = batch_indices(run)
    if halves.merged:
        return _compute_in_halves(halves, examples, chosen)
    hyper = {name: values[0] for name, values in run.hypers.items()}  # which some methods need

    def compute(inputs: Tree, numbers: range) -> Tree:
        return jax.device_get(halves.work(inputs, hyper, examples, chosen(numbers)))

    return compute


def _compute_in_halves(
    halves: UpdateHalves, examples: Examples, chosen: Callable[[range], np.ndarray]
) -> Compute:
    assert halves.merged
    front, backward_of = halves.merged.front, dict[range, Tree]()  # of the batch it is at

    def forward(x: Params, numbers: range) -> jax.Array:
        backward_of.clear()
        h, backward_of[numbers] = front(x, examples, chosen(numbers)[0])
        return h

    def compute(inputs: Tree, numbers: range) -> Tree:
        if not isinstance(inputs, Answer):
            return Activations(jax.device_get(forward(inputs, numbers)))
        if numbers not in backward_of:
            forward(inputs.x, numbers)
        return jax.device_get(_backward(backward_of.pop(numbers), inputs.slope))

    return compute


@jax.jit
def _backward(backward: Tree, slope: jax.Array) -> Params:
    return backward(slope)


class WorkerJob(NamedTuple):
    send: Callable[[], Tree]  # makes the whole message
    inputs: Tree
    batches: int


def first_job(run: Run, compute: Compute, group: int) -> WorkerJob:
    """Returns a group's first message, to be made; making it compiles its program."""
    halves = compiled_halves(run)
    task = arrival_order(run).working[group]
    x = jax.device_get(halves.parameters_at(run.program.rule.init(run.params), task.slot))

    def send() -> Tree:
        sent = compute(x, task.numbers)
        if isinstance(sent, Activations):
            return sent, compute(Answer(x, sent.h), task.numbers)
        return sent

    return WorkerJob(send, x, task.batches)


def arrival_order(run: Run) -> ArrivalOrder:
    """Returns the order of arrivals before the first, which writes the run's timeline."""
    methods = run.config.methods
    assert methods.read and methods.read.order
    return methods.read.order(run.config, methods, run.timeline)


def batch_indices(run: Run, independent: bool = False) -> Callable[[Iterable[int]], np.ndarray]:
    """Returns numbers of n batches -> their examples, (n, B) or (n, B, 2), for `Problem.batch`.

    With `independent` those of the second mini-batches beside them.
    """
    cache: dict[int, np.ndarray] = {}
    parts = arrivals_per_update(run)

    def batches(start: int, stop: int) -> np.ndarray:
        return problem.batches(
            run.config,
            run.examples,
            start,
            stop,
            independent=independent,
            draws=run.traits.draws,
        )

    def batch(number: int) -> np.ndarray:
        first = number - number % AHEAD
        if first not in cache:
            for old in [old for old in cache if abs(old - first) > AHEAD]:
                del cache[old]
            cache[first] = batch_parts(batches, np.arange(first, first + AHEAD), parts)
        return cache[first][number - first]

    return lambda numbers: np.stack([batch(int(number)) for number in numbers])


def arrivals_per_update(run: Run) -> int:
    """Returns the arrivals of an update, each of a part of a batch."""
    batch = run.timeline.batch
    return 1 if batch is None or batch.ndim == 1 else batch.shape[1]
