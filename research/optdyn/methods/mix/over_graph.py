"""Nodes that meet now and then with their neighbours in a graph: NoLoCo, and all of its kind.

    D_i     = theta_i - sum_j W_ij x_j        every H updates; W: as in `gossip`, one row a node
    theta_i <- theta_i - outer(D_i)           any outer optimizer, one of each node
    x_i     <- theta_i

It is what `diloco+gossip` says: the rule of `outer.py`, whose mean is over the neighbours and not
over all. NoLoCo (arXiv 2506.10911) has pairs that are drawn at every meeting (graph `random`) and
heavy ball, `slowmo+gossip`: m <- mu m + eta mean(x_j - theta_j) + eta (mean(theta_j) - theta_i) is
mu m - eta D_i, as its two means are over the same pair. On `complete` it is the method that meets.

A node waits for those that send to it, and for nobody else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from optdyn.base import seeds
from optdyn.base.errors import Join, one_of_these
from optdyn.clock import graphs, habits
from optdyn.clock.base import Meeting, Timeline, undelayed
from optdyn.clock.network import broadcast, links
from optdyn.clock.nodes import Within, of_meetings
from optdyn.core import Rule
from optdyn.methods.method import ClockInputs, Methods, Mixes
from optdyn.methods.mix import nodes
from optdyn.methods.mix.averaging_clock import turns
from optdyn.methods.mix.model_averaging import ModelAveraging
from optdyn.methods.setup import Setup

COMPRESSED = ("compression", "compression_bits")


@dataclass(frozen=True)
class OverGraph(Mixes):
    """A method whose nodes meet, over a graph; made of two methods that are joined."""

    meets: ModelAveraging
    graph: str

    info = ("sent_bytes",)

    @property
    def cycle(self) -> int:
        return self.meets.cycle

    def mix(self, inner: Rule, senders: str | None = None) -> Rule:
        return self.meets.mix(inner, senders)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        of = self.meets
        meeting = turns(setting.setup.steps, of.period, 1, of.delay, of.synchronous_updates)
        return of.with_numbers(clock(self.graph, meeting, setting, methods))

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from all_is_sent(self.meets, ("fragments", "inner_state"), methods)
        yield from all_is_sent(self.meets, COMPRESSED, methods)
        said = f"must be 0 with config.method.name = {methods.name!r}"
        yield Join("cluster.presence", setup.cluster.presence, said)
        yield from joins(self.graph, methods)

    def why_no_overlap(self) -> str:
        return "exchanges otherwise than by sums"


def clock(graph: str, meeting: Meeting, setting: ClockInputs, methods: Methods) -> Timeline:
    """Meeting n is on turn n of the graph, so that peers take turns whatever the period is."""
    setup, held = setting.setup, setting.held
    within = nodes.inside(setting, methods)(setup.steps)
    count = meeting.send[:, 0].cumsum()
    rng = seeds.generator(setup.seed, "graph")
    to = graphs.graph(graph, setup.cluster.nodes, int(count[-1]), rng)
    meeting = meeting._replace(to=to[(count - 1).clip(0) % len(to)])
    seconds = held.seconds if held else _seconds(setting, within, meeting)
    return of_meetings(meeting, within, seconds)


def joins(graph: str, methods: Methods) -> Iterator[Join]:
    """There is such a graph, whose nodes know for whom to wait."""
    key = methods.key("graph")
    said = f"must be {one_of_these(graph, graphs.GRAPHS)}"
    yield Join(key, graph not in graphs.GRAPHS, said)
    said = f"must be another with config.method.name = {methods.name!r}, as nobody knows how many "
    yield Join(key, graph == "push", f"{said}send to a node")


def all_is_sent(of: Mixes, keys: Sequence[str], methods: Methods) -> Iterator[Join]:
    """No key of a method that is joined makes nodes send less than they have."""
    (section,) = (name for name, method in methods.by_section.items() if method is of)
    for key in keys:
        usual = getattr(ModelAveraging(), key)
        said = f"must be {usual!r} with config.method.name = {methods.name!r}, whose nodes send "
        said += "all that they have, to neighbours"
        yield Join(f"method.{section}.{key}", getattr(of, key) != usual, said)


def _seconds(setting: ClockInputs, within: Within, meeting: Meeting) -> np.ndarray:
    """(steps,) at which the last node is done with each update.

    A node sends its messages one after the other, from when the first layers' gradients are there.
    """
    cluster, size = setting.setup.cluster, setting.update_bytes
    between, handed_on = links(cluster, size), broadcast(cluster, size)
    every, load = np.arange(cluster.nodes)[:, None], habits.load(cluster)
    now, free, arrival = np.zeros((3, cluster.nodes))
    seconds = np.zeros(len(meeting.send))
    for t, to in enumerate(np.asarray(meeting.to)):
        send, receive = meeting.send[t], meeting.receive[t]
        factor = load(now) if load else 1.0
        first, now = now + within.ready[t] * factor, now + within.done[t] * factor
        if send.any():
            leave, sent = np.maximum(first, free), to != every
            took = np.where(sent, between(every, to), 0.0).cumsum(axis=1)
            free, arrival = leave + took[:, -1], now.copy()
            # Its last layer leaves last.
            np.maximum.at(arrival, to[sent], np.maximum(leave[:, None] + took, now[:, None])[sent])
        if receive.any():
            now = np.maximum(now, arrival) + handed_on
        seconds[t] = now.max()
    return undelayed(seconds)
