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

-gamma g stands for whatever a node's own update does.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from ml_collections import ConfigDict

from research import seeds
from research.strategies import nodes
from research.strategies.base import Batch, Event, Info, Params, State, Strategy
from research.strategies.messages import over_nodes, own_event
from research.strategies.method import Chosen, Keys, Method, Network, Setting
from research.timeline import graphs
from research.timeline.base import Timeline
from research.timeline.network import broadcast, messages
from research.timeline.service import DRAWN
from research.values import one_of, require

OWN = ("to", "weight")  # of `event.control`; all else there is (nodes, ...)
ORDERS = ("combine", "adapt")
MOST = 1024  # nodes: each is sent a row of as many weights


def gossip(inner: Strategy, keys: Keys, senders: str | None = None) -> Strategy:
    """The rule of one device over the axis `node`, around the strategy that a node does by itself.

    `event.control`: `to`, (nodes, k) int32, and `weight`, w, (nodes,), as in `timeline/graphs.py`,
    the same on all nodes; and of every node what the inner strategy asks for.
    """
    gather = over_nodes(senders).gather
    early = keys["gossip_order"] == "combine"

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        node, control, before = lax.axis_index("node"), event.control or {}, state.params
        after, info = inner.step(state, own_event(event, OWN), batch)
        to, w = control["to"], control["weight"]
        heard = (to == node).mean(axis=1) * w  # P_ij w_j of this row i
        row = heard / heard.sum()

        def mixed(tree: Params) -> Params:
            def one(every: jax.Array) -> jax.Array:
                whole = lax.Precision.HIGHEST  # of float32, which accelerators would cut
                return jnp.tensordot(row.astype(every.dtype), every, 1, precision=whole)

            return jax.tree.map(one, gather(tree))

        def sent(x: jax.Array, moved: jax.Array) -> jax.Array:
            return moved + (1 / w[node] - 1).astype(x.dtype) * (moved - x)

        def added(mean: jax.Array, x: jax.Array, moved: jax.Array) -> jax.Array:
            return mean + (moved - x) / heard.sum().astype(x.dtype)

        if early:
            z = jax.tree.map(added, mixed(before), before, after.params)
        else:
            z = mixed(jax.tree.map(sent, before, after.params))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(z))
        sent_bytes = size * (to[node] != node).sum().astype(jnp.float32)
        return after.moved_to(z), info | {"sent_bytes": sent_bytes}

    return Strategy(inner.init, step)


def clock(setting: Setting, methods: Chosen) -> Timeline:
    """Nodes wait for what is sent to them, and for nobody else (`graphs.arrivals`)."""
    config, strategy, size = setting.config, setting.config.strategy, setting.update_bytes
    cluster, steps = config.cluster, config.steps
    ready, done, more = nodes.inside(setting, methods)(steps)
    rng = seeds.generator(config.seed, "graph")
    to = graphs.graph(strategy.graph, cluster.nodes, steps, rng)
    links, handed_on = messages(cluster, size), broadcast(cluster, size)
    early = strategy.gossip_order == "combine"
    seconds = graphs.arrivals(to, ready, done, links, handed_on, early)
    w = graphs.weights(to, steps) if strategy.graph == "push" else np.ones((1, cluster.nodes))
    whole = to if len(to) in (1, steps) else to[np.arange(steps) % len(to)]
    control = {
        "to": np.broadcast_to(whole, (steps, *to.shape[1:])),
        "weight": np.broadcast_to(w.astype(np.float32), (steps, cluster.nodes)),
    }
    none = np.zeros(steps, np.int32)
    slots = int(more["read"].max()) + 1 if "read" in more else 1
    staleness = more.pop("staleness", none)
    return Timeline(none, none, none, staleness, seconds, slots, control | more)


def report(config: ConfigDict, network: Network) -> Keys:
    """How fast the graph spreads what a node has: the gap, and of how many updates it is."""
    graph, count = config.strategy.graph, config.cluster.nodes
    drawn = graph in graphs.DRAWN
    period = len(graphs.graph(graph, count, 1, np.random.default_rng(0)))
    return {
        "spectral_gap": graphs.spectral_gap(graph, count),
        "graph_period": 1 if drawn else period,
    }


def check(config: ConfigDict, methods: Chosen) -> None:
    """Raises `ConfigError`."""
    nodes.check(config, methods)
    one_of(config, "strategy.graph", graphs.GRAPHS)
    require(config, "cluster.nodes", lambda v: v <= MOST, f"at most {MOST:,} that gossip")


METHOD = Method(
    keys={
        "graph": "ring",  # 'exponential', 'one_peer', 'complete', 'random', 'push'
        "gossip_order": "combine",  # or 'adapt': what nodes send, from before or after their update
    },
    compiled=("gossip_order",),
    mix=gossip,
    clock=clock,
    laws=DRAWN,
    cluster=("overlap", "speeds", "latencies", "bandwidths"),
    info=("sent_bytes",),
    values=lambda config: one_of(config, "strategy.gossip_order", ORDERS),
    check=check,
    report=report,
)
