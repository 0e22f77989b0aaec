"""What a worker of a race does: of what it is given and of its batches it makes a message.

With a merged server it makes that in two calls: first its activations, and of the answer to these
the gradient of its own blocks.
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
from optdyn.train.program import Raced
from optdyn.train.run import Run, parted

AHEAD = 64  # batches whose numbers are made at a time

Compute = Callable[
    [Tree, range], Tree
]  # (what a worker is given, numbers of its batches) -> message


class Shards(NamedTuple):
    """A server in parts, of which each does what it is told in this order."""

    put: Callable[[State], None]  # this is the state
    step: Callable[[Event, int], None]  # an update by what the group has sent
    give: Callable[[int, int, int], None]  # (slot, group, number of its batch) what it reads
    get: Callable[[], State]


class Workers(NamedTuple):
    """The groups: `send` sets one to work, and `receive` waits for a message, or for so long.

    A group that is sent something is to drop what it was at, of which nothing is received any more.
    """

    send: Callable[[int, Tree, range], None]  # (group, what it is given, numbers of its batches)
    receive: Callable[[float], tuple[int, Tree] | None]  # (seconds) -> group and message
    shards: Shards | None = None  # if they send to these, and messages say the group alone
    crowded: bool = False  # whether they leave no core to the server alone


class Activations(NamedTuple):
    """What a group sends a merged server first."""

    h: np.ndarray


class Answer(NamedTuple):
    """What it is given then: x_r once more, in case that it died meanwhile, and dl/dh."""

    x: Params
    slope: np.ndarray


def compiled_halves(run: Run) -> Raced:
    """The run's update in two compiled halves, the same ones each time."""
    return program.raced(run.config, run.data.classes, run.timeline.slots)


def device_examples(run: Run) -> Examples:
    """The training set on this process's devices, put there once."""
    return shared_data.put_on_devices(run.data, run.program.layout.put_examples, run.config).train


def message_of(run: Run) -> Tree:
    """The shapes and types of a group's whole message."""
    hyper = {name: values[0] for name, values in run.hypers.items()}
    seen = jax.eval_shape(lambda params: run.program.rule.init(params).at(0), run.params)
    chosen = batch_indices(run)(range(1))
    return jax.eval_shape(compiled_halves(run).work, seen, hyper, device_examples(run), chosen)


def forms_of(run: Run) -> Forms:
    """The forms of what the server and its groups send to one another."""
    halves, numbers, some = compiled_halves(run), (0, 0, 0), np.zeros(())
    x = halves.given(run.program.rule.init(run.params), 0)
    if halves.merged:
        return forms(
            ComputeRequest(x, numbers),
            ComputeRequest(Answer(x, some), numbers),
            Activations(some),
            x,
        )
    return forms(ComputeRequest(x, numbers), message_of(run))


def make_compute(run: Run) -> Compute:
    """(what it is given, numbers of its batches) -> what it sends, NumPy arrays."""
    halves = compiled_halves(run)
    examples = device_examples(run)
    chosen = batch_indices(run)
    if halves.merged:
        return _compute_in_halves(halves, examples, chosen)
    hyper = {name: values[0] for name, values in run.hypers.items()}  # which some methods need

    def compute(given: Tree, numbers: range) -> Tree:
        return jax.device_get(halves.work(given, hyper, examples, chosen(numbers)))

    return compute


def _compute_in_halves(
    halves: Raced, examples: Examples, chosen: Callable[[range], np.ndarray]
) -> Compute:
    assert halves.merged
    front, held = halves.merged.front, dict[range, Tree]()  # the way back of what it is at

    def forward(x: Params, numbers: range) -> jax.Array:
        held.clear()
        h, held[numbers] = front(x, examples, chosen(numbers)[0])
        return h

    def compute(given: Tree, numbers: range) -> Tree:
        if not isinstance(given, Answer):
            return Activations(jax.device_get(forward(given, numbers)))
        if numbers not in held:
            forward(given.x, numbers)
        return jax.device_get(_back(held.pop(numbers), given.slope))

    return compute


@jax.jit
def _back(way: Tree, slope: jax.Array) -> Params:
    return way(slope)


class WorkerJob(NamedTuple):
    """What a group is asked for at the beginning."""

    send: Callable[[], Tree]  # makes the whole message
    given: Tree
    batches: int


def first_job(run: Run, compute: Compute, group: int) -> WorkerJob:
    """Asks a group for its message; the first time, its program is compiled."""
    halves = compiled_halves(run)
    reading = arrival_order(run).working[group]
    x = jax.device_get(halves.given(run.program.rule.init(run.params), reading.slot))

    def send() -> Tree:
        sent = compute(x, reading.numbers)
        if isinstance(sent, Activations):
            return sent, compute(Answer(x, sent.h), reading.numbers)
        return sent

    return WorkerJob(send, x, reading.batches)


def arrival_order(run: Run) -> ArrivalOrder:
    """The order of arrivals from the beginning, which writes the run's timeline."""
    methods = run.config.methods
    assert methods.read and methods.read.order
    return methods.read.order(run.config, methods, run.timeline)


def batch_indices(run: Run, independent: bool = False) -> Callable[[Iterable[int]], np.ndarray]:
    """Numbers of n batches -> those of their examples, (n, B) or (n, B, 2), for `Problem.batch`.

    Or of the second mini-batches beside them, the `independent` ones. Where updates are of several
    arrivals, of parts of batches (`run.parted`).
    """
    held: dict[int, np.ndarray] = {}
    parts = arrivals_per_update(run)

    def every(start: int, stop: int) -> np.ndarray:
        return problem.batches(run.config, run.examples, start, stop, independent=independent)

    def one(number: int) -> np.ndarray:
        first = number - number % AHEAD
        if first not in held:
            for old in [old for old in held if abs(old - first) > AHEAD]:
                del held[old]
            held[first] = parted(every, np.arange(first, first + AHEAD), parts)
        return held[first][number - first]

    return lambda numbers: np.stack([one(int(number)) for number in numbers])


def arrivals_per_update(run: Run) -> int:
    """Arrivals of an update, each of a part of a batch."""
    batch = run.timeline.batch
    return 1 if batch is None or batch.ndim == 1 else batch.shape[1]
