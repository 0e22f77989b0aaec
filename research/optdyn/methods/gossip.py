"""Nodes that exchange with their neighbours in a graph only: gossip, CHOCO-SGD, NoLoCo, GASLoC.

    ring          node j sends to j + 1 and j - 1
    exponential   to j + 1, j + 2, j + 4, ...
    one_peer      to one of these, in turns
    complete      to all
    random        pairs exchange, drawn anew at every update (with an odd number one node rests)
    push          to one node, drawn anew at every update, whoever else sends to that

Nodes are numbered around a circle. A node divides what it has into equal parts, one for itself and
one for each message, P_ij = 1/k if j sends to i; so the columns of P sum to 1. In all graphs but
`push` the rows do, too, and P is called W. A node sends its messages one after the other, and
begins the next update when those sent to it are there (`clock.meetings.Peers`).
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
    DiLoCo,
    ModelAveraging,
    meeting_schedule,
    outer_schedule,
)
from optdyn.methods.messages import (
    SIMULATED,
    Collectives,
    Compression,
    add_sent_bytes,
    event_of_node,
    messages_to_others,
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
    """Returns whom each node sends to, itself first and then in order, (T, nodes, k) int32.

    Update t has row t mod T. T is 1, the period of `one_peer`, or `steps` for drawn graphs, of
    which longer ones begin with the shorter.
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
    """Returns, for each update of a period, how much further on the circle a node sends."""
    powers = [2**i for i in range((nodes - 1).bit_length())]
    if name == "one_peer":
        return [[0, shift] for shift in powers] or [[0]]
    once = {"ring": [0, 1, -1], "exponential": [0, *powers], "complete": range(nodes)}[name]
    return [list(dict.fromkeys(shift % nodes for shift in once))]


def over_updates(to: np.ndarray, steps: int) -> np.ndarray:
    """Returns the rows of all updates, (steps, nodes, k), without copies of a constant graph."""
    if len(to) == 1:
        return np.broadcast_to(to, (steps, *to.shape[1:]))
    return to[np.arange(steps) % len(to)]


def senders_of(to: np.ndarray) -> np.ndarray:
    """Returns who sends to each node, (T, nodes, k) int32; not of `push`, where numbers differ."""
    order = np.argsort(to.reshape(len(to), -1), axis=1, kind="stable")
    return (order // to.shape[2]).reshape(to.shape).astype(np.int32)


def push_weights(to: np.ndarray, steps: int) -> np.ndarray:
    """Returns push-sum's weights before each update, (steps, nodes) float64: w_0 = 1, w <- P w."""
    w = np.ones((steps, to.shape[1]))
    for t in range(steps - 1):
        parts = np.broadcast_to(w[t, :, None] / to.shape[2], to.shape[1:])
        w[t + 1] = np.bincount(to[t % len(to)].ravel(), parts.ravel(), to.shape[1])
    return w


def graph_report(name: str, nodes: int) -> dict[str, float]:
    """Returns how fast nodes come to agree: the spectral gap of a period, and its updates."""
    period = 1 if name in RANDOM_GRAPHS else len(_shifts(name, nodes))
    return {"spectral_gap": spectral_gap(name, nodes), "graph_period": period}


def spectral_gap(name: str, nodes: int) -> float:
    """Returns the least 1 - |Q y| / |y| over all y of sum 0; Q is the product of a period's P.

    For circulant Q it is 1 - |lambda_2|; for drawn graphs 1 - (E |P y|^2 / |y|^2)^(1/2).
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
    inner: Tree  # the state of the inner rule
    known: Params  # y_i
    neighbours: Params  # sum_j W_ij y_j
    compression_state: Tree

    @property
    def params(self) -> Params:
        return self.inner.params


def choco(
    inner: Rule, compression: Compression, collectives: Collectives = SIMULATED
) -> Rule[ChocoState]:
    """Returns the rule of compressed gossip, CHOCO-SGD (Koloskova et al., arXiv 1902.00340).

        x_i  <- x_i - gamma g_i(x_i)
        q_i  = C(x_i - y_i)                       what the neighbours do not know yet of x_i
        y_i  <- y_i + q_i                         what node i and its neighbours know of x_i
        x_i  <- x_i + c sum_j W_ij (y_j - y_i)    c: the consensus rate

    -gamma g stands for an update of the `inner` rule. A node adds the messages to sum_j W_ij y_j,
    so W is constant. All begin with y_i = x_0. Uncompressed and with c = 1 it is gossip of order
    'adapt'. `event.plan` is `Neighbours` with a rate.
    """

    def init(params: Params) -> ChocoState:
        return ChocoState(inner.init(params), params, params, compression.init(params))

    def step(state: ChocoState, event: Event, batch: Batch) -> tuple[ChocoState, Info]:
        to, rate = event.plan.to, event.plan.rate
        after, info = inner.step(state.inner, event_of_node(event), batch)
        x = after.params
        gap = jax.tree.map(jnp.subtract, x, state.known)
        mean, message, compression_state = compression.apply(
            collectives.over_graph(to), gap, state.compression_state
        )
        known = jax.tree.map(jnp.add, state.known, message)
        neighbours = jax.tree.map(jnp.add, state.neighbours, mean)
        x = jax.tree.map(lambda x, h, y: x + rate.astype(x.dtype) * (h - y), x, neighbours, known)
        sent = sum(compression.messages(x)) * messages_to_others(to)
        state = ChocoState(after.moved_to(x), known, neighbours, compression_state)
        return state, add_sent_bytes(info, sent)

    return Rule(init, step)


ORDERS = ("combine", "adapt")
ROWS = 256  # up to so many nodes hold a dense row of R; more hold its other entries only


class Neighbours(NamedTuple):
    to: Array  # (nodes, k) int32, whom each sends to
    weight: Array  # (nodes,) float32, w
    inner: Plan = ()  # the plan of each node, (nodes, ...)
    senders: Array | None = None  # (nodes, k) int32, who sends to each; with many nodes only
    stand: Array | None = None  # (nodes,) int32, itself, or the stand-in of a node that is away
    rate: Array | None = None  # float32, c of compressed gossip


def gossip(inner: Rule, order: str, collectives: Collectives = SIMULATED) -> Rule:
    """Returns the rule of one device over the axis `node`, around a node's `inner` rule.

    `event.plan` is `Neighbours`, which differs between nodes in its `inner` only. A node that is
    away makes no update, and takes over the parameters of its stand-in.
    """
    gather = collectives.gather

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        i, c, before = lax.axis_index("node"), event.plan, state.params
        after, info = inner.step(state, event_of_node(event), batch)
        if c.stand is not None:
            after = jax.tree.map(partial(jnp.where, c.stand[i] == i), after, state)
        if c.senders is not None:
            others = c.senders[i]
            weights = c.weight[others] / c.to.shape[1]  # P_ij w_j of these j
        else:
            others, weights = slice(None), (c.to == i).mean(axis=1) * c.weight
        row = weights / weights.sum()  # R_ij, as w_i' is their sum

        def mixed(tree: Params) -> Params:
            """Returns sum_j R_ij z_j in float32, which accelerators would round."""
            product = partial(jnp.tensordot, row, axes=1, precision=lax.Precision.HIGHEST)
            return jax.tree.map(
                lambda z, rows: product(rows[others]).astype(z.dtype), tree, gather(tree)
            )

        def combined(mean: jax.Array, z: jax.Array, moved: jax.Array) -> jax.Array:
            return mean + (moved - z) / weights.sum().astype(z.dtype)

        def adapted(z: jax.Array, moved: jax.Array) -> jax.Array:
            return moved + (1 / c.weight[i] - 1).astype(z.dtype) * (moved - z)

        if order == "combine":
            z = jax.tree.map(combined, mixed(before), before, after.params)
        else:
            z = mixed(jax.tree.map(adapted, before, after.params))
        if c.stand is not None:
            z = jax.tree.map(lambda rows: rows[c.stand[i]], gather(z))
        return after.moved_to(z), add_sent_bytes(info, bytes_of(z) * messages_to_others(c.to))

    return Rule(inner.init, step)


@dataclass(frozen=True)
class Gossip(Mixes, OnGraph, Compressed, name="gossip"):
    """Gossip: nodes exchange parameters with their neighbours after every update.

        combine   x_i <- sum_j W_ij x_j - gamma g_i(x_i)      D-PSGD (Lian et al., arXiv 1705.09056)
        adapt     x_i <- sum_j W_ij (x_j - gamma g_j(x_j))

    The rows and columns of W sum to 1, which keeps the mean over the nodes. Where only the columns
    of P sum to 1, push-sum keeps it (SGP, Assran et al., arXiv 1811.10792): weights w travel along,

        x <- P (x - gamma g(z))      or      x <- P x - gamma g(z)
        w <- P w,  z = x / w

    and gradients are taken at z. With W in place of P, w stays 1, so one rule is both. The timeline
    has P and w. A node holds z, and with R_ij = P_ij w_j / w_i', whose rows sum to 1,

        adapt   z_i <- sum_j R_ij (z_j - gamma g_j / w_j)
        combine z_i <- sum_j R_ij z_j - gamma g_i / w_i'        w' = P w

    -gamma g stands for an update of the inner rule. With compressed messages it is `choco`.
    """

    gossip_order: str = field(
        "combine",
        "Nodes send their parameters from before an update, 'combine', or after it, 'adapt'.",
        one_of=ORDERS,
        static=True,
    )
    consensus_rate: float = field(
        0.5, "c, the step toward neighbours, with compressed messages.", **ABOVE_0
    )

    cluster = (*nodes.LINKED, "diurnal", "presence")
    info = ("sent_bytes",)

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        if compression := self.compressor():
            return choco(inner, compression, collectives)
        return gossip(inner, self.gossip_order, collectives)

    def message_bytes(self, params: Params, whole: float) -> float:
        """Returns the bytes of a message of `whole` bytes of parameters."""
        compression = self.compressor()
        return whole * compression.ratio(params) if compression else whole

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        setup, size = inputs.setup, inputs.update_bytes
        cluster, steps, compression = setup.cluster, setup.steps, self.compressor()
        local = nodes.local_times(inputs, methods, steps)
        rng = seeds.generator(setup.seed, "graph")
        to = graph_peers(self.graph, cluster.nodes, steps, rng)
        message_bytes = (
            self.message_bytes(inputs.model.params, size) if compression else float(size)
        )
        turns, early = np.arange(steps) % len(to), self.gossip_order == "combine"
        exchange = Peers(to, turns, link_seconds(cluster, message_bytes), early)
        always = np.ones((steps, 1), bool)
        meeting, handed_on = Meeting(always, always, ~always), broadcast(cluster, size)
        load = availability.cluster_load(cluster)
        presence = availability.cluster_presence(cluster, setup.seed)
        seconds, here = meeting_seconds(meeting, local, exchange, handed_on, load, presence)
        w = push_weights(to, steps) if self.graph == "push" else np.ones((steps, cluster.nodes))
        plan = Neighbours(
            over_updates(to, steps),
            w.astype(np.float32),
            senders=over_updates(senders_of(to), steps) if cluster.nodes > ROWS else None,
            rate=np.full(steps, self.consensus_rate, np.float32) if compression else None,
        )
        if cluster.presence:
            plan = self._with_present(plan, here)
        return meetings_timeline(plan, local, seconds)

    def with_recorded(self, line: Timeline, trace: RecordedTrace, setup: Setup) -> Timeline:
        if not setup.cluster.presence:
            return line
        here = availability.recorded_presence(trace, setup.cluster.nodes)
        return line._replace(plan=self._with_present(line.plan, here))

    def _with_present(self, plan: Neighbours, here: np.ndarray) -> Neighbours:
        """Returns the plan among the nodes that are `here`, (steps, nodes)."""
        to = availability.reroute_updates(np.asarray(plan.to), here)
        w = push_weights(to, len(to)) if self.graph == "push" else plan.weight
        return plan._replace(
            to=to,
            weight=w.astype(np.float32),
            senders=None if plan.senders is None else senders_of(to),
            stand=availability.stand_ins(here),
        )

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        yield self.graph_join(*GRAPHS)
        many = setup.cluster.nodes > ROWS and self.graph in ("push", "complete")
        reason = f"must be at most {ROWS:,} with gossip on {self.graph!r}, where many send to one"
        yield Join("cluster.nodes", many, reason)
        if not self.compressor():
            return
        if isinstance(methods.outermost, OverGraph):
            yield from full_message_joins(self, COMPRESSED, methods)
        yield self.compression_join("", "top_k", "sign")
        reason = f"must be {one_of_these(self.graph, CONSTANT_GRAPHS)} with compressed messages"
        yield Join("method.graph", self.graph not in CONSTANT_GRAPHS, reason)
        reason = "must be 'adapt' with config.method.compression"
        yield Join("method.gossip_order", self.gossip_order != "adapt", reason)
        reason = "must be 0 with compressed gossip"
        yield Join("cluster.presence", setup.cluster.presence, reason)

    def combined_with(self, other: Mixes) -> Mixes | None:
        if isinstance(other, ModelAveraging) and other.allows_graphs:
            return OverGraph(meets=other, graph=self.graph)
        return None

    def report(self, setup: Setup, model_info: ModelInfo) -> Mapping[str, object]:
        return graph_report(self.graph, setup.cluster.nodes)


COMPRESSED = ("compression", "compression_bits")


@dataclass(frozen=True)
class OverGraph(Mixes):
    """Nodes that meet every H updates, with their neighbours in a graph: NoLoCo and its kin.

        D_i     = theta_i - sum_j W_ij x_j        every H updates; W: one row a node
        theta_i <- theta_i - outer(D_i)           an outer optimizer for each node
        x_i     <- theta_i

    This is `diloco+gossip`. NoLoCo (arXiv 2506.10911) draws pairs at every meeting (graph `random`)
    and has heavy ball, `slowmo+gossip`: its m <- mu m + eta mean(x_j - theta_j) + eta
    (mean(theta_j) - theta_i) is mu m - eta D_i. On `complete` it is `meets` itself.
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
        yield from full_message_joins(
            self.meets, ("fragments", "inner_state", *COMPRESSED), methods
        )
        reason = f"must be 0 with config.method.name = {methods.name!r}"
        yield Join("cluster.presence", setup.cluster.presence, reason)
        yield push_join(self.graph, methods)


def graph_clock(
    graph: str, meeting: Meeting, inputs: ClockInputs, methods: MethodStack
) -> Timeline:
    """Returns the timeline of nodes that wait for neighbours; meeting n has row n of the graph."""
    setup, cluster, size = inputs.setup, inputs.setup.cluster, inputs.update_bytes
    local = nodes.local_times(inputs, methods, setup.steps)
    count = np.asarray(meeting.send)[:, 0].cumsum()
    to = graph_peers(graph, cluster.nodes, int(count[-1]), seeds.generator(setup.seed, "graph"))
    turns = (count - 1).clip(0) % len(to)
    exchange, handed_on = Peers(to, turns, link_seconds(cluster, size)), broadcast(cluster, size)
    load = availability.cluster_load(cluster)
    seconds, _ = meeting_seconds(meeting, local, exchange, handed_on, load)
    return meetings_timeline(meeting._replace(to=to[turns]), local, seconds)


def push_join(graph: str, methods: MethodStack) -> Join:
    """Returns the row of a graph on which nodes must know how many messages to wait for."""
    reason = f"must be another with config.method.name = {methods.name!r}: with 'push' a node does "
    reason += "not know how many messages to wait for"
    return Join(methods.key("graph"), graph == "push", reason)


def full_message_joins(method: Mixes, keys: Sequence[str], methods: MethodStack) -> Iterator[Join]:
    """Yields the keys of a method that over a graph must have the values of full messages."""
    (section,) = (name for name, member in methods.by_section.items() if member is method)
    for key in keys:
        default = getattr(ModelAveraging(), key)
        reason = (
            f"must be {default!r} with config.method.name = {methods.name!r}, whose nodes send "
        )
        reason += "all their parameters to neighbours"
        yield Join(f"method.{section}.{key}", getattr(method, key) != default, reason)


class GASLoCState(NamedTuple):
    inner: Tree  # the state of the inner rule, at x
    theta: Params  # where the node was after the last meeting
    y: Params  # what it sent at the last meeting

    @property
    def params(self) -> Params:
        return self.inner.params


def gasloc(inner: Rule, collectives: Collectives = SIMULATED) -> Rule[GASLoCState]:
    """Returns the rule of a device over the axis `node`; `event.plan` is a `Meeting` with `to`."""

    def init(params: Params) -> GASLoCState:
        return GASLoCState(inner.init(params), params, params)

    def step(state: GASLoCState, event: Event, batch: Batch) -> tuple[GASLoCState, Info]:
        after, info = inner.step(state.inner, event_of_node(event), batch)
        plan = event.plan
        eta, gamma = (plan.outer[key] for key in ("outer_learning_rate", "outer_momentum"))

        def local(theta: jax.Array, x: jax.Array) -> jax.Array:
            return theta + eta.astype(x.dtype) * (x - theta)

        def momentum(mean: jax.Array, y: jax.Array, before: jax.Array) -> jax.Array:
            return mean + gamma.astype(y.dtype) * (y - before)

        def meet(x: Params, theta: Params, before: Params) -> tuple[Params, Params, Params]:
            y = jax.tree.map(local, theta, x)
            mean = collectives.over_graph(plan.to).mean(y)  # W y
            theta = jax.tree.map(momentum, mean, y, before)
            return theta, theta, y

        before = after.params, state.theta, state.y
        x, theta, y = lax.cond(plan.send.all(), meet, lambda *before: before, *before)
        sent = jnp.where(plan.send.all(), size(y) * messages_to_others(plan.to), 0.0)
        return GASLoCState(after.moved_to(x), theta, y), add_sent_bytes(info, sent)

    return Rule(init, step)


@dataclass(frozen=True)
class GASLoC(Mixes, OnGraph, Periodic, OuterMomentum, name="gasloc"):
    """GASLoC (Cagnasso, Belilovsky, Oyallon, arXiv 2606.11081): local updates, gossip and momentum.

        y_i     = theta_i + eta (x_i - theta_i)     every H updates, which took node i to x_i
        theta_i <- y_i - alpha (Lambda y)_i + gamma (y_i - y_i')
        x_i     <- theta_i                          y': y of the meeting before, at first theta

    Lambda is the Laplacian of the graph, and alpha Lambda = I - W with W as in `gossip`. On one
    quadratic the mean over the nodes is DiLoCo's theta, on any graph. A node's momentum includes
    what the meeting before did to the node, and eta does not scale the pull to the neighbours, as
    it does in `diloco+gossip`. With gamma = 0 and eta = 1 it is `model_averaging+gossip`.

    The equation is that of a catalogue (junaidaliop.github.io/zij); the paper itself was not read.
    """

    cluster = (*nodes.LINKED, "diurnal")
    info = ("sent_bytes",)

    @property
    def cycle(self) -> int:
        return self.period

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        return gasloc(inner, collectives)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        steps = inputs.setup.steps
        outer = outer_schedule(self, DiLoCo.mean_hyper, steps)
        meeting = meeting_schedule(steps, self.period, 1, 0)._replace(outer=outer)
        return graph_clock(self.graph, meeting, inputs, methods)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        yield self.graph_join(*GRAPHS)
        yield push_join(self.graph, methods)

    def report(self, setup: Setup, model_info: ModelInfo) -> Mapping[str, object]:
        return graph_report(self.graph, setup.cluster.nodes)
