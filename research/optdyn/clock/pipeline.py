"""Schedules of a network that is cut into stages: what each stage does when.

    local        F, B, U of the batch; nothing travels back           (arXiv 2012.03837)
    gpipe        F of all M micro-batches, B of all, U                (arXiv 1811.06965)
    one_f_one_b  F of S - 1 - j, F and B in turn, B of the rest, U    (arXiv 2006.09503)

F, B and U are the forward, backward and update of stage j. F waits for F of the stage before and,
but in `local`, B for B of the stage after; either arrives `transfer` seconds after it ended. A
stage does one task at a time, in its order. Links and queues take whatever is sent: in `local` a
stage that is faster than the next one runs ahead of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from optdyn.base.errors import Wrong
from optdyn.clock.cluster import Cluster
from optdyn.clock.network import inside_node, messages
from optdyn.clock.timeline import Timeline, TimelineError, from_arrivals

FORWARD, BACKWARD, UPDATE = range(3)
Seconds = np.ndarray | Sequence[float] | float
# How many stages on the one is whose output a task needs.
LOCAL, PIPELINED = {FORWARD: -1}, {FORWARD: -1, BACKWARD: 1}


class Schedule(NamedTuple):
    """Arrays of one entry a task: update by update, and each task after all that it waits for."""

    stage: np.ndarray  # int32
    update: np.ndarray  # int32
    micro_batch: np.ndarray  # int32, -1 for the kind UPDATE
    kind: np.ndarray  # int32, FORWARD, BACKWARD or UPDATE
    start: np.ndarray  # float64, seconds
    end: np.ndarray  # float64, seconds


def local(
    forward: Seconds, backward: Seconds, transfer: Seconds, updates: int, update: Seconds = 0.0
) -> Schedule:
    """Every stage learns from a loss of its own.

    `forward`, (S,): seconds a micro-batch at each stage, here the whole batch. `backward` and
    `update` are (S,) or one number for all, `transfer` (S - 1,) or one. `TimelineError` if they
    cannot be.
    """
    ahead = [0] * np.size(forward)
    return _schedule([forward, backward, update], transfer, ahead, 1, updates, LOCAL)


def gpipe(
    forward: Seconds,
    backward: Seconds,
    transfer: Seconds,
    micro_batches: int,
    updates: int,
    update: Seconds = 0.0,
) -> Schedule:
    """Backpropagation through all stages: fill, drain, update. Arguments as those of `local`."""
    work, ahead = [forward, backward, update], [micro_batches] * np.size(forward)
    return _schedule(work, transfer, ahead, micro_batches, updates, PIPELINED)


def one_f_one_b(
    forward: Seconds,
    backward: Seconds,
    transfer: Seconds,
    micro_batches: int,
    updates: int,
    update: Seconds = 0.0,
) -> Schedule:
    """The schedule 1F1B: a stage holds no more activations than keep the stages after it busy."""
    work, ahead = [forward, backward, update], list(reversed(range(np.size(forward))))
    return _schedule(work, transfer, ahead, micro_batches, updates, PIPELINED)


def seconds(schedule: Schedule) -> np.ndarray:
    """(updates,) when the last of the stages has made the update."""
    ends = schedule.end[schedule.kind == UPDATE]
    return ends.reshape(-1, int(schedule.stage.max()) + 1).max(axis=1)


class StageWork(NamedTuple):
    """What the stages of a model do in one update."""

    forward: np.ndarray  # (S,) in updates of backpropagation by one device
    backward: np.ndarray  # (S,) likewise, auxiliary heads included
    sent: np.ndarray  # (S - 1,) bytes of the activations handed on
    parameters: np.ndarray  # (S,) bytes


def of_cluster(
    cluster: Cluster, micro_batches: int, work: StageWork, *, steps: int, batch_size: int
) -> Timeline:
    """Updates on a cluster whose nodes are the stages and whose devices divide a node's batch.

    `micro_batches`: 0 for local learning, else those of `gpipe`.
    """
    parts, few = micro_batches or 1, min(steps, 2)
    forward, backward, transfer, update = _on(cluster, work, batch_size, parts)
    if micro_batches:
        made = gpipe(forward, backward, transfer, micro_batches, few, update)
    else:
        made = local(forward, backward, transfer, few, update)
    every = seconds(made)
    ends = every[0] + (every[-1] - every[0]) * np.arange(steps)  # they follow at equal intervals
    return from_arrivals(np.zeros(steps, np.int32), ends, 1)


def never_flushed(
    cluster: Cluster, micro_batches: int, work: StageWork, *, steps: int, batch_size: int
) -> np.ndarray:
    """(steps,) when the first stage, the last to know, has made each of the updates.

    `one_f_one_b` of all updates as if they were one: in the long run an update takes as long as the
    slowest stage is at work for it, unless the way there and back is longer than what is under way.
    A stage makes its part of an update with its backward, before it hands the gradient on.
    """
    forward, backward, transfer, update = _on(cluster, work, batch_size, micro_batches)
    after = steps + np.size(forward)  # so that none of `steps` is of the drain
    back = backward + update / micro_batches
    made = one_f_one_b(forward, back, transfer, micro_batches * after, 1)
    ends = made.end[(made.kind == BACKWARD) & (made.stage == 0)]
    return ends.reshape(-1, micro_batches)[:steps, -1]


def _on(cluster: Cluster, work: StageWork, batch_size: int, parts: int) -> tuple[np.ndarray, ...]:
    """Seconds of a part of the batch forward, backward and between stages; those of an update."""
    devices = cluster.devices_per_node
    unit = cluster.seconds_per_example * batch_size / devices / parts
    stage = np.arange(cluster.nodes - 1)
    each = [messages(cluster, size / devices / parts) for size in work.sent]
    transfer = np.array([whole[j, j + 1] for j, whole in zip(stage, each, strict=True)])
    update = inside_node(cluster, devices, work.parameters)
    return work.forward * unit, work.backward * unit, transfer, update


def _schedule(
    work: Sequence[Seconds],
    transfer: Seconds,
    ahead: Sequence[int],
    micro_batches: int,
    updates: int,
    inputs: Mapping[int, int],
) -> Schedule:
    """Every stage does `ahead` forwards, then one of each in turn, then the backwards left."""
    names, stages = ("forward", "backward", "update"), len(ahead)
    given = [(name, part, stages) for name, part in zip(names, work, strict=True)]
    given.append(("transfer", transfer, stages - 1))
    TimelineError.refuse(_wrong_schedule(given, micro_batches, updates))
    *durations, lags = (np.broadcast_to(np.asarray(v, np.float64), size) for _, v, size in given)
    links = lags.tolist()
    left = [_order(number, micro_batches)[::-1] for number in ahead]
    position: dict[tuple[int, int, int], int] = {}  # of stage, kind, micro-batch
    steps: list[tuple[int, float, int, float]] = []  # place, seconds, its input (-1: none), lag
    while any(left):
        for place, waiting in enumerate(left):
            while waiting:
                task = waiting[-1]
                sender = place + inputs.get(task[0], stages)
                needs = 0 <= sender < stages
                if needs and (sender, *task) not in position:
                    break
                source = position.get((sender, *task), -1)
                lag = links[min(place, sender)] if needs else 0.0
                position[place, *waiting.pop()] = len(steps)
                steps.append((place, float(durations[task[0]][place]), source, lag))
    free, spans = [0.0] * stages, list[tuple[float, float]]()
    for base in range(0, updates * len(steps), len(steps)):
        for place, duration, source, lag in steps:
            begin = max(free[place], spans[base + source][1] + lag if source >= 0 else 0.0)
            free[place] = begin + duration
            spans.append((begin, free[place]))
    stage, kind, micro_batch = np.tile(np.array(list(position), np.int32).T, updates)
    update = np.repeat(np.arange(updates, dtype=np.int32), len(steps))
    return Schedule(stage, update, micro_batch, kind, *np.array(spans).T)


def _order(ahead: int, micro_batches: int) -> list[tuple[int, int]]:
    """A stage's tasks (kind, micro-batch) of an update."""
    order = [(FORWARD, m) for m in range(ahead)]
    for m in range(micro_batches):
        order += [(FORWARD, m + ahead), (BACKWARD, m)]
    return [*(task for task in order if task[1] < micro_batches), (UPDATE, -1)]


def _wrong_schedule(
    given: Sequence[tuple[str, Seconds, int]], micro_batches: int, updates: int
) -> Iterator[Wrong]:
    line = f"{micro_batches} micro-batches, {updates} updates: must be 1 or more"
    yield min(micro_batches, updates) < 1, line
    for name, values, size in given:
        array = np.asarray(values, np.float64)
        good = array.shape in ((), (size,)) and np.all((array >= 0) & np.isfinite(array))
        yield not good, f"{name} = {values}: must be {size} finite seconds from 0 up, or one"
    forward, stages = given[FORWARD][1:]
    line = f"forward = {forward}: must be more than 0 at every stage"
    yield not stages or not np.all(np.asarray(forward) > 0), line
