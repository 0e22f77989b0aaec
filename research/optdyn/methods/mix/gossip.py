"""Gossip: nodes exchange parameters with neighbours after every update, and with nobody else.

    combine   x_i <- sum_j W_ij x_j - gamma g_i(x_i)        D-PSGD (Lian et al., arXiv 1705.09056)
    adapt     x_i <- sum_j W_ij (x_j - gamma g_j(x_j))

The rows and columns of W sum to 1, which keeps the mean over the nodes. Where only the columns of P
sum to 1, push-sum keeps it (SGP, Assran et al., arXiv 1811.10792): weights w travel along,

    x <- P (x - gamma g(z))      or      x <- P x - gamma g(z)
    w <- P w,  z = x / w

and gradients are taken at z. With W in place of P w stays 1, so that this one rule is both. The
timeline knows P, and so w. A node holds z, and with R_ij = P_ij w_j / w_i', whose rows sum to 1,

    adapt   z_i <- sum_j R_ij (z_j - gamma g_j / w_j)
    combine z_i <- sum_j R_ij z_j - gamma g_i / w_i'        w' = P w

-gamma g stands for whatever a node's own update does. Compressed messages have another rule
(`choco.py`).
"""

from collections.abc import Iterator, Mapping
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
from optdyn.base.trees import Array, Choice, bytes_of
from optdyn.clock import attendance, graphs, habits
from optdyn.clock.base import Timeline
from optdyn.clock.network import broadcast, links
from optdyn.core import Batch, Event, Info, Params, Rule, State
from optdyn.methods.method import ClockInputs, Methods, Mixes, ModelInfo
from optdyn.methods.mix import nodes
from optdyn.methods.mix.choco import choco
from optdyn.methods.mix.messages import over_nodes, own_event, with_sent
from optdyn.methods.mix.model_averaging import ModelAveraging
from optdyn.methods.mix.over_graph import COMPRESSED, OverGraph, all_is_sent
from optdyn.methods.setup import Setup
from optdyn.methods.shared_fields import ABOVE_0, Compressed, OnGraph

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

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        i, c, before = lax.axis_index("node"), event.choice, state.params
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
        to = graphs.graph(name, cluster.nodes, steps, seeds.generator(setup.seed, "graph"))
        if held := setting.held:
            seconds, there = held.seconds, np.ones((steps, cluster.nodes), bool)
            if cluster.presence:
                there = attendance.recorded(held, cluster.nodes)
                to = attendance.among(to, there)
        else:
            early, sent = self.gossip_order == "combine", float(size)
            if small:
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
            attendance.stands(there) if cluster.presence else None,
            np.full(steps, self.consensus_rate, np.float32) if small else None,
        )
        none = np.zeros(steps, np.int32)
        staleness = none if within.staleness is None else within.staleness
        return Timeline(none, staleness, seconds, within.slots, choice)

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
        said = f"must be {one_of_these(self.graph, graphs.GRAPHS)}"
        yield Join("method.graph", self.graph not in graphs.GRAPHS, said)
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
        said = f"of compressed messages must be {one_of_these(self.graph, graphs.CONSTANT)}"
        yield Join("method.graph", self.graph not in graphs.CONSTANT, said)
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
        return graphs.report(self.graph, setup.cluster.nodes)
