"""Arrivals of compute groups: free, waiting, absent, or in a queue for a server or for cores.

Arrivals at the same second, which constant services have, are in the order of the groups, however
sums are rounded. Groups that wait for nothing are renewal processes, whose times are merged as
arrays: with the queue a start of 2 s takes 45 % longer for 100,000 updates of 1,000 groups.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from optdyn.base import seeds
from optdyn.clock import availability
from optdyn.clock.availability import Availability, Load
from optdyn.clock.cluster import Cluster, Pieces
from optdyn.clock.meetings import compute_means, synchronous
from optdyn.clock.network import group_exchange
from optdyn.clock.service import Draw, geometric_timeline, overlapped, rounding
from optdyn.clock.timeline import Timeline, TimelineError, from_arrivals
from optdyn.clock.trace import RecordedTrace, replay
from optdyn.clock.versions import FREE_RUNNING, Policy, Task, Versions, blank_timeline

BLOCK = 1 << 16  # services of a group that are added up on their own
SPARE = 16  # services drawn beyond what a group is likely to need


class Queue:
    """Events (seconds, group, ...) in order; those of one second, within `tolerance`, by group."""

    def __init__(self, events: list[tuple], tolerance: float):
        self._heap, self._tolerance = events, tolerance
        self._simultaneous = list[tuple]()  # those of one second, the next of them last
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap) + len(self._simultaneous)

    @property
    def second(self) -> float:
        if self._simultaneous:
            return self._simultaneous[-1][0]
        return self._heap[0][0] if self._heap else math.inf

    def push(self, event: tuple) -> None:
        heapq.heappush(self._heap, event)

    def pop(self) -> tuple:
        if not self._tolerance:
            return heapq.heappop(self._heap)
        if not self._simultaneous:
            events = [heapq.heappop(self._heap)]
            end = events[0][0] * (1 + self._tolerance)
            while self._heap and self._heap[0][0] <= end:
                events.append(heapq.heappop(self._heap))
            seconds = [event[0] for event in events]  # keep their order, and groups take them
            by_group = sorted(event[1:] for event in events)
            pairs = zip(seconds, by_group, strict=True)
            self._simultaneous = [(second, *event) for second, event in pairs][::-1]
        return self._simultaneous.pop()

    def drop(self, groups: Collection[int]) -> None:
        self._heap, self._simultaneous = (
            [event for event in events if event[1] not in groups]
            for events in (self._heap, self._simultaneous)
        )
        heapq.heapify(self._heap)


class Work(NamedTuple):
    """The mean seconds of a service of each group.

    `compute`, (groups, k): seconds of each of a group's k workers, of whose draws the slowest
    counts. `exchange`, (groups,): seconds of messages, of which `overlap`, the last fraction of the
    computing, hides a part. A group with n kinds of services, (n, k) and (n,), has them in a cycle;
    only `renewal_arrivals` knows of these.
    """

    compute: np.ndarray | Sequence[np.ndarray]
    exchange: np.ndarray | Sequence[np.ndarray] | float = 0.0
    overlap: float = 0.0

    def services(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns `compute`, (n, k), and `exchange`, (n,), of a group's n services."""
        compute = np.atleast_2d(self.compute[group])
        exchange = self.exchange if isinstance(self.exchange, float) else self.exchange[group]
        return compute, np.broadcast_to(exchange, len(compute))

    def means(self) -> np.ndarray:
        """Returns the mean seconds of each worker's service, exchange included, (groups, k)."""
        exchange = np.reshape(np.broadcast_to(self.exchange, len(self.compute)), (-1, 1))
        return overlapped(np.asarray(self.compute), exchange, self.overlap)


def services_per_draw(steps: int, groups: int) -> int:
    return min(BLOCK, steps, 2 * -(-steps // groups) + SPARE)


def renewal_arrivals(seed: int, law: Draw, work: Work, steps: int) -> Timeline:
    """Returns the first `steps` arrivals of groups that wait for nothing.

    Each group draws from its own stream, so a longer run begins with the shorter one.
    """
    groups = len(work.compute)
    services = [work.services(group) for group in range(groups)]
    streams = [np.random.default_rng((seed, group)) for group in range(groups)]
    times: list[np.ndarray] = [np.zeros(1)] * groups
    # The second at which a block of services starts, and the seconds since then.
    block_start, since = np.zeros(groups), np.zeros(groups)

    def extend(group: int) -> None:
        done, (compute, exchange) = len(times[group]) - 1, services[group]
        if done % BLOCK == 0:
            block_start[group], since[group] = times[group][-1], 0.0
        count = min(max(services_per_draw(steps, groups), done), BLOCK - done % BLOCK)
        number = np.arange(done, done + count)
        draws = law(streams[group], (count, compute.shape[1]))
        place = number % len(compute)
        slowest = (draws * compute[place]).max(axis=1)
        seconds = overlapped(slowest, exchange[place], work.overlap)
        sums = np.cumsum(np.append(since[group], seconds))[1:]
        times[group], since[group] = np.append(times[group], block_start[group] + sums), sums[-1]

    to_extend, tolerance = list(range(groups)), rounding(law)
    while True:
        for group in to_extend:
            extend(group)
        # The merge is known up to the second that all groups have reached.
        ends = np.array([group[-1] for group in times])
        horizon = ends.min() * (1 - 2 * tolerance)
        counts = [np.searchsorted(group, horizon, side="right") - 1 for group in times]
        if sum(counts) >= steps:
            break
        to_extend = np.flatnonzero(ends <= 1.5 * ends.min()).tolist()

    seconds = np.concatenate([group[1 : 1 + n] for group, n in zip(times, counts, strict=True)])
    worker = np.repeat(np.arange(groups, dtype=np.int32), counts)
    order = np.argsort(seconds, kind="stable")
    worker, seconds = worker[order], seconds[order]
    if tolerance:
        # Arrivals of one second have one number, and are sorted by group.
        number = np.cumsum(np.diff(seconds, prepend=0.0) > tolerance * seconds)
        worker = worker[np.lexsort((worker, number))]
    return from_arrivals(worker[:steps], seconds[:steps], groups)


ALWAYS_THERE = Availability()
MOST_ABSENCES = 100  # of an update, and of each group, before it is an error
MOST_DROPPED = 1000  # services of a delivery, and of each group, likewise
DELIVERY, SERVED, RESTART, RETURN = range(4)  # kinds of events


class Absences:
    def __init__(self, seed: int, groups: int, availability: Availability):
        # Separate streams, so that absences do not depend on how much is computed.
        self._streams = [np.random.default_rng((seed, group, 1)) for group in range(groups)]
        self._presence, self._absence = availability.presence, availability.absence
        self._leaves = [rng.exponential(availability.presence) for rng in self._streams]
        self.past = list[tuple[int, float, float]]()  # group, since when, until when

    def interrupt(self, group: int, now: float, end: float, updates: int) -> float | None:
        """Returns when the group is back, if an absence cuts its service from `now` to `end`.

        An absence that began while the group waited counts, one that is over by `now` does not.
        Raises `TimelineError` if groups are hardly there.
        """
        rng = self._streams[group]
        while self._leaves[group] <= end:
            left = self._leaves[group]
            back = left + rng.exponential(self._absence)
            self._leaves[group] = back + rng.exponential(self._presence)
            self.past.append((group, left, back))
            if len(self.past) > MOST_ABSENCES * (updates + len(self._streams)):
                raise TimelineError(
                    f"config.cluster.presence = {self._presence:g}: must be longer than a service, "
                    f"as groups have left {len(self.past):,} times in {updates:,} updates"
                )
            if back > now:
                return back
        return None


def simulate_queue(
    groups: int,
    steps: int,
    next_service: Callable[[int, float], float],
    tolerance: float,
    policy: Policy = FREE_RUNNING,
    limits: Sequence[float] = (),
    absences: Absences | None = None,
    server_seconds: Iterable[float] | None = None,
    cores: float | None = None,
) -> Timeline:
    """Returns the first `steps` updates of groups that all begin at second 0.

        next_service    (group, now) -> seconds of the service that begins now
        tolerance       events within this share of the earliest are of one second
        limits          (groups,) seconds; a longer service is dropped, and the group begins again
        absences        a group leaves, loses its work, and reads the newest version when it is back
        server_seconds  the server's, one for each delivery; then the update is made
        cores           groups at work, and the server, share one machine's cores evenly: events are
                        in virtual time, as if each had a core, and the clock goes more slowly

    An event takes O(log groups). Raises `TimelineError` if groups hardly deliver.
    """
    line = blank_timeline(groups, steps, policy)
    order = Versions(line, groups, policy)
    away = dict[int, Task]()
    delivered = dropped = 0

    def begin(group: int, now: float) -> tuple[float, int, int]:
        seconds = next_service(group, now)
        if limits and seconds > limits[group]:
            return now + limits[group], group, RESTART
        if absences:
            back = absences.interrupt(group, now, now + seconds, order.updates)
            if back is not None:
                away[group] = order.leave(group)
                return back, group, RETURN
        return now + seconds, group, DELIVERY

    queue = Queue([begin(group, 0.0) for group in range(groups)], tolerance)
    at_server, services = deque[tuple[float, int, int]](), iter(server_seconds or ())
    server_free = 0.0  # when the server has dealt with all earlier arrivals
    virtual_now = clock = 0.0
    while order.updates < steps:
        at_work = len(queue) + bool(at_server) if cores else 0
        is_served = at_server and at_server[0][0] <= queue.second
        now, group, kind = at_server.popleft() if is_served else queue.pop()
        clock = clock + (now - virtual_now) * max(1.0, at_work / cores) if cores else now
        virtual_now, starting = now, [group]
        if kind == DELIVERY and server_seconds is not None:
            server_free = max(server_free, now) + next(services)
            at_server.append((server_free, group, SERVED))
            continue
        if kind == RETURN:
            order.begin(group, away.pop(group).batch)
        elif kind == RESTART:
            order.drop(group)
            dropped += 1
            if dropped > MOST_DROPPED * (delivered + groups):
                raise TimelineError(
                    f"config.method.allotted = {policy.allotted:g}: must be longer, as groups have "
                    f"begun again {dropped:,} times and hardly deliver"
                )
        else:
            _, _, starting, is_dropped = order.arrive(group, clock)
            delivered += not is_dropped
            if order.drops_others and len(starting) > 1:
                queue.drop(set(starting))
        for other in starting:
            queue.push(begin(other, now))
    return line._replace(batch=None)  # batches are numbered by update, not by who reads


def service_seconds(
    seed: int, law: Draw, work: Work, steps: int, load: Load | None = None
) -> Callable[[int, float], float]:
    """Returns (group, now) -> seconds of its next service, by the draws of `renewal_arrivals`."""
    groups, overlap = len(work.compute), work.overlap
    exchange = [float(work.services(group)[1][0]) for group in range(groups)]
    amplitude, speed = (load.amplitude, load.speed) if load else (0.0, 0.0)
    phase = load.phase.tolist() if load else []

    def computing(group: int) -> Iterator[float]:
        rng, (mean, _) = np.random.default_rng((seed, group)), work.services(group)
        while True:
            draws = law(rng, (services_per_draw(steps, groups), mean.shape[1]))
            yield from (draws * mean).max(axis=1).tolist()

    computed = [computing(group) for group in range(groups)]

    def next_service(group: int, now: float) -> float:
        compute = next(computed[group])
        if load:
            compute *= 1 + amplitude * math.sin(speed * now + phase[group])
        return max(compute, compute * (1 - overlap) + exchange[group])

    return next_service


def queued_arrivals(
    seed: int,
    law: Draw,
    work: Work,
    steps: int,
    policy: Policy = FREE_RUNNING,
    availability: Availability = ALWAYS_THERE,
    absences: Absences | None = None,
) -> Timeline:
    """Returns the first `steps` updates of groups with that policy and availability.

    `worker` is the group that delivers last; `staleness`, and the workers and reads of the plan,
    are (steps, K) in the order of delivery. A group leaves, and has its load, as a whole.
    """
    groups, limits = len(work.compute), list[float]()
    if policy.allotted < math.inf:
        limits = (policy.allotted * work.means().max(axis=1)).tolist()
    if availability.presence and not absences:
        absences = Absences(seed, groups, availability)
    sending = repeat(availability.sending) if availability.sending else None
    next_service = service_seconds(seed, law, work, steps, availability.load)
    return simulate_queue(
        groups, steps, next_service, rounding(law), policy, limits, absences, sending
    )


def conv_seconds(pieces: Pieces, k: int) -> float:
    """Returns T_conv(k), the seconds of the convolutions of a batch in a group of k workers."""
    return max(pieces.conv_compute / k, pieces.conv_network * k)


def fc_seconds(pieces: Pieces, merged: bool) -> tuple[float, float]:
    """Returns the FC seconds of a batch: on the group's machine, and on the shared server."""
    return (0.0, pieces.fc) if merged else (pieces.fc, pieces.fc_network)


def omnivore_arrivals(
    pieces: Pieces,
    merged: bool,
    groups: int,
    k: int,
    steps: int,
    law: Draw,
    rng: np.random.Generator,
) -> tuple[Timeline, np.ndarray]:
    """Returns the first `steps` updates by Omnivore's hardware model, and the server's seconds.

    Hadjis et al., "Omnivore" (arXiv 1606.04487). N workers in g groups of k = N / g share one fully
    connected (FC) server. A group computes its convolutions, then queues for it:

        T_conv_compute(k) = T_conv_compute(1) / k    a batch is divided among k workers
        T_conv_network(k) = T_conv_network(1) k      k workers exchange the model with one server
        T_conv(k) = max(T_conv_compute(k), T_conv_network(k))

    In the paper T_conv_network grows with k; that it grows linearly is assumed here. *Merged*,
    compute and model of the FC part share the server, for T_fc a batch. *Unmerged*, as in the
    authors' program, a group computes its FC part in T_fc, and queues for the server of the FC
    model, T_fc_network a batch. T_conv(k) of each worker and each FC service are multiplied by
    draws of `law`. The staleness is that of the convolutional model: a merged FC model has none.
    """
    own_seconds, server_mean = fc_seconds(pieces, merged)
    conv_stream, fc_stream, server_stream = rng.spawn(3)
    services = groups + steps  # one at the start of each group, one after each update
    computing = law(conv_stream, (services, k)).max(axis=1) * conv_seconds(pieces, k)
    computing += law(fc_stream, (services,)) * own_seconds
    server_seconds = law(server_stream, (steps,)) * server_mean
    # What arrives after the last update does not count, however long the server takes for it.
    remaining, served = iter(computing.tolist()), chain(server_seconds.tolist(), repeat(0.0))
    line = simulate_queue(
        groups, steps, lambda *_: next(remaining), rounding(law), server_seconds=served
    )
    return from_arrivals(line.worker, line.seconds, groups), server_seconds


def shared_cores(
    seed: int, law: Draw, work: Work, server: np.ndarray | float, cores: float, steps: int
) -> Timeline:
    """Returns the first `steps` updates of workers that share cores with their server.

        dv/dt = min(1, C / n)      the work that each of n at work gets done in a second

    n counts the workers that compute, and one more while the server has any message. A machine of C
    `cores` divides them evenly (processor sharing). Memory bounds C likewise: where a core at work
    moves b bytes a second and the memory B in all, C = min(cores, B / b). C is positive, or
    infinite.
    `server`: its seconds at an update on a free machine, or (steps,).
    """
    groups, next_service = len(work.compute), service_seconds(seed, law, work, steps)
    served = chain(np.broadcast_to(server, steps).tolist(), repeat(0.0))
    line = simulate_queue(
        groups, steps, next_service, rounding(law), server_seconds=served, cores=cores
    )
    return from_arrivals(line.worker, line.seconds, groups)


def compute_groups(
    cluster: Cluster,
    *,
    groups: int,
    steps: int,
    batch_size: int,
    update_bytes: int = 0,
    seed: int = 0,
    replicas: int = 0,
    merged: bool = False,
    policy: Policy = FREE_RUNNING,
    trace: RecordedTrace | None = None,
    message_bytes: float | None = None,
) -> Timeline:
    """Returns the timeline of `steps` updates by `groups` equal groups of the cluster's workers.

    A worker computes its share of the batch at `seconds_per_example` over its speed, times a draw
    of the law `service`. A group delivers with its slowest worker, sends its gradient, of
    `message_bytes` or `update_bytes`, and reads `update_bytes` of parameters, behind the fraction
    `overlap` of its computing. With `cluster.pieces` groups queue for a server
    (`omnivore_arrivals`) instead. The timeline of a race is blank: the race fills it. `replicas` >
    0 gives arrays (replicas, steps): consecutive windows of one long timeline, each of which begins
    with all parameters of version 0.
    """
    count = max(replicas, 1) * steps
    work = group_work(cluster, groups, batch_size, update_bytes, message_bytes=message_bytes)
    if cluster.service.name == "geometric":
        shape = (replicas, steps) if replicas else (steps,)
        interval = 1 / np.sum(1 / work.means().max(axis=1))  # the rates of the groups add up
        return geometric_timeline(seeds.generator(seed, "arrivals"), groups, float(interval), shape)
    if cluster.service.name == "race":
        return blank_timeline(groups, steps, policy._replace(allotted=math.inf))
    law, stream = cluster.service, seeds.number(seed, "arrivals")
    availability = availability_of(cluster, groups, update_bytes)
    if trace:
        line = replay(trace, groups, policy)
    elif cluster.pieces.conv_compute:
        rng, k = seeds.generator(seed, "arrivals"), cluster.worker_count // groups
        line, _ = omnivore_arrivals(cluster.pieces, merged, groups, k, count, law.draw, rng)
    elif groups == 1 and not policy.waiting and not availability:
        sizes = {"batch_size": batch_size, "update_bytes": update_bytes}
        line = synchronous(cluster, steps=count, seed=seed, **sizes)
    elif policy != FREE_RUNNING or availability:
        line = queued_arrivals(stream, law.draw, work, count, policy, availability or ALWAYS_THERE)
    else:
        line = renewal_arrivals(stream, law.draw, work, count)
    if not replicas:
        return line
    seconds = line.seconds.reshape(replicas, steps)
    starts = np.concatenate([[0.0], seconds[:-1, -1]])[:, None]
    return from_arrivals(line.worker.reshape(replicas, steps), seconds - starts, groups)


def group_work(
    cluster: Cluster,
    groups: int,
    batch_size: int,
    update_bytes: int,
    sent: bool = True,
    message_bytes: float | None = None,
) -> Work:
    """Returns the seconds of each group's update, its messages included if they are `sent`."""
    means = compute_means(cluster, groups, batch_size)
    exchange = group_exchange(cluster, groups, update_bytes, sent, message_bytes)
    return Work(means, exchange, cluster.overlap)


def availability_of(cluster: Cluster, groups: int, update_bytes: int) -> Availability | None:
    """Returns the availability of groups, each in its first node's region; None: always there."""
    if not (cluster.diurnal or cluster.presence or cluster.server_bandwidth):
        return None
    load = availability.cluster_load(cluster)
    if load:
        load = load._replace(phase=load.phase[np.arange(groups) * cluster.nodes // groups])
    width = cluster.server_bandwidth
    sending = 2 * update_bytes / width if width else 0.0
    return Availability(load, cluster.presence, cluster.absence, sending)
