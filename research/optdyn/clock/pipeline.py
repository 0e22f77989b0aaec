"""Schedules of a network that is cut into stages: the tasks of each stage and their seconds.

    local   F, B, U of the batch; nothing travels back           (arXiv 2012.03837)
    gpipe   F of all M micro-batches, B of all, U                (arXiv 1811.06965)
    1f1b    F of S - 1 - j, F and B in turn, B of the rest, U    (arXiv 2006.09503)

F, B and U are the forward, backward and update of stage j of S. F waits for F of the stage before
and, but in `local`, B for B of the stage after; either arrives `transfer` seconds after it ended. A
stage does one task at a time, in its order. Links and queues have no limit: in `local` a stage that
is faster than the next one runs ahead of it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optdyn.clock.cluster import Cluster
from optdyn.clock.network import inside_node, message_seconds
from optdyn.clock.timeline import Timeline, from_arrivals

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
    number for all, `transfer` (S - 1,) or one.
    """
    stages = np.size(forward)
    tasks = (forward, backward, update)  # in the order of `FORWARD, BACKWARD, UPDATE`
    durations = [np.broadcast_to(np.asarray(task, np.float64), stages) for task in tasks]
    lags = np.broadcast_to(np.asarray(transfer, np.float64), stages - 1)
    # A stage does `ahead` forwards, then one of each in turn, then the backwards left.
    ahead = {
        "local": [0] * stages,
        "gpipe": [micro_batches] * stages,
        "1f1b": list(reversed(range(stages))),
    }[kind]
    remaining = [_order(number, micro_batches)[::-1] for number in ahead]
    # The stage whose output a task needs, relative to the task's own.
    source_of, links = {FORWARD: -1}, lags.tolist()
    if kind != "local":
        source_of[BACKWARD] = 1
    position: dict[tuple[int, int, int], int] = {}  # of stage, kind, micro-batch
    steps: list[tuple[int, float, int, float]] = []  # stage, seconds, its input (-1: none), lag
    while any(remaining):
        for stage, waiting in enumerate(remaining):
            while waiting:
                task = waiting[-1]
                sender = stage + source_of.get(task[0], stages)
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
    task_stage, task_kind, task_part = np.tile(np.array(list(position), np.int32).T, updates)
    task_update = np.repeat(np.arange(updates, dtype=np.int32), len(steps))
    return Schedule(task_stage, task_update, task_part, task_kind, *np.array(spans).T)


def _order(ahead: int, micro_batches: int) -> list[tuple[int, int]]:
    """Returns a stage's tasks (kind, micro-batch) of an update, after `ahead` forwards."""
    order = [(FORWARD, m) for m in range(ahead)]
    for m in range(micro_batches):
        order += [(FORWARD, m + ahead), (BACKWARD, m)]
    return [*(task for task in order if task[1] < micro_batches), (UPDATE, -1)]


def update_seconds(schedule: Schedule) -> np.ndarray:
    """Returns when the last of the stages has made each update, (updates,)."""
    ends = schedule.end[schedule.kind == UPDATE]
    return ends.reshape(-1, int(schedule.stage.max()) + 1).max(axis=1)


class StageWork(NamedTuple):
    forward: np.ndarray  # (S,) in updates of backpropagation by one device
    backward: np.ndarray  # (S,) likewise, auxiliary heads included
    sent: np.ndarray  # (S - 1,) bytes of the activations handed on
    parameters: np.ndarray  # (S,) bytes


def pipeline_timeline(
    cluster: Cluster, micro_batches: int, work: StageWork, *, steps: int, batch_size: int
) -> Timeline:
    """Returns the timeline of a cluster whose nodes are the stages; devices divide a node's batch.

    `micro_batches`: 0 for local learning, else those of 'gpipe'.
    """
    parts, few = micro_batches or 1, min(steps, 2)
    forward, backward, transfer, update = _stage_seconds(cluster, work, batch_size, parts)
    kind = "gpipe" if micro_batches else "local"
    first = update_seconds(schedule(kind, forward, backward, transfer, few, parts, update))
    ends = first[0] + (first[-1] - first[0]) * np.arange(steps)  # intervals are equal
    return from_arrivals(np.zeros(steps, np.int32), ends, 1)


def unflushed_seconds(
    cluster: Cluster, micro_batches: int, work: StageWork, *, steps: int, batch_size: int
) -> np.ndarray:
    """Returns when the first stage, the last to update, has made each update, (steps,) seconds.

    The schedule is the 1f1b of all updates as if they were one. A stage makes its part of an update
    with its backward.
    """
    forward, backward, transfer, update = _stage_seconds(cluster, work, batch_size, micro_batches)
    longer = steps + np.size(forward)  # so that none of `steps` is of the drain
    back = backward + update / micro_batches
    tasks = schedule("1f1b", forward, back, transfer, 1, micro_batches * longer)
    ends = tasks.end[(tasks.kind == BACKWARD) & (tasks.stage == 0)]
    return ends.reshape(-1, micro_batches)[:steps, -1]


def _stage_seconds(
    cluster: Cluster, work: StageWork, batch_size: int, parts: int
) -> tuple[np.ndarray, ...]:
    """Returns the seconds of a part's forward, backward and transfer, and of the update's."""
    devices = cluster.devices_per_node
    unit = cluster.seconds_per_example * batch_size / devices / parts
    transfer = [
        message_seconds(cluster, size / devices / parts)[j, j + 1]
        for j, size in enumerate(work.sent)
    ]
    update = inside_node(cluster, devices, work.parameters)
    return work.forward * unit, work.backward * unit, np.array(transfer), update
