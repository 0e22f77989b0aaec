"""Who sends to whom where nodes gossip, how fast that spreads, and whom a node waits for.

    ring          node j sends to j + 1 and j - 1
    exponential   to j + 1, j + 2, j + 4, ...
    one_peer      to one of these, in turns
    complete      to all
    random        pairs exchange, drawn anew at every update (of an odd number one is left alone)
    push          to one node, drawn anew at every update, whoever else sends to that

A node divides what it has into equal parts, one for itself and one for each message,

    P_ij = 1/k if j sends to i, of k messages with the one to itself

so the columns of P sum to 1. In all graphs but `push` the rows do, too. Nodes are numbered around
a circle.

Nodes that meet now and then with their neighbours in a graph: NoLoCo, and all of its kind.

    D_i     = theta_i - sum_j W_ij x_j        every H updates; W: as in `gossip`, one row a node
    theta_i <- theta_i - outer(D_i)           any outer optimizer, one of each node
    x_i     <- theta_i

It is what `diloco+gossip` says: the rule of `outer.py`, whose mean is over the neighbours and not
over all. NoLoCo (arXiv 2506.10911) has pairs that are drawn at every meeting (graph `random`) and
heavy ball, `slowmo+gossip`: m <- mu m + eta mean(x_j - theta_j) + eta (mean(theta_j) - theta_i) is
mu m - eta D_i, as its two means are over the same pair. On `complete` it is the method that meets.

A node waits for those that send to it, and for nobody else.

CHOCO-SGD (Koloskova, Stich and Jaggi, arXiv 1902.00340): gossip of compressed messages.

    x_i  <- x_i - gamma g_i(x_i)
    q_i  = C(x_i - y_i)                       what the neighbours do not know yet of x_i
    y_i  <- y_i + q_i                         what all neighbours of node i, and itself, know of it
    x_i  <- x_i + c sum_j W_ij (y_j - y_i)    c: the consensus rate

It is `gossip` with a `compression`. A node keeps y_i and the sum of W_ij y_j, into which come the
messages alone; so W is one for all updates. All begin with y_i = x_0, which all have. With nothing
left out y_i = x_i, and with c = 1 it is gossip that adapts and then combines. -gamma g stands for
whatever a node's own update does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from optdyn.base import seeds
from optdyn.base.errors import Join, one_of_these
from optdyn.base.fields import field
from optdyn.base.trees import Array, Plan, Tree, bytes_of
from optdyn.clock import availability
from optdyn.clock.availability import Links, Load, Presence, reroute, still_present
from optdyn.clock.meetings import Within, meetings_timeline
from optdyn.clock.network import broadcast, links
from optdyn.clock.timeline import Meeting, Timeline, undelayed
from optdyn.core import Batch, Event, Info, Params, Rule, State
from optdyn.methods import nodes
from optdyn.methods.averaging import ALWAYS_THERE, ModelAveraging, meeting_schedule
from optdyn.methods.messages import Compression, neighbours, over_nodes, own_event, size, with_sent
from optdyn.methods.method import (
    ABOVE_0,
    ClockInputs,
    Compressed,
    Methods,
    Mixes,
    ModelInfo,
    OnGraph,
    OuterMomentum,
    Periodic,
)
from optdyn.methods.setup import Setup

GRAPHS = ("ring", "exponential", "one_peer", "complete", "random", "push")
RANDOM_GRAPHS = ("random", "push")
CONSTANT_GRAPHS = ("ring", "exponential", "complete")


def graph_peers(name: str, nodes: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """(T, nodes, k) int32: whom each node sends to, itself first, in the order of its messages.

    Update t is row t mod T. T is 1, the period of `one_peer`, or of what is drawn the number of
    `steps`, of which more begin with those of fewer.
    """
    every = np.arange(nodes)
    if name == "random":
        order = rng.permuted(np.tile(every, (steps, 1)), axis=1)
        one, other = order[:, : nodes // 2], order[:, nodes - nodes // 2 :]
        to = np.tile(every, (steps, 1))
        np.put_along_axis(to, one, other, 1)
        np.put_along_axis(to, other, one, 1)
    elif name == "push":
        to = (every + rng.integers(1, max(nodes, 2), (steps, nodes))) % nodes
    else:
        to = (every[:, None] + np.array(_shifts(name, nodes))[:, None]) % nodes
        return to.astype(np.int32)
    return np.stack([np.broadcast_to(every, to.shape), to], axis=-1, dtype=np.int32)


def _shifts(name: str, nodes: int) -> list[list[int]]:
    """How much further on the circle a node sends, of each turn."""
    powers = [2**i for i in range((nodes - 1).bit_length())]
    if name == "one_peer":
        return [[0, shift] for shift in powers] or [[0]]
    once = {"ring": [0, 1, -1], "exponential": [0, *powers], "complete": range(nodes)}[name]
    return [list(dict.fromkeys(shift % nodes for shift in once))]


def each_update(to: np.ndarray, steps: int) -> np.ndarray:
    """(steps, nodes, k), of a graph that stays the same without copies."""
    if len(to) == 1:
        return np.broadcast_to(to, (steps, *to.shape[1:]))
    return to[np.arange(steps) % len(to)]


def senders_of(to: np.ndarray) -> np.ndarray:
    """(T, nodes, k) int32: who sends to each node, of graphs in which all are sent k messages.

    Those are all but `push`.
    """
    order = np.argsort(to.reshape(len(to), -1), axis=1, kind="stable")
    return (order // to.shape[2]).reshape(to.shape).astype(np.int32)


def push_weights(to: np.ndarray, steps: int) -> np.ndarray:
    """(steps, nodes) float64 weights w of push-sum before every update: w_0 = 1, w <- P w."""
    w = np.ones((steps, to.shape[1]))
    for t in range(steps - 1):
        parts = np.broadcast_to(w[t, :, None] / to.shape[2], to.shape[1:])
        w[t + 1] = np.bincount(to[t % len(to)].ravel(), parts.ravel(), to.shape[1])
    return w


def graph_report(name: str, nodes: int) -> dict[str, float]:
    """How fast nodes come to agree: the spectral gap, and the updates that it is of."""
    period = (
        1 if name in RANDOM_GRAPHS else len(graph_peers(name, nodes, 1, np.random.default_rng(0)))
    )
    return {"spectral_gap": spectral_gap(name, nodes), "graph_period": period}


def spectral_gap(name: str, nodes: int) -> float:
    """1 - |Q y| / |y|, at the least over all y of sum 0; Q is the product of a period's P.

    For circulant Q that is 1 - |lambda_2|. Of graphs that are drawn 1 - (E |P y|^2 / |y|^2)^(1/2).
    """
    if nodes == 1:
        return 1.0
    n = float(nodes)
    if name == "random":  # E P'P = E P: pairs take their mean, which is a projection
        square = 1 / 2 if nodes % 2 else (n - 2) / (2 * (n - 1))
        return 1 - square**0.5
    if name == "push":  # 1/2 on the diagonal of E P'P, and elsewhere what is taken off
        return 1 - (1 / 2 - 1 / (2 * (n - 1)) - (n - 2) / (4 * (n - 1) ** 2)) ** 0.5
    sizes = np.ones(nodes)
    for shifts in _shifts(name, nodes):  # the eigenvalues of a circulant are a Fourier transform
        sizes *= np.abs(np.fft.fft(np.bincount(shifts, minlength=nodes) / len(shifts)))
    return float(1 - sizes[1:].max())


class Gossiped(NamedTuple):
    seconds: np.ndarray  # (steps,) at which the last node of an update has its parameters
    to: np.ndarray  # (T, nodes, k) whom each sent to; where nodes come and go T is all steps
    there: np.ndarray  # (steps, nodes) bool, whether a node was in it


def gossip_arrivals(
    to: np.ndarray,
    ready: np.ndarray,
    done: np.ndarray,
    links: Links,
    handed_on: float,
    early: bool,
    load: Load | None = None,
    presence: Presence | None = None,
) -> Gossiped:
    """When every update ends, and among whom it was.

    `ready`, `done`: (steps, nodes) seconds of a
    node's own update until its first message may leave and until its end, times the `load` at the
    second at which it begins; `links`: seconds of a message from the one node to the other. A node
    sends its messages one after the other, and begins the next update when it has its own and those
    that are sent to it, which takes the seconds `handed_on` inside it. With `early` it sends what
    it had before the update, so that messages travel beside the computing.

    Who leaves before the end of its own update is not in it, and `passed_on` is what would have
    been sent to it. Who is back is in the first update that all who are there begin later, when it
    has fetched what the next of them has. Where all have left, the first to be back makes the
    update alone. Raises `TimelineError` where nobody stays for as long as an update takes.
    """
    steps, nodes = ready.shape
    every = np.arange(nodes)
    cost = np.where(to == every[:, None], 0.0, links(every[:, None], to))
    travel = cost.cumsum(axis=2)
    now, free, seconds = np.zeros(nodes), np.zeros(nodes), np.zeros(steps)
    who, here = np.ones((steps, nodes), bool), np.ones(nodes, bool)
    used = np.empty((steps, *to.shape[1:]), np.int32) if presence else to
    for t in range(steps):
        peers, took = to[t % len(to)], travel[t % len(to)]
        if presence:
            here = who[t] = still_present(here, now, done[t], links, load, presence)
            peers = used[t] = reroute(peers, here)
            among = links(every[:, None], peers)
            took = np.where(peers == every[:, None], 0.0, among).cumsum(axis=1)
        factor, before = load(now) if load else 1.0, (now, free)
        leave = np.maximum(free, now if early else now + ready[t] * factor)
        free = leave + took[:, -1]
        now = now + done[t] * factor
        there = leave[:, None] + took
        if not early:  # its last layer leaves last
            there = np.maximum(there, now[:, None])
        sent = peers != every[:, None]
        np.maximum.at(now, peers[sent], there[sent])
        now = now + handed_on
        if presence:
            now, free = (np.where(here, *each) for each in zip((now, free), before, strict=True))
        seconds[t] = now[here].max()
    return Gossiped(undelayed(seconds), used, who)


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
        meeting = meeting_schedule(
            setting.setup.steps, of.period, 1, of.delay, of.synchronous_updates
        )
        return of.with_numbers(graph_clock(self.graph, meeting, setting, methods))

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from all_is_sent(self.meets, ("fragments", "inner_state"), methods)
        yield from all_is_sent(self.meets, COMPRESSED, methods)
        said = f"must be 0 with config.method.name = {methods.name!r}"
        yield Join("cluster.presence", setup.cluster.presence, said)
        yield from graph_joins(self.graph, methods)

    def why_no_overlap(self) -> str:
        return "exchanges otherwise than by sums"


def graph_clock(graph: str, meeting: Meeting, setting: ClockInputs, methods: Methods) -> Timeline:
    """Meeting n is on turn n of the graph, so that peers take turns whatever the period is."""
    setup, held = setting.setup, setting.held
    within = nodes.inside(setting, methods)(setup.steps)
    count = meeting.send[:, 0].cumsum()
    rng = seeds.generator(setup.seed, "graph")
    to = graph_peers(graph, setup.cluster.nodes, int(count[-1]), rng)
    meeting = meeting._replace(to=to[(count - 1).clip(0) % len(to)])
    seconds = held.seconds if held else _graph_seconds(setting, within, meeting)
    return meetings_timeline(meeting, within, seconds)


def graph_joins(graph: str, methods: Methods) -> Iterator[Join]:
    """There is such a graph, whose nodes know for whom to wait."""
    key = methods.key("graph")
    said = f"must be {one_of_these(graph, GRAPHS)}"
    yield Join(key, graph not in GRAPHS, said)
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


def _graph_seconds(setting: ClockInputs, within: Within, meeting: Meeting) -> np.ndarray:
    """(steps,) at which the last node is done with each update.

    A node sends its messages one after the other, from when the first layers' gradients are there.
    """
    cluster, size = setting.setup.cluster, setting.update_bytes
    between, handed_on = links(cluster, size), broadcast(cluster, size)
    every, load = np.arange(cluster.nodes)[:, None], availability.load(cluster)
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


class ChocoState(NamedTuple):
    inner: Tree  # of this node
    known: Params  # y_i
    heard: Params  # sum_j W_ij y_j
    kept: Tree  # the compression's

    @property
    def params(self) -> Params:
        """x_i."""
        return self.inner.params


def choco(inner: Rule, compression: Compression, senders: str | None = None) -> Rule:
    """The rule of one device over the axis `node`; `event.plan` is `Neighbours` with a rate."""

    def init(params: Params) -> ChocoState:
        return ChocoState(inner.init(params), params, params, compression.init(params))

    def step(state: ChocoState, event: Event, batch: Batch) -> tuple[ChocoState, Info]:
        to, rate = event.plan.to, event.plan.rate
        after, info = inner.step(state.inner, own_event(event), batch)
        x, node = after.params, jax.lax.axis_index("node")
        gap = jax.tree.map(jnp.subtract, x, state.known)
        over = neighbours(over_nodes(senders), to)
        mean, own, kept = compression.apply(over, gap, state.kept)
        known = jax.tree.map(jnp.add, state.known, own)
        heard = jax.tree.map(jnp.add, state.heard, mean)
        x = jax.tree.map(lambda x, h, y: x + rate.astype(x.dtype) * (h - y), x, heard, known)
        sent = sum(compression.messages(x)) * (to[node] != node).sum().astype(jnp.float32)
        return ChocoState(after.moved_to(x), known, heard, kept), with_sent(info, sent)

    return Rule(init, step)


ORDERS = ("combine", "adapt")
ROWS = 256  # nodes at most that each hold a whole row of R; of more those that are not 0


class Neighbours(NamedTuple):
    """Among whom an update of gossip is."""

    to: Array  # (nodes, k) int32, whom each sends to
    weight: Array  # (nodes,) float32, w
    inner: Plan = ()  # what is decided for each node, (nodes, ...)
    senders: Array | None = None  # (nodes, k) int32, who sends to each; only of many nodes
    stand: Array | None = None  # (nodes,) int32, itself, or another for one that is away
    rate: Array | None = None  # float32, c of `choco.py`


def gossip(inner: Rule, order: str, senders: str | None = None) -> Rule:
    """The rule of one device over the axis `node`, around what a node does by itself.

    `event.plan` is `Neighbours`, the same on all nodes but for what is `inner` there. With its
    `senders` a node takes the mean of their messages, and no row of P has an entry for every node;
    sums are in another order. With its `stand` who is away makes no update, and has after it what
    another has.
    """
    gather = over_nodes(senders).gather

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        i, c, before = lax.axis_index("node"), event.plan, state.params
        after, info = inner.step(state, own_event(event), batch)
        if c.stand is not None:
            after = jax.tree.map(partial(jnp.where, c.stand[i] == i), after, state)
        if c.senders is not None:
            others = c.senders[i]
            heard = c.weight[others] / c.to.shape[1]  # P_ij w_j of these j
        else:
            others, heard = slice(None), (c.to == i).mean(axis=1) * c.weight
        row = heard / heard.sum()  # R_ij, as w_i' is their sum

        def mixed(tree: Params) -> Params:
            """sum_j R_ij z_j, in float32, which accelerators would cut."""
            product = partial(jnp.tensordot, row, axes=1, precision=lax.Precision.HIGHEST)
            return jax.tree.map(
                lambda z, every: product(every[others]).astype(z.dtype), tree, gather(tree)
            )

        def combined(mean: jax.Array, z: jax.Array, moved: jax.Array) -> jax.Array:
            return mean + (moved - z) / heard.sum().astype(z.dtype)

        def adapted(z: jax.Array, moved: jax.Array) -> jax.Array:
            return moved + (1 / c.weight[i] - 1).astype(z.dtype) * (moved - z)

        if order == "combine":
            z = jax.tree.map(combined, mixed(before), before, after.params)
        else:
            z = mixed(jax.tree.map(adapted, before, after.params))
        if c.stand is not None:
            z = jax.tree.map(lambda every: every[c.stand[i]], gather(z))
        sent = bytes_of(z) * (c.to[i] != i).sum().astype(jnp.float32)
        return after.moved_to(z), with_sent(info, sent)

    return Rule(inner.init, step)


@dataclass(frozen=True)
class Gossip(Mixes, OnGraph, Compressed, name="gossip"):
    """Gossip: nodes exchange parameters with neighbours after every update, and with nobody else.

        combine   x_i <- sum_j W_ij x_j - gamma g_i(x_i)      D-PSGD (Lian et al., arXiv 1705.09056)
        adapt     x_i <- sum_j W_ij (x_j - gamma g_j(x_j))

    The rows and columns of W sum to 1, which keeps the mean over the nodes. Where only the columns
    of P sum to 1, push-sum keeps it (SGP, Assran et al., arXiv 1811.10792): weights w travel along,

        x <- P (x - gamma g(z))      or      x <- P x - gamma g(z)
        w <- P w,  z = x / w

    and gradients are taken at z. With W in place of P w stays 1, so that this one rule is both. The
    timeline knows P, and so w. A node holds z, and with R_ij = P_ij w_j / w_i', whose rows sum to
    1,

        adapt   z_i <- sum_j R_ij (z_j - gamma g_j / w_j)
        combine z_i <- sum_j R_ij z_j - gamma g_i / w_i'        w' = P w

    -gamma g stands for whatever a node's own update does. Compressed messages have another rule
    (`choco.py`).
    """

    gossip_order: str = field(
        "combine",
        "Nodes send what they had before an update, 'combine', or have after it, 'adapt'.",
        one_of=ORDERS,
        static=True,
    )
    consensus_rate: float = field(
        0.5, "c, the step toward neighbours where messages are compressed.", **ABOVE_0
    )

    cluster = ("overlap", "speeds", "latencies", "bandwidths", "regions", "diurnal", "presence")
    info = ("sent_bytes",)

    def mix(self, inner: Rule, senders: str | None = None) -> Rule:
        if small := self.compressed():
            return choco(inner, small, senders)
        return gossip(inner, self.gossip_order, senders)

    def message_bytes(self, params: Params, whole: float) -> float:
        """Bytes of a message, of `whole` bytes of parameters."""
        small = self.compressed()
        return whole * small.part(params) if small else whole

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """Nodes wait for what is sent to them, and for nobody else (`graphs.arrivals`).

        For who is away (`config.cluster.presence`) the next on the circle `stand`s who is there.
        """
        setup, size, name = setting.setup, setting.update_bytes, self.graph
        cluster, steps, small = setup.cluster, setup.steps, self.compressed()
        within = nodes.inside(setting, methods)(steps)
        to = graph_peers(name, cluster.nodes, steps, seeds.generator(setup.seed, "graph"))
        if held := setting.held:
            seconds, there = held.seconds, np.ones((steps, cluster.nodes), bool)
            if cluster.presence:
                there = availability.recorded_presence(held, cluster.nodes)
                to = availability.rerouted(to, there)
        else:
            early, sent = self.gossip_order == "combine", float(size)
            if small:
                sent = self.message_bytes(setting.model.params, size)
            between, handed_on = links(cluster, sent), broadcast(cluster, size)
            habit = availability.load(cluster), availability.presence(cluster, setup.seed)
            ready, done = within.ready, within.done
            seconds, to, there = gossip_arrivals(to, ready, done, between, handed_on, early, *habit)
        w = push_weights(to, steps) if name == "push" else np.ones((steps, cluster.nodes))
        choice = Neighbours(
            each_update(to, steps),
            w.astype(np.float32),
            within.plan,
            each_update(senders_of(to), steps) if cluster.nodes > ROWS else None,
            availability.stand_ins(there) if cluster.presence else None,
            np.full(steps, self.consensus_rate, np.float32) if small else None,
        )
        none = np.zeros(steps, np.int32)
        staleness = none if within.staleness is None else within.staleness
        return Timeline(none, staleness, seconds, within.slots, choice)

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
        said = f"must be {one_of_these(self.graph, GRAPHS)}"
        yield Join("method.graph", self.graph not in GRAPHS, said)
        pushes = self.graph in ("push", "complete")
        said = f"must be at most {ROWS:,} that gossip on {self.graph!r}, where many send to one"
        yield Join("cluster.nodes", setup.cluster.nodes > ROWS and pushes, said)
        if not self.compressed():
            return
        if isinstance(methods.outermost, OverGraph):
            yield from all_is_sent(self, COMPRESSED, methods)
        small = ("", "top_k", "sign")
        said = f"of gossip must be {one_of_these(self.compression, small)}"
        yield Join("method.compression", self.compression not in small, said)
        said = f"of compressed messages must be {one_of_these(self.graph, CONSTANT_GRAPHS)}"
        yield Join("method.graph", self.graph not in CONSTANT_GRAPHS, said)
        said = "must be 'adapt' with config.method.compression, as nodes send what they have then"
        yield Join("method.gossip_order", self.gossip_order != "adapt", said)
        said = "must be 0 with compressed gossip"
        yield Join("cluster.presence", setup.cluster.presence, said)

    def joined(self, other: Mixes) -> Mixes | None:
        """The graph of nodes that meet now and then."""
        if isinstance(other, ModelAveraging) and other.over_graphs:
            return OverGraph(meets=other, graph=self.graph)
        return None

    def report(self, setup: Setup, network: ModelInfo) -> Mapping[str, object]:
        return graph_report(self.graph, setup.cluster.nodes)


class GASLoCState(NamedTuple):
    inner: Tree  # of this node, at x
    theta: Params  # of this node, where it was after the last meeting
    y: Params  # of this node, at the last meeting

    @property
    def params(self) -> Params:
        """x."""
        return self.inner.params


def gasloc(inner: Rule, senders: str | None = None) -> Rule:
    """The rule of one device over the axis `node`; `event.plan` is a `Meeting` over a graph."""

    def init(params: Params) -> GASLoCState:
        return GASLoCState(inner.init(params), params, params)

    def step(state: GASLoCState, event: Event, batch: Batch) -> tuple[GASLoCState, Info]:
        after, info = inner.step(state.inner, own_event(event), batch)
        node, choice = lax.axis_index("node"), event.plan
        eta, gamma = (choice.outer[key] for key in ("outer_learning_rate", "outer_momentum"))

        def local(theta: jax.Array, x: jax.Array) -> jax.Array:
            return theta + eta.astype(x.dtype) * (x - theta)

        def momentum(heard: jax.Array, y: jax.Array, before: jax.Array) -> jax.Array:
            return heard + gamma.astype(y.dtype) * (y - before)

        def met(x: Params, theta: Params, before: Params) -> tuple[Params, Params, Params]:
            y = jax.tree.map(local, theta, x)
            heard = neighbours(over_nodes(senders), choice.to).mean(y)  # W y
            theta = jax.tree.map(momentum, heard, y, before)
            return theta, theta, y

        own = after.params, state.theta, state.y
        x, theta, y = lax.cond(choice.send.all(), met, lambda *own: own, *own)
        peers = (choice.to[node] != node).sum().astype(jnp.float32)
        sent = jnp.where(choice.send.all(), size(y) * peers, 0.0)
        return GASLoCState(after.moved_to(x), theta, y), with_sent(info, sent)

    return Rule(init, step)


@dataclass(frozen=True)
class GASLoC(Mixes, OnGraph, Periodic, OuterMomentum, name="gasloc"):
    """GASLoC (Cagnasso, Belilovsky, Oyallon, arXiv 2606.11081): local updates, gossip and momentum.

        y_i     = theta_i + eta (x_i - theta_i)     every H updates, of which node i has made x_i
        theta_i <- y_i - alpha (Lambda y)_i + gamma (y_i - y_i')
        x_i     <- theta_i                          y': y of the meeting before, at first theta

    Lambda is the Laplacian of the graph, and alpha Lambda = I - W with W as in `gossip`: a node
    sends y to its neighbours, and pairs take their mean. In DiLoCo's terms, D = theta - x and m <-
    gamma m + D, y - y' is -eta m. So the mean over the nodes is DiLoCo's theta on every graph, as
    long as gradients are of one quadratic. A node's momentum has in it what the meeting before has
    done to it, and eta does not scale the pull to the neighbours, as it does in `diloco+gossip`.
    With gamma = 0 and eta = 1 it is `model_averaging+gossip`.

    The equation is that of a catalogue (junaidaliop.github.io/zij); the paper itself was not read.
    """

    cluster = ALWAYS_THERE
    info = ("sent_bytes",)

    @property
    def cycle(self) -> int:
        return self.period

    def mix(self, inner: Rule, senders: str | None = None) -> Rule:
        return gasloc(inner, senders)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """A node waits for its neighbours' y, and for nobody else."""
        steps = setting.setup.steps
        line = graph_clock(self.graph, meeting_schedule(steps, self.period, 1, 0), setting, methods)
        numbers = {key: getattr(self, key) for key in ("outer_learning_rate", "outer_momentum")}
        outer = {key: np.full(steps, value, np.float32) for key, value in numbers.items()}
        return line._replace(plan=line.plan._replace(outer=outer))

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
        yield from graph_joins(self.graph, methods)

    def report(self, setup: Setup, network: ModelInfo) -> Mapping[str, object]:
        return graph_report(self.graph, setup.cluster.nodes)
