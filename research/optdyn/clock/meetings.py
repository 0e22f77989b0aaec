"""Seconds of nodes that compute by themselves and meet: the one recurrence of all such clocks.

Every device takes its part of the batch. The devices of a node then add up their gradients over the
node's own links; an exchange between nodes is by one device of each, which hands the sum on to the
others. An exchange takes what the network makes of it, whoever is slow in computing.

`meeting_seconds` is the clock of nodes that run apart until they receive: model averaging and its
kin, DASO and eager updates, whose messages are sums over all nodes (`AllReduce`), and gossip and
all that meet over a graph, whose messages go to neighbours (`Peers`). `barrier_seconds` is that of
nodes that wait for one another after every update.
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
    """What nodes do by themselves, and how long it takes them."""

    ready: np.ndarray  # (steps, nodes) seconds of an update until its exchange may start
    done: np.ndarray  # (steps, nodes) seconds of an update until its end
    plan: Plan = ()  # what is decided for each node, (steps, nodes, ...)
    staleness: np.ndarray | None = None  # (steps, nodes, ...), if there is any inside
    slots: int = 1  # that the choice addresses


LocalClock = Callable[[int], LocalTimes]  # of so many steps
NodesPlan = Any  # a NamedTuple with what is decided for each node as its `inner`


def synchronous(
    cluster: Cluster, *, steps: int, batch_size: int, update_bytes: int, seed: int = 0
) -> Timeline:
    """Every gradient is averaged over all workers, who wait for one another.

    So it is model averaging after every update, at the same seconds.
    """
    mean = equal_part_seconds(cluster, batch_size)
    if cluster.split == "proportional":
        mean = compute_means(cluster, 1, batch_size).reshape(mean.shape)
    ends = synchronous_seconds(cluster, service_draws(cluster, steps, seed) * mean, update_bytes)
    return from_arrivals(np.zeros(steps, np.int32), np.cumsum(ends), 1)


def synchronous_seconds(cluster: Cluster, compute: np.ndarray, update_bytes: int) -> np.ndarray:
    """(steps,) seconds of updates by all, from those that every device computes.

    `compute`, (steps, nodes, devices a node). All wait for the slowest.
    """
    ready, done = ready_and_done(cluster, compute, update_bytes)
    transfer = between_nodes(cluster, update_bytes)
    return barrier_seconds(ready, done, transfer, broadcast(cluster, update_bytes))


def barrier_seconds(
    ready: np.ndarray, done: np.ndarray, transfer: float, handed_on: float
) -> np.ndarray:
    """(steps,) seconds of updates after each of which all wait for the last and for its exchange.

    `ready` and `done` are those of `LocalTimes`; the exchange takes `transfer` seconds, from when
    the last node is ready, and is then handed on inside the nodes.
    """
    return np.maximum(done.max(axis=1), ready.max(axis=1) + transfer) + handed_on


def node_seconds(
    cluster: Cluster, steps: int, batch_size: int, update_bytes: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(steps, nodes) seconds from the batch to when an exchange between nodes may start, and to the
    gradient averaged over the devices of the node.

    Every device takes an equal part of the batch. The averaging may run behind the last fraction
    `overlap` of the computing, and the exchange between nodes follows it, layer by layer: it may
    start that much before the gradient is there. Longer runs begin with the shorter ones.
    """
    compute = service_draws(cluster, steps, seed) * equal_part_seconds(cluster, batch_size)
    return ready_and_done(cluster, compute, update_bytes)


def equal_part_seconds(cluster: Cluster, batch_size: int) -> np.ndarray:
    """(nodes, devices a node) mean seconds that each device computes for an equal part."""
    shape = (cluster.nodes, cluster.devices_per_node)
    speeds = np.asarray(cluster.speeds or np.ones(shape), np.float64).reshape(shape)
    return cluster.seconds_per_example * batch_size / speeds.size / speeds


def compute_means(cluster: Cluster, groups: int, batch_size: int) -> np.ndarray:
    """(groups, k) mean seconds each worker computes for its share of an update.

    By `cluster.split` shares are equal parts, batch_size / k, or in proportion to the speeds of the
    group, in whole examples: a batch over devices by their FLOPS (arXiv 1606.04487), so that all of
    a group end together and an update computes for batch_size / (sum of speeds).
    """
    workers = cluster.worker_count
    speeds = np.asarray(cluster.speeds or np.ones(workers), np.float64).reshape(groups, -1)
    if cluster.split == "proportional":
        share = np.stack([divide_batch(group, batch_size) for group in speeds])
    else:
        share = np.full(speeds.shape, batch_size / speeds.shape[1])
    return cluster.seconds_per_example * share / speeds


def service_draws(cluster: Cluster, steps: int, seed: int) -> np.ndarray:
    """(steps, nodes, devices a node) of unit mean, from the law `service`."""
    shape = (steps, cluster.nodes, cluster.devices_per_node)
    return cluster.service.draw(seeds.generator(seed, "arrivals"), shape)


def ready_and_done(
    cluster: Cluster, compute: np.ndarray, update_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """What `node_seconds` returns, from the seconds that every device computes."""
    local = inside_node(cluster, cluster.devices_per_node, update_bytes)
    slowest = compute.max(axis=2)
    ready = slowest * (1 - cluster.overlap) + local
    return ready, np.maximum(slowest, ready)


class AllReduce(NamedTuple):
    """A message that is a sum over all nodes, on one link between them.

    It leaves when the last node that is there has sent it and the message before has arrived. It is
    not there before that node has ended its update, as its last layer leaves last.
    """

    legs: Sequence[np.ndarray]  # (steps, ..., fragments) seconds of its parts, one after the other
    handed_on: float = 0.0  # until it is in all devices, while nodes go on and the link waits

    def send(
        self, t: int, q: int, first: np.ndarray, now: np.ndarray, here: np.ndarray, free: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(..., nodes) when fragment q is there, and when the link is free again."""
        leaves = np.maximum(first.max(-1, keepdims=True, where=here, initial=0.0), free)
        for leg in self.legs:
            leaves = leaves + leg[t][..., q, None]
        last = now.max(-1, keepdims=True, where=here, initial=0.0)
        arrival = np.maximum(leaves, last) + self.handed_on
        return arrival, arrival


class Peers:
    """Messages to neighbours: a node sends one after the other, each over a link of its own.

    `to`, (T, nodes, k), is whom each sends to, and update t has its turn `turns[t]` of these T;
    `links` has the seconds of a message from the one node to the other. With `early` a node sends
    what it had before its update, so that messages travel beside the computing. Who is away sends
    nothing, and what would have been sent to it is passed on (`availability.reroute`).
    """

    def __init__(self, to: np.ndarray, turns: np.ndarray, links: Links, early: bool = False):
        self.to, self.turns, self.links, self.early = to, turns, links, early
        self._nodes = np.arange(to.shape[1])[:, None]
        self._sent, self._travel = to != self._nodes, self._seconds(to)

    def _seconds(self, to: np.ndarray) -> np.ndarray:
        """Until each message is there, from when the first leaves; to itself a node sends none."""
        return np.where(to == self._nodes, 0.0, self.links(self._nodes, to)).cumsum(axis=-1)

    def send(
        self, t: int, q: int, first: np.ndarray, now: np.ndarray, here: np.ndarray, free: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(nodes,) when all that is sent to a node is there, and when it may send again."""
        turn = self.turns[t]
        to, sent, took = self.to[turn], self._sent[turn], self._travel[turn]
        if not here.all():
            to = reroute(to, here)
            sent, took = to != self._nodes, self._seconds(to)
        leaves = np.maximum(free, first)
        there = leaves[:, None] + took
        if not self.early:  # the last layer leaves last
            there = np.maximum(there, now[:, None])
        arrival = now.copy()
        np.maximum.at(arrival, to[sent], there[sent])
        return arrival, np.where(here, leaves + took[:, -1], free)


class MeetingTimes(NamedTuple):
    """When updates end, and who took part."""

    seconds: np.ndarray  # (steps, ...) at which the last node is done and nobody is later
    here: np.ndarray  # (steps, nodes) bool


def meeting_seconds(
    meeting: Meeting,
    local: LocalTimes,
    exchange: AllReduce | Peers,
    handed_on: ArrayLike = 0.0,
    load: Load | None = None,
    presence: Presence | None = None,
) -> MeetingTimes:
    """The seconds of nodes that run apart until they receive.

    The clock of each node makes, at update t,

        now   <- now + load(now) done_t                        its own update
        arrival_q = the exchange's, if fragment q is sent      from now + load(now) ready_t on
        now   <- max(now, arrival of what is received) + handed_on

    A fragment received with `waited` = 0 is what was just sent, else the message before that. All
    that is received together is `handed_on`, seconds of each fragment, inside the nodes. Arrays
    are (steps, fragments) of the meeting and (steps, nodes) of `local`; with axes between these two
    they are of runs side by side, each from second 0. `seconds` is when the last node is done, or
    when a later update is if that is sooner: a straggler that nobody waits for delays none.

    Where nodes come and go and meet all (`AllReduce`), who is there all the time since the meeting
    before has a part in one. Nobody waits for the others; who is there when it ends goes on from
    what was agreed. Where all were lost, the first to be back for long enough does its part again,
    and the updates since the meeting before are those that it then does. Over a graph (`Peers`) who
    leaves before the end of its own update is not in that update, and its clock stands still; it is
    back in the first update that all who are there begin later, when it has fetched what the next
    of them has. Raises `TimelineError` where nobody stays for long enough.
    """
    ready, done, (steps, *_, fragments) = local.ready, local.done, np.shape(meeting.send)
    send, receive = np.asarray(meeting.send), np.asarray(meeting.receive)
    sent_now, received_now = _fragments(send), _fragments(receive)
    is_new = np.asarray(meeting.waited == 0)
    handed = np.where(receive, handed_on, 0.0).sum(axis=-1, keepdims=True)
    at_meetings = presence if isinstance(exchange, AllReduce) else None
    early = isinstance(exchange, Peers) and exchange.early
    now, here = np.zeros(done.shape[1:]), np.ones(done.shape[-1], bool)
    free, arrival = np.zeros_like(now), [np.zeros_like(now)] * fragments
    since, ends = 0.0, list[np.ndarray]()  # the end of the last meeting, and of updates since then
    seconds, who = np.zeros(done[:steps].shape[:-1]), np.ones((steps, len(here)), bool)
    for t in range(steps):
        if presence and isinstance(exchange, Peers):
            here = still_present(here, now, done[t], exchange.links, load, presence)
        start, factor = now, load(now) if load else 1.0
        first, now = start + ready[t] * factor, start + done[t] * factor
        if at_meetings:
            here = here & (now < at_meetings.left)
            if sent_now[t] and not here.any():
                back, again = at_meetings.first_to_stay(now - since)
                late = again - since
                seconds[t - len(ends) : t] = [end[back] + late for end in ends]
                here[back], first, now = True, first + late, now + late
            ends.append(now)
        who[t], before = here, list(arrival)
        for q in sent_now[t]:
            there, busy = exchange.send(t, q, start if early else first, now, here, free)
            sent = send[t, ..., q, None]
            arrival[q], free = np.where(sent, there, arrival[q]), np.where(sent, busy, free)
        if received_now[t]:
            latest = np.zeros_like(now)
            for q in received_now[t]:
                came = np.where(is_new[t, ..., q, None], arrival[q], before[q])
                latest = np.where(receive[t, ..., q, None], np.maximum(latest, came), latest)
            now = np.maximum(now, latest) + handed[t]
            if at_meetings:
                since = float((latest + handed[t]).max())
                now, here, ends = np.full_like(now, since), at_meetings.at(since), []
        if presence and not at_meetings:
            now = np.where(here, now, start)
        seconds[t] = now.max(axis=-1, where=here, initial=since)
    return MeetingTimes(commit_times(seconds), who)


def _fragments(flags: np.ndarray) -> list[list[int]]:
    """Of each step the numbers of the fragments that are flagged in some run."""
    rows = np.any(flags.reshape(len(flags), -1, flags.shape[-1]), axis=1)
    return [[q for q, flag in enumerate(row) if flag] for row in rows.tolist()]


def meetings_timeline(plan: NodesPlan, local: LocalTimes, seconds: np.ndarray) -> Timeline:
    """The timeline of nodes with that plan, and with what is decided inside them, at these seconds.

    Its staleness is that inside the nodes, or else the updates that what they receive has waited.
    """
    known = len(seconds)
    none, staleness = np.zeros(known, np.int32), local.staleness
    if staleness is None:
        waited = np.asarray(getattr(plan, "waited", none))
        staleness = waited.reshape(known, -1).max(axis=1)
    plan = plan._replace(inner=entries_at(local.plan, slice(known)))
    return Timeline(none, staleness[:known], seconds, local.slots, plan)
