"""Gossip: nodes exchange parameters with neighbours after every update, and with nobody else.

    combine   x_i <- sum_j W_ij x_j - gamma g_i(x_i)        D-PSGD (Lian et al., arXiv 1705.09056)
    adapt     x_i <- sum_j W_ij (x_j - gamma g_j(x_j))

W has rows and columns of sum 1, so that the mean over the nodes is kept. Where only the columns of
P sum to 1, push-sum keeps it (SGP, Assran et al., arXiv 1811.10792): weights w travel along,

    x <- P (x - gamma g(z))      w <- P w      z = x / w      or x <- P x - gamma g(z), and so on

and gradients are taken at z. With W it has w = 1, so this file has push-sum only. The timeline
knows P and hence w. What a node holds is z, and in terms of that with R_ij = P_ij w_j / w_i'

    adapt   z_i <- sum_j R_ij (z_j - gamma g_j / w_j)
    combine z_i <- sum_j R_ij z_j - gamma g_i / w_i'        w' = P w, so that rows of R sum to 1

-gamma g stands for whatever a node's own update does. Compressed messages have another rule
(`choco.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from optdyn.basics import seeds
from optdyn.basics.errors import one_of, require
from optdyn.basics.fields import field
from optdyn.basics.trees import Array, Choice, bytes_of
from optdyn.core import Batch, Event, Info, Params, Rule, State
from optdyn.setup import Setup
from optdyn.strategies.method import Methods, Mixes, Network, Setting
from optdyn.strategies.mix import nodes
from optdyn.strategies.mix.choco import choco
from optdyn.strategies.mix.messages import over_nodes, own_event, with_sent
from optdyn.strategies.mix.model_averaging import ModelAveraging
from optdyn.strategies.mix.over_graph import COMPRESSED, OverGraph, all_is_sent
from optdyn.strategies.shared_fields import ABOVE_0, Compressed, OnGraph
from optdyn.timeline import graphs, habits
from optdyn.timeline.base import Timeline
from optdyn.timeline.network import broadcast, links
from optdyn.timeline.service import DRAWN
from optdyn.timeline.trace import Held

ORDERS = ("combine", "adapt")
ROWS = 256  # nodes at most that each hold a whole row of R; of more those that are not 0


class Neighbours(NamedTuple):
    """Among whom an update of gossip is."""

    to: Array  # (nodes, k) int32, whom each sends to
    weight: Array  # (nodes,) float32, w
    inner: Choice = ()  # what is decided for each node, (nodes, ...)
    senders: Array | None = None  # (nodes, k) int32, who sends to each; only of many nodes
    stand: Array | None = None  # (nodes,) int32, itself, or another for one that is away
    rate: Array | None = None  # float32, c of `choco.py`


def gossip(inner: Rule, order: str, senders: str | None = None) -> Rule:
    """The rule of one device over the axis `node`, around what a node does by itself.

    `event.choice` is `Neighbours`, the same on all nodes but for what is `inner` there. With its
    `senders` a node takes the mean of their messages, and no row of P has an entry for every node;
    sums are in another order. With its `stand` who is away makes no update, and has after it what
    another has.
    """
    gather = over_nodes(senders).gather
    early = order == "combine"

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        node, choice, before = lax.axis_index("node"), event.choice, state.params
        after, info = inner.step(state, own_event(event), batch)
        to, w, stand = choice.to, choice.weight, choice.stand
        if stand is not None:
            after = jax.tree.map(partial(jnp.where, stand[node] == node), after, state)
        if choice.senders is not None:
            others = choice.senders[node]
            heard = w[others] / to.shape[1]
        else:
            others, heard = slice(None), (to == node).mean(axis=1) * w  # P_ij w_j of this row i
        row = heard / heard.sum()

        def mixed(tree: Params) -> Params:  # in float32, which accelerators would cut
            product = partial(jnp.tensordot, row, axes=1, precision=lax.Precision.HIGHEST)
            return jax.tree.map(
                lambda x, every: product(every[others]).astype(x.dtype), tree, gather(tree)
            )

        def sent(x: jax.Array, moved: jax.Array) -> jax.Array:
            return moved + (1 / w[node] - 1).astype(x.dtype) * (moved - x)

        def added(mean: jax.Array, x: jax.Array, moved: jax.Array) -> jax.Array:
            return mean + (moved - x) / heard.sum().astype(x.dtype)

        if early:
            z = jax.tree.map(added, mixed(before), before, after.params)
        else:
            z = mixed(jax.tree.map(sent, before, after.params))
        if stand is not None:
            z = jax.tree.map(lambda every: every[stand[node]], gather(z))
        own = bytes_of(z) * (to[node] != node).sum().astype(jnp.float32)
        return after.moved_to(z), with_sent(info, own)

    return Rule(inner.init, step)


@dataclass(frozen=True)
class Gossip(Mixes, OnGraph, Compressed):
    gossip_order: str = field(
        "combine",
        "gossip: nodes send what they had before an update, 'combine', or have after it, 'adapt'.",
        one_of=ORDERS,
        static=True,
    )
    consensus_rate: float = field(
        0.5, "gossip: c, the step toward neighbours where messages are compressed.", **ABOVE_0
    )

    laws = DRAWN
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

    def clock(self, setting: Setting, methods: Methods) -> Timeline:
        """Nodes wait for what is sent to them, and for nobody else (`graphs.arrivals`).

        Who is away (`config.cluster.presence`) `stand`s where the next on the circle does who is
        there.
        """
        setup, size, name = setting.setup, setting.update_bytes, self.graph
        cluster, steps = setup.cluster, setup.steps
        within = nodes.inside(setting, methods)(steps)
        to = graphs.graph(name, cluster.nodes, steps, seeds.generator(setup.seed, "graph"))
        if held := setting.held:
            seconds, there = held.seconds, np.ones((steps, cluster.nodes), bool)
            if cluster.presence:
                there = _recorded(held, cluster.nodes)
                to = graphs.among(to, there)
        else:
            early = self.gossip_order == "combine"
            sent = float(size)
            if self.compressed():
                sent = self.message_bytes(setting.model.params, size)
            between, handed_on = links(cluster, sent), broadcast(cluster, size)
            habit = habits.load(cluster), habits.presence(cluster, setup.seed)
            ready, done = within.ready, within.done
            seconds, to, there = graphs.arrivals(to, ready, done, between, handed_on, early, *habit)
        w = graphs.weights(to, steps) if name == "push" else np.ones((steps, cluster.nodes))
        choice = Neighbours(
            graphs.each_update(to, steps),
            w.astype(np.float32),
            within.choice,
            graphs.each_update(graphs.senders(to), steps) if cluster.nodes > ROWS else None,
            graphs.stands(there) if cluster.presence else None,
            np.full(steps, self.consensus_rate, np.float32) if self.compressed() else None,
        )
        none = np.zeros(steps, np.int32)
        staleness = none if within.staleness is None else within.staleness
        return Timeline(none, staleness, seconds, within.slots, choice)

    def check(self, setup: Setup, methods: Methods) -> None:
        nodes.check(setup, methods)
        one_of("config.strategy.graph", self.graph, graphs.GRAPHS)
        pushes = self.graph in ("push", "complete")
        wanted = f"at most {ROWS:,} that gossip on {self.graph!r}, where many send to one"
        require(setup, "cluster.nodes", lambda v: v <= ROWS or not pushes, wanted)
        if not self.compressed():
            return
        if isinstance(methods.outermost, OverGraph):
            all_is_sent(self, COMPRESSED, methods)
        one_of("config.strategy.compression of gossip", self.compression, ("", "top_k", "sign"))
        one_of("config.strategy.graph of compressed messages", self.graph, graphs.CONSTANT)
        wanted = "'adapt' with config.strategy.compression, as nodes send what they have then"
        self.require("gossip_order", self.gossip_order == "adapt", wanted)
        require(setup, "cluster.presence", lambda v: not v, "0 with compressed gossip")

    def joined(self, other: Mixes) -> Mixes | None:
        """The graph of nodes that meet now and then."""
        if isinstance(other, ModelAveraging) and other.over_graphs:
            return OverGraph(other, self.graph)
        return None

    def report(self, setup: Setup, network: Network) -> Mapping[str, object]:
        return graphs.report(self.graph, setup.cluster.nodes)


def _recorded(held: Held, nodes: int) -> np.ndarray:
    """(steps, nodes) bool, who was there in a run that a trace holds. Raises `TimelineError`."""
    stand = held.whole("stand", (nodes,), 0, nodes - 1)
    there = stand == np.arange(nodes)
    good = there.any(axis=1, keepdims=True) & (graphs.stands(there) == stand)
    held.require("stand", good, "its own number of each node that is there, and the next one's")
    return there


METHOD = Gossip
