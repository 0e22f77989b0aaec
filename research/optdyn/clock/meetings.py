"""Seconds of nodes that compute by themselves and meet: one recurrence for all such clocks.

Each device computes its part of the batch. The devices of a node add up their gradients over the
node's links; an exchange between nodes is by one device of each, which broadcasts the result.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optdyn.base import seeds
from optdyn.base.trees import Plan
from optdyn.clock.availability import Load, Presence, reroute, still_present
from optdyn.clock.cluster import Cluster
from optdyn.clock.network import Links, between_nodes, broadcast, inside_node
from optdyn.clock.timeline import (
    Meeting,
    Timeline,
    commit_times,
    divide_batch,
    entries_at,
    from_arrivals,
)


class LocalTimes(NamedTuple):
    """The plans and seconds of updates inside nodes, between their exchanges."""

    ready: np.ndarray  # (steps, nodes) seconds of an update until its exchange may start
    done: np.ndarray  # (steps, nodes) seconds of an update until its end
    plan: Plan = ()  # plans inside the nodes, (steps, nodes, ...)
    staleness: np.ndarray | None = None  # (steps, nodes, ...), where gradients are stale
    slots: int = 1  # snapshots that the plan addresses


LocalClock = Callable[[int], LocalTimes]  # steps -> their times
Nodes = np.ndarray  # (..., nodes)
NodesPlan = Any  # a NamedTuple with the plans inside nodes as its `inner`


def synchronous(
    cluster: Cluster, *, steps: int, batch_size: int, update_bytes: int, seed: int = 0
) -> Timeline:
    """Returns the timeline of gradients averaged over all workers, who wait for one another."""
    mean = equal_part_seconds(cluster, batch_size)
    if cluster.split == "proportional":
        mean = compute_means(cluster, 1, batch_size).reshape(mean.shape)
    seconds = synchronous_seconds(cluster, service_draws(cluster, steps, seed) * mean, update_bytes)
    return from_arrivals(np.zeros(steps, np.int32), np.cumsum(seconds), 1)


def synchronous_seconds(cluster: Cluster, compute: np.ndarray, update_bytes: int) -> np.ndarray:
    """Returns the seconds of updates, (steps,), from those of devices, (steps, nodes, devices)."""
    ready, done = ready_and_done(cluster, compute, update_bytes)
    transfer = between_nodes(cluster, update_bytes)
    return barrier_seconds(ready, done, transfer, broadcast(cluster, update_bytes))


def barrier_seconds(
    ready: np.ndarray, done: np.ndarray, transfer: float, broadcast_seconds: float
) -> np.ndarray:
    """Returns the seconds of updates, (steps,), after each of which all nodes wait for all."""
    return np.maximum(done.max(axis=1), ready.max(axis=1) + transfer) + broadcast_seconds


def node_seconds(
    cluster: Cluster, steps: int, batch_size: int, update_bytes: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `ready` and `done` of `LocalTimes`, (steps, nodes), where a node averages a gradient.

    The averaging may run behind the last fraction `overlap` of the computing, and the exchange
    between nodes follows it, layer by layer.
    """
    compute = service_draws(cluster, steps, seed) * equal_part_seconds(cluster, batch_size)
    return ready_and_done(cluster, compute, update_bytes)


def equal_part_seconds(cluster: Cluster, batch_size: int) -> np.ndarray:
    """Returns the mean seconds of devices for equal parts of a batch, (nodes, devices a node)."""
    shape = (cluster.nodes, cluster.devices_per_node)
    speeds = np.asarray(cluster.speeds or np.ones(shape), np.float64).reshape(shape)
    return cluster.seconds_per_example * batch_size / speeds.size / speeds


def compute_means(cluster: Cluster, groups: int, batch_size: int) -> np.ndarray:
    """Returns each worker's mean seconds for its share of an update, (groups, k).

    By `cluster.split` shares are equal, batch_size / k, or in proportion to the speeds of the
    group, in whole examples (a batch over devices by their FLOPS, arXiv 1606.04487).
    """
    workers = cluster.worker_count
    speeds = np.asarray(cluster.speeds or np.ones(workers), np.float64).reshape(groups, -1)
    if cluster.split == "proportional":
        share = np.stack([divide_batch(group, batch_size) for group in speeds])
    else:
        share = np.full(speeds.shape, batch_size / speeds.shape[1])
    return cluster.seconds_per_example * share / speeds


def service_draws(cluster: Cluster, steps: int, seed: int) -> np.ndarray:
    """Returns draws of unit mean from the law `service`, (steps, nodes, devices a node)."""
    shape = (steps, cluster.nodes, cluster.devices_per_node)
    return cluster.service.draw(seeds.generator(seed, "arrivals"), shape)


def ready_and_done(
    cluster: Cluster, compute: np.ndarray, update_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `ready` and `done` from the seconds of devices, (steps, nodes, devices a node)."""
    averaging = inside_node(cluster, cluster.devices_per_node, update_bytes)
    slowest = compute.max(axis=2)
    ready = slowest * (1 - cluster.overlap) + averaging
    return ready, np.maximum(slowest, ready)


class AllReduce(NamedTuple):
    """A sum over all nodes, on one link between them.

    It leaves when the last present node is ready and the message before has arrived. It arrives no
    sooner than that node has ended its update, as its last layer leaves last.
    """

    legs: Sequence[np.ndarray]  # (steps, ..., fragments) seconds of its parts, one after the other
    broadcast_seconds: float = 0.0  # to all devices, while nodes go on and the link is busy

    def send(
        self, t: int, q: int, ready: Nodes, now: Nodes, present: Nodes, free: Nodes
    ) -> tuple[Nodes, Nodes]:
        """Returns when fragment q arrives and when the link is free again, (..., nodes) each.

        Nodes are ready at the seconds `ready` and end the update at `now`; the link is `free` since
        then.
        """
        leaves = np.maximum(ready.max(-1, keepdims=True, where=present, initial=0.0), free)
        for leg in self.legs:
            leaves = leaves + leg[t][..., q, None]
        last = now.max(-1, keepdims=True, where=present, initial=0.0)
        arrival = np.maximum(leaves, last) + self.broadcast_seconds
        return arrival, arrival


class Peers:
    """Messages to neighbours, which a node sends one after the other, each over its own link.

    `to`, (T, nodes, k), are T sets of receivers, of which update t uses the number `schedule[t]`.
    With `early` a node sends what it had before its update, so that messages travel beside the
    computing. An absent node sends nothing, and its messages go to another
    (`availability.reroute`).
    """

    def __init__(self, to: np.ndarray, schedule: np.ndarray, links: Links, early: bool = False):
        self.to, self.schedule, self.links, self.early = to, schedule, links, early
        self._nodes = np.arange(to.shape[1])[:, None]
        self._sent, self._travel = to != self._nodes, self._travel_seconds(to)

    def _travel_seconds(self, to: np.ndarray) -> np.ndarray:
        return np.where(to == self._nodes, 0.0, self.links(self._nodes, to)).cumsum(axis=-1)

    def send(
        self, t: int, q: int, ready: Nodes, now: Nodes, present: Nodes, free: Nodes
    ) -> tuple[Nodes, Nodes]:
        """Returns when a node has all messages to it, and when it may send again, (nodes,) each."""
        row = self.schedule[t]
        to, sent, travel = self.to[row], self._sent[row], self._travel[row]
        if not present.all():
            to = reroute(to, present)
            sent, travel = to != self._nodes, self._travel_seconds(to)
        leaves = np.maximum(free, ready)
        arrives = leaves[:, None] + travel
        if not self.early:  # the last layer leaves last
            arrives = np.maximum(arrives, now[:, None])
        arrival = now.copy()
        np.maximum.at(arrival, to[sent], arrives[sent])
        return arrival, np.where(present, leaves + travel[:, -1], free)


class MeetingTimes(NamedTuple):
    seconds: np.ndarray  # (steps, ...) at which updates commit
    present: np.ndarray  # (steps, nodes) bool


def meeting_seconds(
    meeting: Meeting,
    local: LocalTimes,
    exchange: AllReduce | Peers,
    broadcast_seconds: ArrayLike = 0.0,
    load: Load | None = None,
    presence: Presence | None = None,
) -> MeetingTimes:
    """Returns the seconds at which updates commit, of nodes that go on until they receive.

    The clock of each node makes, at update t,

        now   <- now + load(now) done_t                        its update
        arrival_q = the exchange's, if fragment q is sent      from now + load(now) ready_t on
        now   <- max(now, arrival of what is received) + broadcast

    A fragment received with `waited` = 0 is what was just sent, else the message before that.
    Broadcasts take `broadcast_seconds` a fragment. Arrays are (steps, fragments) of the meeting and
    (steps, nodes) of `local`; axes between these two are of runs side by side. Updates commit as in
    `commit_times`.

    Where nodes leave and all meet (`AllReduce`), a meeting is of the nodes that were there since
    the one before; all who are there when it ends go on from its result. If all were lost, the
    first node that comes back for long enough repeats the updates since the last meeting. Over a
    graph (`Peers`) a node that leaves before the end of its update takes no part in it, and its
    clock stands still; it is back in the first update that all present nodes begin after it has
    fetched the parameters of the next present node. Raises `TimelineError` where no node stays for
    long enough.
    """
    ready, done, (steps, *_, fragments) = local.ready, local.done, np.shape(meeting.send)
    send, receive = np.asarray(meeting.send), np.asarray(meeting.receive)
    sent_now, received_now = _fragments(send), _fragments(receive)
    is_new = np.asarray(meeting.waited == 0)
    broadcasts = np.where(receive, broadcast_seconds, 0.0).sum(axis=-1, keepdims=True)
    at_meetings = presence if isinstance(exchange, AllReduce) else None
    early = isinstance(exchange, Peers) and exchange.early
    now, present = np.zeros(done.shape[1:]), np.ones(done.shape[-1], bool)
    free, arrival = np.zeros_like(now), [np.zeros_like(now)] * fragments
    since, ends = 0.0, list[np.ndarray]()  # the end of the last meeting, and of updates since then
    seconds, took_part = np.zeros(done[:steps].shape[:-1]), np.ones((steps, len(present)), bool)
    for t in range(steps):
        if presence and isinstance(exchange, Peers):
            present = still_present(present, now, done[t], exchange.links, load, presence)
        start, factor = now, load(now) if load else 1.0
        ready_at, now = start + ready[t] * factor, start + done[t] * factor
        if at_meetings:
            present = present & (now < at_meetings.left)
            if sent_now[t] and not present.any():
                node, restart = at_meetings.first_to_stay(now - since)
                late = restart - since
                seconds[t - len(ends) : t] = [end[node] + late for end in ends]
                present[node], ready_at, now = True, ready_at + late, now + late
            ends.append(now)
        took_part[t], before = present, list(arrival)
        for q in sent_now[t]:
            arrives, busy = exchange.send(t, q, start if early else ready_at, now, present, free)
            sent = send[t, ..., q, None]
            arrival[q], free = np.where(sent, arrives, arrival[q]), np.where(sent, busy, free)
        if received_now[t]:
            latest = np.zeros_like(now)
            for q in received_now[t]:
                arrives = np.where(is_new[t, ..., q, None], arrival[q], before[q])
                latest = np.where(receive[t, ..., q, None], np.maximum(latest, arrives), latest)
            now = np.maximum(now, latest) + broadcasts[t]
            if at_meetings:
                since = float((latest + broadcasts[t]).max())
                now, present, ends = np.full_like(now, since), at_meetings.at(since), []
        if presence and not at_meetings:
            now = np.where(present, now, start)
        seconds[t] = now.max(axis=-1, where=present, initial=since)
    return MeetingTimes(commit_times(seconds), took_part)


def _fragments(flags: np.ndarray) -> list[list[int]]:
    """Returns the fragments that are flagged at each step, in any of the runs side by side."""
    rows = np.any(flags.reshape(len(flags), -1, flags.shape[-1]), axis=1)
    return [[q for q, flag in enumerate(row) if flag] for row in rows.tolist()]


def meetings_timeline(plan: NodesPlan, local: LocalTimes, seconds: np.ndarray) -> Timeline:
    """Returns the timeline of nodes with that plan, whose `inner` becomes that of `local`."""
    steps = len(seconds)
    none, staleness = np.zeros(steps, np.int32), local.staleness
    if staleness is None:
        waited = np.asarray(getattr(plan, "waited", none))
        staleness = waited.reshape(steps, -1).max(axis=1)
    plan = plan._replace(inner=entries_at(local.plan, slice(steps)))
    return Timeline(none, staleness[:steps], seconds, local.slots, plan)
