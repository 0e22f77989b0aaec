"""Asynchronous arrivals: each group works by itself and delivers when its slowest worker is done.

Groups never wait for one another, so each is a renewal process of its own and the order of
arrivals is the merge of their arrival times. Arrivals at the same second, which constant services
have, are in the order of the groups: speeds of 1, 2 and 3 meet every second, whatever the rounding
of their sums says.

Asynchronous arrivals of volunteers: their pace follows the hour, and they come and go.

    service   a draw times the load at the second at which it begins (`habits.Load`), and messages
    presence  a group leaves after an exponential time, loses what it was at, and when it is back
              reads what is newest then and begins anew
    server    one link, which every arrival holds for `sending` seconds, in order of arrival; then
              the update is made, and the group reads it

Event by event, from a queue: O(log groups) an event. Without any of the three it is `arrivals.py`,
to the rounding of a sum.

Groups that wait for one another: for K gradients an update, and for those that lag behind.

n groups compute gradients, and an update is made when K are there (Dutta et al., arXiv 1803.01113).

    k_sync          all begin at the newest parameters; the n - K others are dropped
    k_batch_sync    likewise, but a group that has delivered begins another at once
    k_async         who has delivered waits for the update; the others go on, and count for a later
    k_batch_async   nobody waits: who has delivered reads and begins another at once

*Stale synchronous parallel* (Ho et al., "More effective distributed ML via a stale synchronous
parallel parameter server", NIPS 2013): a group's clock c is the number of its deliveries so far.
With staleness bound s it goes on only while

    c <= min over groups of c + s

and otherwise waits, without parameters, until the slowest group's next update. With s = 0 everybody
waits for everybody after each update, and with s = infinity nobody ever waits. A group that waited
reads the parameters as they are when it goes on.

*Ringmaster* (`methods/ringmaster.py`) waits for nobody, and drops an arrival whose gradient was
taken `delay_bound` (R) or more updates ago: its group begins again at the newest parameters.

*MindFlayer* (`methods/mindflayer.py`): who has not delivered after `allotted` times its mean
service drops what it is at, and begins again at the newest parameters.

Groups of workers that queue for one server: Omnivore's hardware model, event by event.

Hadjis et al., "Omnivore" (arXiv 1606.04487). N workers in g groups of k = N / g share one fully
connected (FC) server. A group computes its convolutions, then queues for it:

    T_conv_compute(k) = T_conv_compute(1) / k    a batch is divided among k workers
    T_conv_network(k) = T_conv_network(1) k      k workers exchange the model with one server
    T_conv(k) = max(T_conv_compute(k), T_conv_network(k))

The paper has T_conv_network grow with k; linear growth is an assumption made here, of one model
server with one link.

*Merged*, compute and model of the FC part share the server, for T_fc a batch. *Unmerged*, as the
authors' program lays it out, every group computes its FC part on a machine of its own in T_fc, and
what the groups queue for is the server of the FC model, T_fc_network a batch.

Workers that share the cores of one machine with the server that they send to, event by event.

    worker    w core-seconds of computing, then it queues for the server
    server    s seconds at one update after the other, in order of arrival; its worker reads

    dv/dt = min(1, C / k)      what each of the k that are at work gets done in a second

k are the workers that compute, and the server where somebody is there. A machine of C cores divides
them evenly among those at work (processor sharing). Memory bounds C likewise: where a core at work
moves b bytes a second and the memory B in all, C = min(cores, B / b).

With as many cores as workers, and one for the server, nobody is slowed, and what is left is the
server's queue. Without a server, s = 0, it is `arrivals.py` to the rounding of a sum. With one core
an update takes w + s, however many work.

From `config.cluster` to the arrivals of its groups, by the law of their service.
"""

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from math import sin
from typing import NamedTuple

import numpy as np

from optdyn.base import seeds
from optdyn.clock import availability
from optdyn.clock.availability import Habits
from optdyn.clock.cluster import Cluster
from optdyn.clock.meetings import compute_means, synchronous
from optdyn.clock.network import of_groups
from optdyn.clock.service import Draw, geometric, is_constant, with_exchange
from optdyn.clock.timeline import Arrival, Timeline, TimelineError, from_arrivals
from optdyn.clock.trace import Held, arrived
from optdyn.clock.versions import NOBODY, Slots, Versions, blank

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
        return with_exchange(np.asarray(self.compute), exchange, self.overlap)


def drawn(steps: int, groups: int) -> int:
    """Services that each of so many groups draws at a time, for `steps` arrivals of all of them."""
    return min(BLOCK, steps, 2 * -(-steps // groups) + SPARE)


def computing(seed: int, law: Draw, work: Work, steps: int, group: int) -> Iterator[float]:
    """Seconds that a group computes for one service after the other, each of its slowest worker.

    Arguments as those of `arrivals`, whose draws these are; services are alike.
    """
    rng, n = np.random.default_rng((seed, group)), drawn(steps, len(work.compute))
    mean, _ = work.of(group)
    while True:
        yield from (law(rng, (n, mean.shape[1])) * mean).max(axis=1).tolist()


def services(seed: int, law: Draw, work: Work, steps: int, group: int) -> Iterator[float]:
    """Seconds of `computing` together with the exchange, as far as it does not overlap."""
    exchange, overlap = float(work.of(group)[1][0]), work.overlap
    for compute in computing(seed, law, work, steps, group):
        yield max(compute, compute * (1 - overlap) + exchange)


def arrivals(seed: int, law: Draw, work: Work, steps: int) -> Timeline:
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
        number = np.arange(done, done + min(max(drawn(steps, groups), done), BLOCK - done % BLOCK))
        draws = law(streams[group], (len(number), cycle.shape[1]))
        place = number % len(cycle)
        slowest = (draws * cycle[place]).max(axis=1)
        each = with_exchange(slowest, exchange[place], work.overlap)
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


LOST = 100  # absences an update, at most
JOINS, DELIVERS, IS_DONE = range(3)  # kinds of events


def volunteers(
    seed: int, law: Draw, work: Work, steps: int, habits: Habits
) -> tuple[Timeline, np.ndarray]:
    """The first `steps` updates, and the absences so far: (n, 3), group, since when, until when.

    Other arguments as those of `arrivals`, whose draws these are. A group leaves, and has its hour,
    as a whole. All are there at second 0. A new version is written to a slot that no group needs,
    so `groups` slots do. Longer runs begin with shorter ones. Raises `TimelineError` where groups
    leave before they get anything done.
    """
    groups, (load, presence, absence, sending) = len(work.compute), habits
    service = [computing(seed, law, work, steps, group) for group in range(groups)]
    exchange, overlap = [float(work.of(group)[1][0]) for group in range(groups)], work.overlap
    amplitude, speed = (load.amplitude, load.speed) if load else (0.0, 0.0)
    phase = load.phase.tolist() if load else [0.0] * groups
    # A stream of their own, so that who is away does not depend on how much is computed.
    comings = [
        np.random.default_rng((seed, group, 1)) for group in range(groups if presence else 0)
    ]
    leaves = [rng.exponential(presence) for rng in comings]
    slots, newest, t = Slots(groups), 0, 0  # t: updates so far
    held, version = [0] * groups, [0] * groups
    worker, read, write, staleness = np.empty((4, steps), np.int32)
    seconds, away = np.empty(steps), list[tuple[int, float, float]]()
    free = 0.0  # the second at which the server's link is

    def next_of(group: int, now: float) -> tuple[float, int, int]:
        """What becomes of a group that begins at this second."""
        takes = next(service[group])
        if load:
            takes *= 1 + amplitude * sin(speed * now + phase[group])
        takes = max(takes, takes * (1 - overlap) + exchange[group])
        while presence and leaves[group] <= now + takes:
            left = leaves[group]
            back = left + comings[group].exponential(absence)
            leaves[group] = back + comings[group].exponential(presence)
            away.append((group, left, back))
            if len(away) > LOST * (t + groups):
                raise TimelineError(
                    f"config.cluster.presence = {presence:g}: after {t:,} updates groups "
                    f"have left {len(away):,} times, and must be there for longer than a service"
                )
            if back > now:
                return back, group, JOINS
        held[group], version[group] = newest, t
        slots.hold(newest)
        return now + takes, group, DELIVERS

    events = Queue([next_of(group, 0.0) for group in range(groups)], rounding(law))
    while t < steps:
        now, group, kind = events.pop()
        if kind == DELIVERS and sending:
            free = max(free, now) + sending
            events.push((free, group, IS_DONE))
            continue
        if kind != JOINS:
            worker[t], read[t], staleness[t] = group, held[group], t - version[group]
            slots.release(held[group])
            write[t] = newest = slots.next()
            seconds[t] = now
            t += 1
        events.push(next_of(group, now))
    absences = np.array(away).reshape(-1, 3)
    choice = Arrival(worker, read, write)
    return Timeline(worker, staleness, seconds, groups, choice), absences


LATE = 1000  # gradients dropped for one that is delivered, at most


def several(
    seed: int,
    law: Draw,
    work: Work,
    steps: int,
    arrivals: int = 1,
    waiting: str = NOBODY,
    bound: float = math.inf,
    delay_bound: float = math.inf,
    allotted: float = math.inf,
) -> Timeline:
    """The first `steps` updates, of `arrivals` (K) gradients each, with staleness bound `bound`.

    Other arguments as those of `timeline.arrivals`, whose draws these are: by default it is the
    same. `worker` is the group that delivers last. `staleness`, and the workers and reads of its
    choice, are (steps, K), in the order of delivery, or (steps,) where K is 1. A new version is
    written to a slot that no group at work has read, so `groups` slots do. K is at most `groups`,
    but where a group delivers several. Raises `TimelineError` if groups hardly deliver.
    """
    groups = len(work.compute)
    service = [services(seed, law, work, steps, group) for group in range(groups)]
    limit = (allotted * work.means().max(axis=1)).tolist() if allotted < math.inf else []

    def next_of(group: int, now: float) -> tuple[float, int, bool]:
        """When the group is done that begins now, or is late."""
        takes = next(service[group])
        if limit and takes > limit[group]:
            return now + limit[group], group, True
        return now + takes, group, False

    working = Queue([next_of(group, 0.0) for group in range(groups)], rounding(law))
    line = blank(groups, steps, arrivals, waiting, min(delay_bound, allotted) < math.inf)
    versions = Versions(line, groups, bound, arrivals, waiting, delay_bound)
    left, late = steps * arrivals, 0
    while left:
        now, group, is_late = working.pop()
        if is_late:
            versions.drop(group)
            working.push(next_of(group, now))
            late += 1
            if late > LATE * (steps * arrivals - left + groups):
                raise TimelineError(
                    f"config.method.allotted = {allotted:g}: groups have begun again {late:,} "
                    "times and hardly deliver; it must be longer"
                )
            continue
        _, _, readers, dropped = versions.arrive(group, now)
        left -= not dropped
        if waiting.endswith("_sync") and len(readers) > 1:  # they may be at work, and drop that
            working.drop(set(readers))
        for other in readers:
            working.push(next_of(other, now))
    return line._replace(batch=None)  # batches are of updates here, not of readers


class IterationSeconds(NamedTuple):
    """Seconds of the parts of an iteration on one batch."""

    t_conv_compute_1: float  # convolutions, forward and backward, on one worker
    t_conv_network_1: float  # exchange of the convolutional model by one worker
    t_fc: float  # fully connected part, forward and backward
    merged: bool = True  # FC compute and FC model on one server
    t_fc_network: float = 0.0  # exchange of the FC model; only if not merged


def pieces_of(cluster: Cluster, merged: bool) -> IterationSeconds | None:
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


def server(
    pieces: IterationSeconds, groups: int, k: int, steps: int, law: Draw, rng: np.random.Generator
) -> tuple[Timeline, np.ndarray]:
    """The first `steps` updates by `groups` groups of k workers, and the server's seconds at each.

    All groups start at second 0. The mean of every worker's phase, T_conv(k), and of every FC
    service is multiplied by a draw of unit mean from `law`, and a group waits for the slowest of
    its workers, then in order of arrival for the server. It reads the parameters as it leaves the
    server: the staleness is that of the convolutional model (a merged FC model has none). Longer
    runs of the same generator state begin with shorter ones.
    """
    own, served = t_fc(pieces)
    conv_stream, own_stream, server_stream = rng.spawn(3)
    phases = groups + steps  # one at the start of each group, one after every update
    alone = law(conv_stream, (phases, k)).max(axis=1) * t_conv(pieces, k)
    alone += law(own_stream, (phases,)) * own
    services = law(server_stream, (steps,)) * served

    entries = list(zip(alone[:groups].tolist(), range(groups), strict=True))
    queue = Queue(entries, rounding(law))
    worker, seconds = np.empty(steps, np.int32), np.empty(steps)
    free = 0.0  # second at which the server has dealt with all who came before
    events = zip(services.tolist(), alone[groups:].tolist(), strict=True)
    for t, (service, phase) in enumerate(events):
        arrival, group = queue.pop()
        free = max(free, arrival) + service
        worker[t], seconds[t] = group, free
        queue.push((free + phase, group))
    return from_arrivals(worker, seconds, groups), services


SERVER = -1  # in the queue of who is done next, before all workers


def shared_cores(
    seed: int, law: Draw, work: Work, serving: np.ndarray | float, cores: float, steps: int
) -> Timeline:
    """The first `steps` updates of workers that all begin at second 0.

    `work` has what each computes, alone, which is multiplied by draws of `law`, those of
    `arrivals`. `serving`: s, or (steps,) of every update. `cores`: C, positive, or infinite. It
    takes O(log workers) an update. Longer runs begin with shorter ones.
    """
    groups = len(work.compute)
    each = [services(seed, law, work, steps, group) for group in range(groups)]
    served = np.broadcast_to(serving, steps).tolist()
    # v is a clock that all at work share, so it says who is done next, and not when.
    busy = Queue([(next(each[group]), group) for group in range(groups)], rounding(law))
    k, v, now, begun = groups, 0.0, 0.0, 0
    waiting = deque[int]()  # the first of them is being served
    worker, seconds = np.empty(steps, np.int32), np.empty(steps)
    t = 0
    while t < steps:
        done, group = busy.pop()
        now += (done - v) * max(1.0, k / cores)
        v = done
        k -= 1
        if group == SERVER:
            group = waiting.popleft()
            worker[t], seconds[t] = group, now
            t += 1
            busy.push((v + next(each[group]), group))
            k += 1
            idle = True
        else:
            idle = not waiting
            waiting.append(group)
        if idle and waiting and begun < steps:
            busy.push((v + served[begun], SERVER))
            k, begun = k + 1, begun + 1
    return from_arrivals(worker, seconds, groups)


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
    staleness_bound: int = -1,
    several_of: tuple[int, str] = (1, ""),
    delay_bound: int = 0,
    allotted: float = 0.0,
    held: Held | None = None,
    message_bytes: float | None = None,
) -> Timeline:
    """The timeline of `steps` updates by `groups` groups of the cluster's workers.

    The N = nodes x devices_per_node workers form equal groups of k = N / groups, in order. A worker
    computes its share of the batch at `seconds_per_example` over its speed, times a draw of unit
    mean from the law `service`; a group delivers with its slowest worker, after sending its
    gradient and before reading the new parameters (`update_bytes` each way, or a gradient of
    `message_bytes`), behind the fraction `overlap` of its computing. One group of all is
    synchronous, without a server (`nodes.py`).

    With `cluster.pieces` the groups queue for a server instead (`server.py`), `merged` or not, with
    draws from the same law. Pieces are seconds for a whole batch, so neither `batch_size` nor
    `update_bytes` counts. With `staleness_bound` from 0 up they wait for one another, and with
    `several_of`, (K, who waits), an update is of K arrivals (`several.py`). With `delay_bound` from
    1 up what is as many updates old is dropped; one group is never late. With `allotted` above 0
    who has not delivered after so many of its mean services begins again. With a load by the hour,
    absences or a server whose link has a width they are volunteers (`volunteers.py`). Of groups
    that race, `service` "race", it is empty: the race fills it. With `held` it is that of the
    arrivals that a trace holds.

    `replicas` > 0 gives arrays (replicas, steps): consecutive windows of one long timeline, each
    starting from version 0 in every slot.
    """
    count = max(replicas, 1) * steps
    work = work_of(cluster, groups, batch_size, update_bytes, message_bytes=message_bytes)
    if cluster.service.name == "geometric":
        shape = (replicas, steps) if replicas else (steps,)
        interval = 1 / np.sum(1 / work.means().max(axis=1))  # the rates of the groups add up
        return geometric(seeds.generator(seed, "arrivals"), groups, float(interval), shape)
    bound = staleness_bound if staleness_bound >= 0 else math.inf
    oldest = delay_bound if delay_bound and groups > 1 else math.inf
    many, waiting = several_of
    who, limit = waiting or NOBODY, allotted or math.inf
    waits = bool(waiting) or min(bound, oldest, limit) < math.inf
    if cluster.service.name == "race":
        return blank(groups, steps, many, waiting, oldest < math.inf)
    law, stream = cluster.service, seeds.number(seed, "arrivals")
    if held:
        worker = held.worker
        if many > 1:
            worker = held.workers((many,), groups)
        whole = arrived(held, groups, bound, many, who, worker, oldest, limit < math.inf)
    elif pieces := pieces_of(cluster, merged):
        rng, k = seeds.generator(seed, "arrivals"), cluster.worker_count // groups
        whole, _ = server(pieces, groups, k, count, law.draw, rng)
    elif as_volunteers := habits_of(cluster, groups, update_bytes):
        whole, _ = volunteers(stream, law.draw, work, count, as_volunteers)
    elif groups == 1 and not waiting:
        sizes = {"batch_size": batch_size, "update_bytes": update_bytes}
        whole = synchronous(cluster, steps=count, seed=seed, **sizes)
    elif waits:
        bounds = {"bound": bound, "delay_bound": oldest, "allotted": limit}
        whole = several(stream, law.draw, work, count, many, who, **bounds)
    else:
        whole = arrivals(stream, law.draw, work, count)
    return _in_windows(whole, replicas, steps, groups) if replicas else whole


def _in_windows(whole: Timeline, replicas: int, steps: int, groups: int) -> Timeline:
    """(replicas, steps): consecutive windows of a timeline, each from version 0 and second 0 on."""
    seconds = whole.seconds.reshape(replicas, steps)
    starts = np.concatenate([[0.0], seconds[:-1, -1]])[:, None]
    return from_arrivals(whole.worker.reshape(replicas, steps), seconds - starts, groups)


def work_of(
    cluster: Cluster,
    groups: int,
    batch_size: int,
    update_bytes: int,
    sent: bool = True,
    message_bytes: float | None = None,
) -> Work:
    """What each group does for an update, whose gradient and parameters are `sent` or not."""
    means = compute_means(cluster, groups, batch_size)
    each = of_groups(cluster, groups, update_bytes, sent, message_bytes)
    return Work(means, each, cluster.overlap)


def habits_of(cluster: Cluster, groups: int, update_bytes: int) -> availability.Habits | None:
    """The habits of groups of volunteers; a group has the hour of its first worker's node."""
    if not (cluster.diurnal or cluster.presence or cluster.server_bandwidth):
        return None
    load = availability.load(cluster)
    if load:
        load = load._replace(phase=load.phase[np.arange(groups) * cluster.nodes // groups])
    width = cluster.server_bandwidth
    sending = 2 * update_bytes / width if width else 0.0
    return availability.Habits(load, cluster.presence, cluster.absence, sending)
