"""CHOCO-SGD (Koloskova, Stich and Jaggi, arXiv 1902.00340): gossip of compressed messages.

    x_i  <- x_i - gamma g_i(x_i)
    q_i  = C(x_i - y_i)                       what the neighbours do not know yet of x_i
    y_i  <- y_i + q_i                         what all neighbours of node i, and itself, know of it
    x_i  <- x_i + c sum_j W_ij (y_j - y_i)    c: the consensus rate

It is `gossip` with a `compression`. A node keeps y_i and the sum of W_ij y_j, into which come the
messages alone; so W is one for all updates. All begin with y_i = x_0, which all have. With nothing
left out y_i = x_i, and with c = 1 it is gossip that adapts and then combines. -gamma g stands for
whatever a node's own update does.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from optdyn.base.trees import Tree
from optdyn.core import Batch, Event, Info, Params, Rule
from optdyn.methods.mix.messages import Compression, neighbours, over_nodes, own_event, with_sent


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
    """The rule of one device over the axis `node`; `event.choice` is `Neighbours` with a rate."""

    def init(params: Params) -> ChocoState:
        return ChocoState(inner.init(params), params, params, compression.init(params))

    def step(state: ChocoState, event: Event, batch: Batch) -> tuple[ChocoState, Info]:
        to, rate = event.choice.to, event.choice.rate
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
