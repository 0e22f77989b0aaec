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

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from optdyn.strategies import gossip_clock
from optdyn.strategies.base import Batch, Event, Info, Params, State, Strategy
from optdyn.strategies.messages import over_nodes, own_event
from optdyn.strategies.method import Keys, Method
from optdyn.timeline import graphs
from optdyn.timeline.service import DRAWN
from optdyn.values import one_of

ORDERS = ("combine", "adapt")


def gossip(inner: Strategy, keys: Keys, senders: str | None = None) -> Strategy:
    """The rule of one device over the axis `node`, around what a node does by itself.

    `event.choice` is `Neighbours`, the same on all nodes but for what is `inner` there. With its
    `senders` a node takes the mean of their messages, and no row of P has an entry for every node;
    sums are in another order. With its `stand` who is away has the row of R of another, and makes
    no update.
    """
    gather = over_nodes(senders).gather
    early = keys["gossip_order"] == "combine"

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        node, choice, before = lax.axis_index("node"), event.choice, state.params
        after, info = inner.step(state, own_event(event), batch)
        to, w, i = choice.to, choice.weight, node
        if choice.stand is not None:
            i = choice.stand[node]
            after = jax.tree.map(partial(jnp.where, i == node), after, state)
        if choice.senders is not None:
            others: Any = choice.senders[i]
            heard = w[others] / to.shape[1]
        else:
            others, heard = slice(None), (to == i).mean(axis=1) * w  # P_ij w_j of this row i
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
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(z))
        sent_bytes = size * (to[node] != node).sum().astype(jnp.float32)
        return after.moved_to(z), info | {"sent_bytes": sent_bytes}

    return Strategy(inner.init, step)


METHOD = Method(
    keys={
        "graph": "ring",  # 'exponential', 'one_peer', 'complete', 'random', 'push'
        "gossip_order": "combine",  # or 'adapt': nodes send what they had before, or have after
    },
    compiled=("gossip_order",),
    mix=gossip,
    clock=gossip_clock.clock,
    laws=DRAWN,
    cluster=("overlap", "speeds", "latencies", "bandwidths", "regions", "diurnal", "presence"),
    info=("sent_bytes",),
    values=lambda config: one_of(config, "strategy.gossip_order", ORDERS),
    check=gossip_clock.check,
    report=lambda config, _: graphs.report(config.strategy.graph, config.cluster.nodes),
)
