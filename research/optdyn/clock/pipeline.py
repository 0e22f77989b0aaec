"""Schedules of a network that is cut into stages: what each stage does when.

    local   F, B, U of the batch; nothing travels back           (arXiv 2012.03837)
    gpipe   F of all M micro-batches, B of all, U                (arXiv 1811.06965)
    1f1b    F of S - 1 - j, F and B in turn, B of the rest, U    (arXiv 2006.09503)

F, B and U are the forward, backward and update of stage j. F waits for F of the stage before and,
but in `local`, B for B of the stage after; either arrives `transfer` seconds after it ended. A
stage does one task at a time, in its order. Links and queues take whatever is sent: in `local` a
stage that is faster than the next one runs ahead of it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from optdyn.base.errors import Check
from optdyn.clock.cluster import Cluster
from optdyn.clock.network import inside_node, message_seconds
from optdyn.clock.timeline import Timeline, TimelineError, from_arrivals

FORWARD, BACKWARD, UPDATE = range(3)
Seconds = np.ndarray | Sequence[float] | float


class Schedule(NamedTuple):
    """Arrays of one entry a task: update by update, and each task after all that it waits for."""

    stage: np.ndarray  # int32
    update: np.ndarray  # int32
    micro_batch: np.ndarray  # int32, -1 for the kind UPDATE
    kind: np.ndarray  # int32, FORWARD, BACKWARD or UPDATE
    start: np.ndarray  # float64, seconds
    end: np.ndarray  # float64, seconds


def schedule(
    kind: str,
    forward: Seconds,
    backward: Seconds,
    transfer: Seconds,
    updates: int,
    micro_batches: int = 1,
    update: Seconds = 0.0,
) -> Schedule:
    """Returns the schedule of the `kind`, 'local', 'gpipe' or '1f1b', of so many updates.

    `forward`, (S,): seconds a micro-batch at each stage. `backward` and `update` are (S,) or one
    number for all, `transfer` (S - 1,) or one. Raises `TimelineError` if they cannot be.
    """
    stages = np.size(forward)
    given = [("forward", forward, stages), ("backward", backward, stages)]
    given += [("update", update, stages), ("transfer", transfer, stages - 1)]
    TimelineError.refuse(_wrong(given, micro_batches, updates))
    *durations, lags = (np.broadcast_to(np.asarray(v, np.float64), size) for _, v, size in given)
    # A stage does `ahead` forwards, then one of each in turn, then the backwards left.
    ahead = {
        "local": [0] * stages,
        "gpipe": [micro_batches] * stages,
        "1f1b": list(reversed(range(stages))),
    }[kind]
    left = [_order(number, micro_batches)[::-1] for number in ahead]
    # How many stages on the one is whose output a task needs.
    inputs, links = {FORWARD: -1}, lags.tolist()
    if kind != "local":
        inputs[BACKWARD] = 1
    position: dict[tuple[int, int, int], int] = {}  # of stage, kind, micro-batch
    steps: list[tuple[int, float, int, float]] = []  # stage, seconds, its input (-1: none), lag
    while any(left):
        for stage, waiting in enumerate(left):
            while waiting:
                task = waiting[-1]
                sender = stage + inputs.get(task[0], stages)
                needs = 0 <= sender < stages
                if needs and (sender, *task) not in position:
                    break
                source = position.get((sender, *task), -1)
                lag = links[min(stage, sender)] if needs else 0.0
                position[stage, *waiting.pop()] = len(steps)
                steps.append((stage, float(durations[task[0]][stage]), source, lag))
    free, spans = [0.0] * stages, list[tuple[float, float]]()
    for base in range(0, updates * len(steps), len(steps)):
        for stage, duration, source, lag in steps:
            begin = max(free[stage], spans[base + source][1] + lag if source >= 0 else 0.0)
            free[stage] = begin + duration
            spans.append((begin, free[stage]))
    of_stage, of_kind, of_part = np.tile(np.array(list(position), np.int32).T, updates)
    of_update = np.repeat(np.arange(updates, dtype=np.int32), len(steps))
    return Schedule(of_stage, of_update, of_part, of_kind, *np.array(spans).T)


def _order(ahead: int, micro_batches: int) -> list[tuple[int, int]]:
    """A stage's tasks (kind, micro-batch) of an update."""
    order = [(FORWARD, m) for m in range(ahead)]
    for m in range(micro_batches):
        order += [(FORWARD, m + ahead), (BACKWARD, m)]
    return [*(task for task in order if task[1] < micro_batches), (UPDATE, -1)]


def _wrong(
    given: Sequence[tuple[str, Seconds, int]], micro_batches: int, updates: int
) -> Iterator[Check]:
    line = f"{micro_batches} micro-batches, {updates} updates: must be 1 or more"
    yield min(micro_batches, updates) < 1, line
    for name, values, size in given:
        array = np.asarray(values, np.float64)
        good = array.shape in ((), (size,)) and np.all((array >= 0) & np.isfinite(array))
        yield not good, f"{name} = {values}: must be {size} finite seconds from 0 up, or one"
    forward, stages = given[FORWARD][1:]
    line = f"forward = {forward}: must be more than 0 at every stage"
    yield not stages or not np.all(np.asarray(forward) > 0), line


def update_seconds(schedule: Schedule) -> np.ndarray:
    """(updates,) when the last of the stages has made the update."""
    ends = schedule.end[schedule.kind == UPDATE]
    return ends.reshape(-1, int(schedule.stage.max()) + 1).max(axis=1)


class StageWork(NamedTuple):
    """What the stages of a model do in one update."""

    forward: np.ndarray  # (S,) in updates of backpropagation by one device
    backward: np.ndarray  # (S,) likewise, auxiliary heads included
    sent: np.ndarray  # (S - 1,) bytes of the activations handed on
    parameters: np.ndarray  # (S,) bytes


def pipeline_timeline(
    cluster: Cluster, micro_batches: int, work: StageWork, *, steps: int, batch_size: int
) -> Timeline:
    """Returns updates on a cluster whose nodes are the stages, its devices dividing their batch.

    `micro_batches`: 0 for local learning, else those of 'gpipe'.
    """
    parts, few = micro_batches or 1, min(steps, 2)
    forward, backward, transfer, update = _stage_seconds(cluster, work, batch_size, parts)
    kind = "gpipe" if micro_batches else "local"
    every = update_seconds(schedule(kind, forward, backward, transfer, few, parts, update))
    ends = every[0] + (every[-1] - every[0]) * np.arange(steps)  # they follow at equal intervals
    return from_arrivals(np.zeros(steps, np.int32), ends, 1)


def unflushed_seconds(
    cluster: Cluster, micro_batches: int, work: StageWork, *, steps: int, batch_size: int
) -> np.ndarray:
    """Returns when the first stage, the last to know, has made each of the updates, (steps,).

    They are the 1f1b of all updates as if they were one: in the long run an update takes as long as
    the slowest stage is at work for it, unless the way there and back is longer than what is under
    way. A stage makes its part of an update with its backward, before it hands the gradient on.
    """
    forward, backward, transfer, update = _stage_seconds(cluster, work, batch_size, micro_batches)
    after = steps + np.size(forward)  # so that none of `steps` is of the drain
    back = backward + update / micro_batches
    made = schedule("1f1b", forward, back, transfer, 1, micro_batches * after)
    ends = made.end[(made.kind == BACKWARD) & (made.stage == 0)]
    return ends.reshape(-1, micro_batches)[:steps, -1]


def _stage_seconds(
    cluster: Cluster, work: StageWork, batch_size: int, parts: int
) -> tuple[np.ndarray, ...]:
    """Returns the seconds of a part forward, backward and between stages, and of an update."""
    devices = cluster.devices_per_node
    unit = cluster.seconds_per_example * batch_size / devices / parts
    transfer = [
        message_seconds(cluster, size / devices / parts)[j, j + 1]
        for j, size in enumerate(work.sent)
    ]
    update = inside_node(cluster, devices, work.parameters)
    return work.forward * unit, work.backward * unit, np.array(transfer), update
