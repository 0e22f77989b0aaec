"""DeMo (Peng et al., arXiv 2411.19870): momenta of nodes, of which the largest parts are sent.

    m_i   <- beta m_i + gamma g_i             gamma g_i: what an update of node i does by itself
    q_i   = top-k(DCT(m_i))                   k coefficients of every chunk
    m_i   <- m_i - IDCT(q_i)                  what is sent is taken off
    Q     = IDCT(1/P sum_j q_j)
    theta <- theta - gamma sign(Q)            or theta - Q, where steps are not `signed`

All nodes have the same theta after every update, and momenta of their own. `dct.py` has the chunks,
their transform and its k largest coefficients. With all coefficients nothing is left of m, and this
is SGD of the mean gradient, or of its sign. With numbers in the place of coefficients it would be
SparseLoCo at H = 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.base.trees import Tree
from optdyn.clock.base import Timeline
from optdyn.clock.network import to_all_nodes
from optdyn.core import Batch, Event, Info, Params, Rule
from optdyn.methods.method import ClockInputs, Methods, Mixes, Sends
from optdyn.methods.mix import nodes
from optdyn.methods.mix.averaging_clock import every_update
from optdyn.methods.mix.dct import chunks
from optdyn.methods.mix.messages import over_nodes, own_event, size, with_sent
from optdyn.methods.setup import Setup
from optdyn.methods.shared_fields import FRACTION


class DeMoState(NamedTuple):
    inner: Tree  # of this node, at theta
    momentum: Params  # m of this node

    @property
    def params(self) -> Params:
        """theta."""
        return self.inner.params


def demo(
    inner: Rule, chunk: int, coefficients: int, signed: bool = True, senders: str | None = None
) -> Rule:
    """The rule of one device over the axis `node`; `event.choice` is `Together`, with beta."""

    def init(params: Params) -> DeMoState:
        return DeMoState(inner.init(params), jax.tree.map(jnp.zeros_like, params))

    def step(state: DeMoState, event: Event, batch: Batch) -> tuple[DeMoState, Info]:
        after, info = inner.step(state.inner, own_event(event), batch)
        beta, before = event.choice.numbers["momentum_decay"], state.params
        moved = jax.tree.map(
            lambda m, x, y: beta.astype(m.dtype) * m + x - y, state.momentum, before, after.params
        )
        momenta, tree_of = jax.tree.flatten(moved)
        each = [chunks(m.shape, chunk) for m in momenta]
        q = [of.largest(m, coefficients) for of, m in zip(each, momenta, strict=True)]
        kept, Q = [], []
        for of, m, own, every in zip(each, momenta, q, over_nodes(senders).gather(q), strict=True):
            kept.append(m - of.decode(of.spread(own), m))
            Q.append(of.decode(jax.vmap(of.spread)(every).mean(axis=0), m))
        if signed:
            gamma = jnp.asarray(event.hyper["learning_rate"])
            Q = [gamma.astype(x.dtype) * jnp.sign(x) for x in Q]
        theta = jax.tree.map(jnp.subtract, before, jax.tree.unflatten(tree_of, Q))
        state = DeMoState(after.moved_to(theta), jax.tree.unflatten(tree_of, kept))
        return state, with_sent(info, size(q))

    return Rule(init, step)


@dataclass(frozen=True)
class DeMo(Mixes, name="demo"):
    momentum_decay: float = field(
        0.999, "beta, what is kept of a node's momentum until the next update.", **FRACTION
    )
    chunk: int = field(
        64, "c, rows and columns of a chunk at most.", at_least=1, at_most=256, static=True
    )
    coefficients: int = field(32, "k, of every chunk, that are sent.", at_least=1, static=True)
    signed: bool = field(True, "Whether steps are of the sign only.", static=True)

    cluster = ("overlap", "speeds", "latencies", "bandwidths", "regions")
    info = ("sent_bytes",)

    def mix(self, inner: Rule, senders: str | None = None) -> Rule:
        return demo(inner, self.chunk, self.coefficients, self.signed, senders)

    def sends(self, params: Params) -> Sends:
        each = (
            chunks(leaf.shape, self.chunk).sent_bytes(self.coefficients, leaf)
            for leaf in jax.tree.leaves(params)
        )
        return Sends(float(sum(each)), gathered=True)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """Nodes wait after every update until all have what all others send."""
        sent = self.sends(setting.model.params).bytes
        line = every_update(setting, methods, to_all_nodes(setting.setup.cluster, sent))
        beta = np.full(len(line.seconds), self.momentum_decay, np.float32)
        return line._replace(choice=line.choice._replace(numbers={"momentum_decay": beta}))

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
        if self.signed:
            yield nodes.has_rate(setup)
