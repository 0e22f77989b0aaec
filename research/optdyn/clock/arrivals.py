"""Compute groups that arrive by themselves: when each delivers, event by event from one queue.

A group draws services from a stream of its own, each as long as its slowest worker and its messages
take. When one is done it delivers, perhaps waits, reads, and begins the next. What else there may
be in between is an argument of `simulate_queue`:

    policy    groups wait for one another, or what is late is dropped (`clock/versions.py`)
    limits    a service that takes longer is dropped, and the group begins again
    absences  a group leaves after an exponential time, loses what it was at, and when it is back
              reads what is newest then and begins anew
    serving   one server, or its link, is held by every arrival in turn; then the update is made
    cores     those at work, the server too, share the cores of one machine evenly

Arrivals at the same second, which constant services have, are in the order of the groups: speeds of
1, 2 and 3 meet every second, whatever the rounding of their sums says.

Groups that wait for nothing are renewal processes, and their order is the merge of their arrival
times. `renewal_arrivals` adds these up as arrays: the queue would take 3 % more
of a start of 2 s for 10,000 updates of 16 groups (60 ms and not 2), and 45 % for 100,000 of 1,000
(1.0 s and not 0.06).
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
from optdyn.clock.cluster import Cluster
from optdyn.clock.meetings import compute_means, synchronous
from optdyn.clock.network import group_exchange
from optdyn.clock.service import Draw, geometric_timeline, is_constant, overlapped
from optdyn.clock.timeline import Timeline, TimelineError, from_arrivals
from optdyn.clock.trace import RecordedTrace, replay
from optdyn.clock.versions import FREE_RUNNING, Policy, Task, Versions, blank_timeline

BLOCK = 1 << 16  # services of a group that are added up on their own
SPARE = 16  # services drawn beyond what a group is likely to need
ROUNDING = 1e-10  # relative; constant services, of which up to 10^5 are added, differ by less


def rounding(law: Draw) -> float:
    """How much arrivals at the same second may differ, relatively; 0 where times are drawn."""
    return ROUNDING if is_constant(law) else 0.0


class Queue:
    """Deliveries to come, (seconds, group, ...), which are taken in order.

    Those whose seconds differ by the `rounding` only are taken in the order of their groups.
    """

    def __init__(self, entries: list[tuple], rounding: float):
        self._heap, self._rounding = entries, rounding
        self._now = list[tuple]()  # those of one second, the next of them last
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap) + len(self._now)

    @property
    def second(self) -> float:
        """The second of the next delivery, infinite if there is none."""
        entries = self._now or self._heap
        return entries[-1 if self._now else 0][0] if entries else math.inf

    def push(self, entry: tuple) -> None:
        """Adds a delivery that is to come."""
        heapq.heappush(self._heap, entry)

    def pop(self) -> tuple:
        """Takes the next delivery."""
        if not self._rounding:
            return heapq.heappop(self._heap)
        if not self._now:
            self._now.append(heapq.heappop(self._heap))
            end = self._now[0][0] * (1 + self._rounding)
            while self._heap and self._heap[0][0] <= end:
                self._now.append(heapq.heappop(self._heap))
            if len(self._now) > 1:  # their seconds in order, whosever each of them was
                seconds = [entry[0] for entry in self._now]
                ordered = sorted(entry[1:] for entry in self._now)
                self._now = [(s, *of) for s, of in zip(seconds, ordered, strict=True)][::-1]
        return self._now.pop()

    def drop(self, groups: Collection[int]) -> None:
        """Takes the deliveries of these groups out."""
        self._heap, self._now = (
            [entry for entry in entries if entry[1] not in groups]
            for entries in (self._heap, self._now)
        )
        heapq.heapify(self._heap)


class Work(NamedTuple):
    """What groups do from one arrival to the next: services that may be unlike, and take turns.

    `compute`, (groups, k), or (n, k) of each group: mean seconds of each of its workers, the
    slowest of whom it waits for. `exchange`, (groups,), or (n,) of each: seconds of its messages,
    of which `overlap`, the last fraction of the computing, hides what it can.
    """

    compute: np.ndarray | Sequence[np.ndarray]
    exchange: np.ndarray | Sequence[np.ndarray] | float = 0.0
    overlap: float = 0.0

    def of(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, k) and (n,) of its services."""
        compute = np.atleast_2d(self.compute[group])
        exchange = self.exchange if isinstance(self.exchange, float) else self.exchange[group]
        return compute, np.broadcast_to(exchange, len(compute))

    def means(self) -> np.ndarray:
        """(groups, k) mean seconds with the exchange, of groups whose services are alike."""
        exchange = np.reshape(np.broadcast_to(self.exchange, len(self.compute)), (-1, 1))
        return overlapped(np.asarray(self.compute), exchange, self.overlap)


def services_per_draw(steps: int, groups: int) -> int:
    """Services that each of so many groups draws at a time, for `steps` arrivals of all of them."""
    return min(BLOCK, steps, 2 * -(-steps // groups) + SPARE)


def renewal_arrivals(seed: int, law: Draw, work: Work, steps: int) -> Timeline:
    """The first `steps` arrivals of groups.

    Every group draws from a stream of its own, so a longer run begins with the shorter one.
    """
    groups = len(work.compute)
    cycles = [work.of(group) for group in range(groups)]
    streams = [np.random.default_rng((seed, group)) for group in range(groups)]
    times: list[np.ndarray] = [np.zeros(1)] * groups
    begun, since = np.zeros(groups), np.zeros(groups)  # a block's start, and seconds since then

    def extend(group: int) -> None:
        done, (cycle, exchange) = len(times[group]) - 1, cycles[group]
        if done % BLOCK == 0:
            begun[group], since[group] = times[group][-1], 0.0
        number = np.arange(
            done, done + min(max(services_per_draw(steps, groups), done), BLOCK - done % BLOCK)
        )
        draws = law(streams[group], (len(number), cycle.shape[1]))
        place = number % len(cycle)
        slowest = (draws * cycle[place]).max(axis=1)
        each = overlapped(slowest, exchange[place], work.overlap)
        sums = np.cumsum(np.append(since[group], each))[1:]
        times[group], since[group] = np.append(times[group], begun[group] + sums), sums[-1]

    short, same = list(range(groups)), rounding(law)
    while True:
        for group in short:
            extend(group)
        # Only up to the horizon that every group has reached is the merge known.
        ends = np.array([group[-1] for group in times])
        horizon = ends.min() * (1 - 2 * same)
        counts = [np.searchsorted(group, horizon, side="right") - 1 for group in times]
        if sum(counts) >= steps:
            break
        short = np.flatnonzero(ends <= 1.5 * ends.min()).tolist()

    seconds = np.concatenate([group[1 : 1 + n] for group, n in zip(times, counts, strict=True)])
    worker = np.repeat(np.arange(groups, dtype=np.int32), counts)
    order = np.argsort(seconds, kind="stable")
    worker, seconds = worker[order], seconds[order]
    if same:
        second = np.cumsum(np.diff(seconds, prepend=0.0) > same * seconds)  # the number of it
        worker = worker[np.lexsort((worker, second))]
    return from_arrivals(worker[:steps], seconds[:steps], groups)


ALWAYS_THERE = Availability()
LOST = 100  # absences an arrival, at most
LATE = 1000  # services dropped an arrival, at most
DELIVERS, IS_DONE, RESTARTS, RETURNS = range(4)  # kinds of events


class Absences:
    """When groups are away, whose presences and absences take exponential times."""

    def __init__(self, seed: int, groups: int, availability: Availability):
        # A stream of their own, so that who is away does not depend on how much is computed.
        self._streams = [np.random.default_rng((seed, group, 1)) for group in range(groups)]
        self._presence, self._absence = availability.presence, availability.absence
        self._leaves = [rng.exponential(availability.presence) for rng in self._streams]
        self.past = list[tuple[int, float, float]]()  # group, since when, until when

    def interrupt(self, group: int, now: float, end: float, updates: int) -> float | None:
        """When the group is back, if it leaves before the end of what it begins now.

        Raises `TimelineError` where groups leave before they get anything done.
        """
        rng = self._streams[group]
        while self._leaves[group] <= end:
            left = self._leaves[group]
            back = left + rng.exponential(self._absence)
            self._leaves[group] = back + rng.exponential(self._presence)
            self.past.append((group, left, back))
            if len(self.past) > LOST * (updates + len(self._streams)):
                raise TimelineError(
                    f"config.cluster.presence = {self._presence:g}: after {updates:,} updates "
                    f"groups have left {len(self.past):,} times, and must be there for longer "
                    "than a service"
                )
            if back > now:
                return back
        return None


def simulate_queue(
    groups: int,
    steps: int,
    takes: Callable[[int, float], float],
    rounding: float,
    policy: Policy = FREE_RUNNING,
    limits: Sequence[float] = (),
    absences: Absences | None = None,
    serving: Iterable[float] | None = None,
    cores: float | None = None,
) -> Timeline:
    """The first `steps` updates of groups that all begin at second 0, in O(log groups) an event.

    `takes(group, now)`: seconds of a service that begins then; `limits`, (groups,), the most that
    one may take. `serving`: seconds of the server at one arrival after the other. Raises
    `TimelineError` if groups hardly deliver.
    """
    line = blank_timeline(groups, steps, policy)
    order = Versions(line, groups, policy)
    away = dict[int, Task]()
    delivered = late = 0

    def begin(group: int, now: float) -> tuple[float, int, int]:
        """The event that ends what a group begins now."""
        seconds = takes(group, now)
        if limits and seconds > limits[group]:
            return now + limits[group], group, RESTARTS
        if absences:
            back = absences.interrupt(group, now, now + seconds, order.updates)
            if back is not None:
                away[group] = order.leave(group)
                return back, group, RETURNS
        return now + seconds, group, DELIVERS

    queue = Queue([begin(group, 0.0) for group in range(groups)], rounding)
    server, service = deque[tuple[float, int, int]](), iter(serving or ())
    free = 0.0  # when the server has dealt with all who came before
    second = clock = 0.0  # of the queue, and where groups share cores the time that passes
    while order.updates < steps:
        at_work = len(queue) + bool(server) if cores else 0
        is_done = server and server[0][0] <= queue.second
        now, group, kind = server.popleft() if is_done else queue.pop()
        clock = clock + (now - second) * max(1.0, at_work / cores) if cores else now
        second, readers = now, [group]
        if kind == DELIVERS and serving is not None:
            free = max(free, now) + next(service)
            server.append((free, group, IS_DONE))
            continue
        if kind == RETURNS:
            order.begin(group, away.pop(group).batch)
        elif kind == RESTARTS:
            order.drop(group)
            late += 1
            if late > LATE * (delivered + groups):
                raise TimelineError(
                    f"config.method.allotted = {policy.allotted:g}: groups have begun again "
                    f"{late:,} times and hardly deliver; it must be longer"
                )
        else:
            _, _, readers, is_dropped = order.arrive(group, clock)
            delivered += not is_dropped
            if order.drops_others and len(readers) > 1:  # they may be at work, and drop that
                queue.drop(set(readers))
        for reader in readers:
            queue.push(begin(reader, now))
    return line._replace(batch=None)  # batches are of updates here, not of readers


def service_seconds(
    seed: int, law: Draw, work: Work, steps: int, load: Load | None = None
) -> Callable[[int, float], float]:
    """(group, now) -> seconds of its next service: its slowest worker's, and of its messages.

    The draws are those of `renewal_arrivals`; services are alike, but for the load at their start.
    """
    groups, overlap = len(work.compute), work.overlap
    exchange = [float(work.of(group)[1][0]) for group in range(groups)]
    amplitude, speed = (load.amplitude, load.speed) if load else (0.0, 0.0)
    phase = load.phase.tolist() if load else []

    def computing(group: int) -> Iterator[float]:
        rng, (mean, _) = np.random.default_rng((seed, group)), work.of(group)
        while True:
            draws = law(rng, (services_per_draw(steps, groups), mean.shape[1]))
            yield from (draws * mean).max(axis=1).tolist()

    computed = [computing(group) for group in range(groups)]

    def takes(group: int, now: float) -> float:
        compute = next(computed[group])
        if load:
            compute *= 1 + amplitude * math.sin(speed * now + phase[group])
        return max(compute, compute * (1 - overlap) + exchange[group])

    return takes


def queued_arrivals(
    seed: int,
    law: Draw,
    work: Work,
    steps: int,
    policy: Policy = FREE_RUNNING,
    availability: Availability = ALWAYS_THERE,
    absences: Absences | None = None,
) -> Timeline:
    """The first `steps` updates of groups with that policy and those habits.

    `worker` is the group that delivers last. `staleness`, and the workers and reads of its plan,
    are (steps, K), in the order of delivery, or (steps,) where K is 1. K is at most the number of
    groups, but where a group delivers several. A group leaves, and has its hour, as a whole.
    """
    groups, limits = len(work.compute), list[float]()
    if policy.allotted < math.inf:
        limits = (policy.allotted * work.means().max(axis=1)).tolist()
    if availability.presence and not absences:
        absences = Absences(seed, groups, availability)
    serving = repeat(availability.sending) if availability.sending else None
    takes = service_seconds(seed, law, work, steps, availability.load)
    return simulate_queue(groups, steps, takes, rounding(law), policy, limits, absences, serving)


class IterationSeconds(NamedTuple):
    """Seconds of the parts of an iteration on one batch: Omnivore's hardware model.

    Hadjis et al., "Omnivore" (arXiv 1606.04487). N workers in g groups of k = N / g share one fully
    connected (FC) server. A group computes its convolutions, then queues for it:

        T_conv_compute(k) = T_conv_compute(1) / k    a batch is divided among k workers
        T_conv_network(k) = T_conv_network(1) k      k workers exchange the model with one server
        T_conv(k) = max(T_conv_compute(k), T_conv_network(k))

    The paper has T_conv_network grow with k; linear growth is an assumption made here, of one model
    server with one link.

    *Merged*, compute and model of the FC part share the server, for T_fc a batch. *Unmerged*, as
    the authors' program lays it out, every group computes its FC part on a machine of its own in
    T_fc, and what the groups queue for is the server of the FC model, T_fc_network a batch.
    """

    t_conv_compute_1: float  # convolutions, forward and backward, on one worker
    t_conv_network_1: float  # exchange of the convolutional model by one worker
    t_fc: float  # fully connected part, forward and backward
    merged: bool = True  # FC compute and FC model on one server
    t_fc_network: float = 0.0  # exchange of the FC model; only if not merged


def iteration_seconds(cluster: Cluster, merged: bool) -> IterationSeconds | None:
    """The pieces of a cluster's config, if it has any."""
    given = cluster.pieces
    if not given.conv_compute:
        return None
    return IterationSeconds(
        given.conv_compute, given.conv_network, given.fc, merged, given.fc_network
    )


def t_conv(pieces: IterationSeconds, k: int) -> float:
    """Seconds of the convolutional phase in a group of k workers."""
    return max(pieces.t_conv_compute_1 / k, pieces.t_conv_network_1 * k)


def t_fc(pieces: IterationSeconds) -> tuple[float, float]:
    """FC seconds of a batch: on the group's own machine, and on the server that all share."""
    return (0.0, pieces.t_fc) if pieces.merged else (pieces.t_fc, pieces.t_fc_network)


def omnivore_arrivals(
    pieces: IterationSeconds, groups: int, k: int, steps: int, law: Draw, rng: np.random.Generator
) -> tuple[Timeline, np.ndarray]:
    """The first `steps` updates by `groups` groups of k workers, and the server's seconds at each.

    The mean of every worker's phase, T_conv(k), and of every FC service is multiplied by a draw of
    unit mean from `law`, and a group waits for the slowest of its workers, then in order of arrival
    for the server. It reads the parameters as it leaves the server: the staleness is that of the
    convolutional model (a merged FC model has none). Longer runs of the same generator state begin
    with shorter ones.
    """
    own, served = t_fc(pieces)
    conv_stream, own_stream, server_stream = rng.spawn(3)
    phases = groups + steps  # one at the start of each group, one after every update
    alone = law(conv_stream, (phases, k)).max(axis=1) * t_conv(pieces, k)
    alone += law(own_stream, (phases,)) * own
    seconds = law(server_stream, (steps,)) * served
    phase, serving = iter(alone.tolist()), chain(seconds.tolist(), repeat(0.0))
    line = simulate_queue(groups, steps, lambda *_: next(phase), rounding(law), serving=serving)
    return from_arrivals(line.worker, line.seconds, groups), seconds


def shared_cores(
    seed: int, law: Draw, work: Work, serving: np.ndarray | float, cores: float, steps: int
) -> Timeline:
    """The first `steps` updates of workers that share cores with the server that they send to.

        dv/dt = min(1, C / k)      what each of the k that are at work gets done in a second

    k are the workers that compute, and the server where somebody is there. A machine of C `cores`
    divides them evenly among those at work (processor sharing). Memory bounds C likewise: where a
    core at work moves b bytes a second and the memory B in all, C = min(cores, B / b). C is
    positive, or infinite. With one core an update takes w + s, however many work.

    `work` has what each computes, alone, which is multiplied by draws of `law`, those of
    `renewal_arrivals`. `serving`: s, or (steps,) of every update.
    """
    groups, takes = len(work.compute), service_seconds(seed, law, work, steps)
    served = chain(np.broadcast_to(serving, steps).tolist(), repeat(0.0))
    line = simulate_queue(groups, steps, takes, rounding(law), serving=served, cores=cores)
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
    """The timeline of `steps` updates by `groups` groups of the cluster's workers.

    The N = nodes x devices_per_node workers form equal groups of k = N / groups, in order. A worker
    computes its share of the batch at `seconds_per_example` over its speed, times a draw of unit
    mean from the law `service`; a group delivers with its slowest worker, after sending its
    gradient and before reading the new parameters (`update_bytes` each way, or a gradient of
    `message_bytes`), behind the fraction `overlap` of its computing. One group of all is
    synchronous, without a server (`meetings.py`).

    With `cluster.pieces` the groups queue for a server instead (`omnivore_arrivals`), `merged` or
    not. Pieces are seconds for a whole batch, so `batch_size` and `update_bytes` do not count. The
    timeline of groups that race is blank: the race fills it. With `trace` it is that of the
    arrivals that a trace holds.

    `replicas` > 0 gives arrays (replicas, steps): consecutive windows of one long timeline, each
    starting from version 0 in every slot.
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
        whole = replay(trace, groups, policy)
    elif pieces := iteration_seconds(cluster, merged):
        rng, k = seeds.generator(seed, "arrivals"), cluster.worker_count // groups
        whole, _ = omnivore_arrivals(pieces, groups, k, count, law.draw, rng)
    elif groups == 1 and not policy.waiting and not availability:
        sizes = {"batch_size": batch_size, "update_bytes": update_bytes}
        whole = synchronous(cluster, steps=count, seed=seed, **sizes)
    elif policy != FREE_RUNNING or availability:
        whole = queued_arrivals(stream, law.draw, work, count, policy, availability or ALWAYS_THERE)
    else:
        whole = renewal_arrivals(stream, law.draw, work, count)
    if not replicas:
        return whole
    seconds = whole.seconds.reshape(replicas, steps)
    starts = np.concatenate([[0.0], seconds[:-1, -1]])[:, None]
    return from_arrivals(whole.worker.reshape(replicas, steps), seconds - starts, groups)


def group_work(
    cluster: Cluster,
    groups: int,
    batch_size: int,
    update_bytes: int,
    sent: bool = True,
    message_bytes: float | None = None,
) -> Work:
    """What each group does for an update, whose gradient and parameters are `sent` or not."""
    means = compute_means(cluster, groups, batch_size)
    exchange = group_exchange(cluster, groups, update_bytes, sent, message_bytes)
    return Work(means, exchange, cluster.overlap)


def availability_of(cluster: Cluster, groups: int, update_bytes: int) -> Availability | None:
    """The habits of groups of volunteers; a group has the hour of its first worker's node."""
    if not (cluster.diurnal or cluster.presence or cluster.server_bandwidth):
        return None
    load = availability.cluster_load(cluster)
    if load:
        load = load._replace(phase=load.phase[np.arange(groups) * cluster.nodes // groups])
    width = cluster.server_bandwidth
    sending = 2 * update_bytes / width if width else 0.0
    return Availability(load, cluster.presence, cluster.absence, sending)
