"""Nodes that exchange with their neighbours in a graph, and with nobody else.

    ring          node j sends to j + 1 and j - 1
    exponential   to j + 1, j + 2, j + 4, ...
    one_peer      to one of these, in turns
    complete      to all
    random        pairs exchange, drawn anew at every update (of an odd number one is left alone)
    push          to one node, drawn anew at every update, whoever else sends to that

Nodes are numbered around a circle. A node divides what it has into equal parts, one for itself and
one for each message, P_ij = 1/k if j sends to i, of k messages with the one to itself; so the
columns of P sum to 1. In all graphs but `push` the rows do, too, and P is called W. A node waits
for those that send to it, and for nobody else.
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
from optdyn.clock.meetings import Peers, meeting_seconds, meetings_timeline
from optdyn.clock.network import broadcast, link_seconds
from optdyn.clock.timeline import Meeting, Timeline
from optdyn.clock.trace import RecordedTrace
from optdyn.core import Batch, Event, Info, Params, Rule, State
from optdyn.methods import nodes
from optdyn.methods.averaging import (
    ALWAYS_THERE,
    DiLoCo,
    ModelAveraging,
    meeting_schedule,
    outer_numbers,
)
from optdyn.methods.messages import (
    SIMULATED,
    Collectives,
    Compression,
    add_sent_bytes,
    event_of_node,
    sent_to_others,
    size,
)
from optdyn.methods.method import (
    ABOVE_0,
    ClockInputs,
    Compressed,
    MethodStack,
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
    itself = np.arange(nodes)
    if name == "random":
        order = rng.permuted(np.tile(itself, (steps, 1)), axis=1)
        one, other = order[:, : nodes // 2], order[:, nodes - nodes // 2 :]
        to = np.tile(itself, (steps, 1))
        np.put_along_axis(to, one, other, 1)
        np.put_along_axis(to, other, one, 1)
    elif name == "push":
        to = (itself + rng.integers(1, max(nodes, 2), (steps, nodes))) % nodes
    else:
        to = (itself[:, None] + np.array(_shifts(name, nodes))[:, None]) % nodes
        return to.astype(np.int32)
    return np.stack([np.broadcast_to(itself, to.shape), to], axis=-1, dtype=np.int32)


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
    period = 1 if name in RANDOM_GRAPHS else len(_shifts(name, nodes))
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


class ChocoState(NamedTuple):
    inner: Tree  # of this node
    known: Params  # y_i
    heard: Params  # sum_j W_ij y_j
    kept: Tree  # the compression's

    @property
    def params(self) -> Params:
        """x_i."""
        return self.inner.params


def choco(
    inner: Rule, compression: Compression, collectives: Collectives = SIMULATED
) -> Rule[ChocoState]:
    """Compressed gossip, CHOCO-SGD (Koloskova, Stich and Jaggi, arXiv 1902.00340).

        x_i  <- x_i - gamma g_i(x_i)
        q_i  = C(x_i - y_i)                       what the neighbours do not know yet of x_i
        y_i  <- y_i + q_i                         what all neighbours of node i, and itself, know
        x_i  <- x_i + c sum_j W_ij (y_j - y_i)    c: the consensus rate

    A node keeps y_i and the sum of W_ij y_j, into which come the messages alone; so W is one for
    all updates. All begin with y_i = x_0, which all have. With nothing left out y_i = x_i, and with
    c = 1 it is gossip that adapts and then combines. -gamma g stands for whatever a node's own
    update does. It is the rule of one device over the axis `node`; `event.plan` is `Neighbours`
    with a rate.
    """

    def init(params: Params) -> ChocoState:
        return ChocoState(inner.init(params), params, params, compression.init(params))

    def step(state: ChocoState, event: Event, batch: Batch) -> tuple[ChocoState, Info]:
        to, rate = event.plan.to, event.plan.rate
        after, info = inner.step(state.inner, event_of_node(event), batch)
        x = after.params
        gap = jax.tree.map(jnp.subtract, x, state.known)
        mean, message, kept = compression.apply(collectives.among(to), gap, state.kept)
        known = jax.tree.map(jnp.add, state.known, message)
        heard = jax.tree.map(jnp.add, state.heard, mean)
        x = jax.tree.map(lambda x, h, y: x + rate.astype(x.dtype) * (h - y), x, heard, known)
        sent = sum(compression.messages(x)) * sent_to_others(to)
        return ChocoState(after.moved_to(x), known, heard, kept), add_sent_bytes(info, sent)

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
    rate: Array | None = None  # float32, c of compressed gossip


def gossip(inner: Rule, order: str, collectives: Collectives = SIMULATED) -> Rule:
    """The rule of one device over the axis `node`, around what a node does by itself.

    `event.plan` is `Neighbours`, the same on all nodes but for what is `inner` there. With its
    `senders` a node takes the mean of their messages, and no row of P has an entry for every node;
    sums are in another order. With its `stand` who is away makes no update, and has after it what
    another has.
    """
    gather = collectives.gather

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        i, c, before = lax.axis_index("node"), event.plan, state.params
        after, info = inner.step(state, event_of_node(event), batch)
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
                lambda z, rows: product(rows[others]).astype(z.dtype), tree, gather(tree)
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
            z = jax.tree.map(lambda rows: rows[c.stand[i]], gather(z))
        return after.moved_to(z), add_sent_bytes(info, bytes_of(z) * sent_to_others(c.to))

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
    (`choco`).
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

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        if small := self.compressed():
            return choco(inner, small, collectives)
        return gossip(inner, self.gossip_order, collectives)

    def message_bytes(self, params: Params, whole: float) -> float:
        """Bytes of a message, of `whole` bytes of parameters."""
        small = self.compressed()
        return whole * small.part(params) if small else whole

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Nodes wait for what is sent to them, and for nobody else (`meeting_seconds`)."""
        setup, size = inputs.setup, inputs.update_bytes
        cluster, steps, small = setup.cluster, setup.steps, self.compressed()
        local = nodes.inside(inputs, methods)(steps)
        rng = seeds.generator(setup.seed, "graph")
        to = graph_peers(self.graph, cluster.nodes, steps, rng)
        sent = self.message_bytes(inputs.model.params, size) if small else float(size)
        turns, early = np.arange(steps) % len(to), self.gossip_order == "combine"
        exchange = Peers(to, turns, link_seconds(cluster, sent), early)
        always = np.ones((steps, 1), bool)
        meeting, handed_on = Meeting(always, always, ~always), broadcast(cluster, size)
        habits = (
            availability.cluster_load(cluster),
            availability.cluster_presence(cluster, setup.seed),
        )
        seconds, here = meeting_seconds(meeting, local, exchange, handed_on, *habits)
        w = push_weights(to, steps) if self.graph == "push" else np.ones((steps, cluster.nodes))
        plan = Neighbours(
            each_update(to, steps),
            w.astype(np.float32),
            senders=each_update(senders_of(to), steps) if cluster.nodes > ROWS else None,
            rate=np.full(steps, self.consensus_rate, np.float32) if small else None,
        )
        if cluster.presence:
            plan = self._among(plan, here)
        return meetings_timeline(plan, local, seconds)

    def with_recorded(self, line: Timeline, trace: RecordedTrace, setup: Setup) -> Timeline:
        """The timeline among those who were there in the run that a trace holds."""
        if not setup.cluster.presence:
            return line
        here = availability.recorded_presence(trace, setup.cluster.nodes)
        return line._replace(plan=self._among(line.plan, here))

    def _among(self, plan: Neighbours, here: np.ndarray) -> Neighbours:
        """The plan among those that are `here`, (steps, nodes); for others the next one stands."""
        to = availability.reroute_updates(np.asarray(plan.to), here)
        w = push_weights(to, len(to)) if self.graph == "push" else plan.weight
        return plan._replace(
            to=to,
            weight=w.astype(np.float32),
            senders=None if plan.senders is None else senders_of(to),
            stand=availability.stand_ins(here),
        )

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
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


COMPRESSED = ("compression", "compression_bits")


@dataclass(frozen=True)
class OverGraph(Mixes):
    """Nodes that meet now and then, with their neighbours in a graph: NoLoCo, and all of its kind.

        D_i     = theta_i - sum_j W_ij x_j        every H updates; W: one row a node
        theta_i <- theta_i - outer(D_i)           any outer optimizer, one of each node
        x_i     <- theta_i

    It is what `diloco+gossip` says: the rule of `averaging.py`, whose mean is over the neighbours
    and not over all. NoLoCo (arXiv 2506.10911) has pairs that are drawn at every meeting (graph
    `random`) and heavy ball, `slowmo+gossip`: m <- mu m + eta mean(x_j - theta_j) + eta
    (mean(theta_j) - theta_i) is mu m - eta D_i, as its two means are over the same pair. On
    `complete` it is the method that meets.
    """

    meets: ModelAveraging
    graph: str

    info = ("sent_bytes",)

    @property
    def cycle(self) -> int:
        return self.meets.cycle

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        return self.meets.mix(inner, collectives)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        meeting = self.meets.schedule(inputs)
        return graph_clock(self.graph, meeting, inputs, methods)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from all_is_sent(self.meets, ("fragments", "inner_state", *COMPRESSED), methods)
        said = f"must be 0 with config.method.name = {methods.name!r}"
        yield Join("cluster.presence", setup.cluster.presence, said)
        yield from graph_joins(self.graph, methods)

    def why_no_overlap(self) -> str:
        return "exchanges otherwise than by sums"


def graph_clock(
    graph: str, meeting: Meeting, inputs: ClockInputs, methods: MethodStack
) -> Timeline:
    """The timeline of nodes that wait for their neighbours' messages, and for nobody else.

    Meeting n is on turn n of the graph, so that peers take turns whatever the period is. A node
    sends from when the first layers' gradients are there.
    """
    setup, cluster, size = inputs.setup, inputs.setup.cluster, inputs.update_bytes
    local = nodes.inside(inputs, methods)(setup.steps)
    count = np.asarray(meeting.send)[:, 0].cumsum()
    to = graph_peers(graph, cluster.nodes, int(count[-1]), seeds.generator(setup.seed, "graph"))
    turns = (count - 1).clip(0) % len(to)
    exchange, handed_on = Peers(to, turns, link_seconds(cluster, size)), broadcast(cluster, size)
    load = availability.cluster_load(cluster)
    seconds, _ = meeting_seconds(meeting, local, exchange, handed_on, load)
    return meetings_timeline(meeting._replace(to=to[turns]), local, seconds)


def graph_joins(graph: str, methods: MethodStack) -> Iterator[Join]:
    """There is such a graph, whose nodes know for whom to wait."""
    key = methods.key("graph")
    said = f"must be {one_of_these(graph, GRAPHS)}"
    yield Join(key, graph not in GRAPHS, said)
    said = f"must be another with config.method.name = {methods.name!r}, as nobody knows how many "
    yield Join(key, graph == "push", f"{said}send to a node")


def all_is_sent(joined: Mixes, keys: Sequence[str], methods: MethodStack) -> Iterator[Join]:
    """No key of a method that is joined makes nodes send less than they have."""
    (section,) = (name for name, method in methods.by_section.items() if method is joined)
    for key in keys:
        default = getattr(ModelAveraging(), key)
        said = f"must be {default!r} with config.method.name = {methods.name!r}, whose nodes send "
        said += "all that they have, to neighbours"
        yield Join(f"method.{section}.{key}", getattr(joined, key) != default, said)


class GASLoCState(NamedTuple):
    inner: Tree  # of this node, at x
    theta: Params  # of this node, where it was after the last meeting
    y: Params  # of this node, at the last meeting

    @property
    def params(self) -> Params:
        """x."""
        return self.inner.params


def gasloc(inner: Rule, collectives: Collectives = SIMULATED) -> Rule[GASLoCState]:
    """The rule of one device over the axis `node`; `event.plan` is a `Meeting` over a graph."""

    def init(params: Params) -> GASLoCState:
        return GASLoCState(inner.init(params), params, params)

    def step(state: GASLoCState, event: Event, batch: Batch) -> tuple[GASLoCState, Info]:
        after, info = inner.step(state.inner, event_of_node(event), batch)
        plan = event.plan
        eta, gamma = (plan.outer[key] for key in ("outer_learning_rate", "outer_momentum"))

        def local(theta: jax.Array, x: jax.Array) -> jax.Array:
            return theta + eta.astype(x.dtype) * (x - theta)

        def momentum(heard: jax.Array, y: jax.Array, before: jax.Array) -> jax.Array:
            return heard + gamma.astype(y.dtype) * (y - before)

        def met(x: Params, theta: Params, before: Params) -> tuple[Params, Params, Params]:
            y = jax.tree.map(local, theta, x)
            heard = collectives.among(plan.to).mean(y)  # W y
            theta = jax.tree.map(momentum, heard, y, before)
            return theta, theta, y

        before = after.params, state.theta, state.y
        x, theta, y = lax.cond(plan.send.all(), met, lambda *before: before, *before)
        sent = jnp.where(plan.send.all(), size(y) * sent_to_others(plan.to), 0.0)
        return GASLoCState(after.moved_to(x), theta, y), add_sent_bytes(info, sent)

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

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        return gasloc(inner, collectives)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """A node waits for its neighbours' y, and for nobody else."""
        steps = inputs.setup.steps
        numbers = outer_numbers(self, DiLoCo.mean, steps)
        meeting = meeting_schedule(steps, self.period, 1, 0)._replace(outer=numbers)
        return graph_clock(self.graph, meeting, inputs, methods)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
        yield from graph_joins(self.graph, methods)

    def report(self, setup: Setup, network: ModelInfo) -> Mapping[str, object]:
        return graph_report(self.graph, setup.cluster.nodes)
