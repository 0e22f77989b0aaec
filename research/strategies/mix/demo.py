"""DeMo (Peng et al., arXiv 2411.19870): momenta of nodes, of which the largest parts are sent.

    m_i   <- beta m_i + gamma g_i             gamma g_i: what an update of node i does by itself
    q_i   = top-k(DCT(m_i))                   k coefficients of every chunk
    m_i   <- m_i - IDCT(q_i)                  what is sent is taken off
    Q     = IDCT(1/P sum_j q_j)
    theta <- theta - gamma sign(Q)            or theta - Q, where steps are not `signed`

All nodes have the same theta after every update, and momenta of their own. A chunk is a block of a
matrix, of at most c rows and columns that divide its own evenly, and the transform is orthonormal.
With all coefficients nothing is left of m, and it is SGD of the mean, or of its sign. With H = 1
and numbers in the place of coefficients it would be SparseLoCo.
"""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.basics.fields import field
from optdyn.basics.trees import Array, Tree
from optdyn.core import Batch, Event, Info, Params, Rule
from optdyn.setup import Setup
from optdyn.strategies.method import Methods, Mixes, Sends, Setting
from optdyn.strategies.mix import nodes
from optdyn.strategies.mix.averaging_clock import every_update
from optdyn.strategies.mix.messages import over_nodes, own_event, size, with_sent
from optdyn.strategies.shared_fields import FRACTION
from optdyn.timeline.base import Timeline
from optdyn.timeline.network import to_all_nodes
from optdyn.timeline.service import DRAWN

PLACE = 2  # bytes of a coefficient's place in its chunk, and so at most 256 rows and columns


class State(NamedTuple):
    inner: Tree  # of this node, at theta
    momentum: Params  # m of this node

    @property
    def params(self) -> Params:
        """theta."""
        return self.inner.params


class Chunks(NamedTuple):
    """An array as a matrix of blocks."""

    rows: int  # of blocks
    height: int  # of a block
    columns: int
    width: int

    def encode(self, leaf: jax.Array) -> jax.Array:
        """(chunks, height width) coefficients."""
        blocks = leaf.reshape(self.rows, self.height, self.columns, self.width)
        up, across = cosines(self.height), cosines(self.width)
        found = jnp.einsum("iajb,ua,vb->ijuv", blocks, up, across, precision="highest")
        return found.reshape(self.rows * self.columns, -1)

    def decode(self, coefficients: jax.Array) -> jax.Array:
        """All numbers of the array, as (rows, height, columns, width)."""
        blocks = coefficients.reshape(self.rows, self.columns, self.height, self.width)
        up, across = cosines(self.height), cosines(self.width)
        return jnp.einsum("ijuv,ua,vb->iajb", blocks, up, across, precision="highest")


def chunks(shape: tuple[int, ...], most: int) -> Chunks:
    """How an array of that shape is cut into blocks of at most `most` numbers a side.

    The array is a matrix of its last axis by all others; a vector is one row.
    """
    rows, columns = prod(shape[:-1]), (shape or (1,))[-1]
    height, width = (
        max(d for d in range(1, min(n, most) + 1) if n % d == 0) for n in (rows, columns)
    )
    return Chunks(rows // height, height, columns // width, width)


def cosines(n: int) -> np.ndarray:
    """(n, n) the orthonormal discrete cosine transform: its inverse is its transpose."""
    u, x = np.arange(n)[:, None], np.arange(n)
    rows = np.sqrt(2 / n) * np.cos(np.pi * (2 * x + 1) * u / (2 * n))
    rows[0] /= np.sqrt(2)
    return rows.astype(np.float32)


def demo(
    inner: Rule, chunk: int, coefficients: int, signed: bool = True, senders: str | None = None
) -> Rule:
    """The rule of one device over the axis `node`; `event.choice` is `Together`, with beta."""

    def init(params: Params) -> State:
        return State(inner.init(params), jax.tree.map(jnp.zeros_like, params))

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        after, info = inner.step(state.inner, own_event(event), batch)
        beta, theta = event.choice.numbers["momentum_decay"], state.params
        momentum = jax.tree.map(
            lambda m, x, y: beta.astype(m.dtype) * m + x - y, state.momentum, theta, after.params
        )
        leaves, tree_of = jax.tree.flatten(momentum)
        shapes = [chunks(leaf.shape, chunk) for leaf in leaves]
        sent = [largest(of.encode(m), coefficients) for of, m in zip(shapes, leaves, strict=True)]
        every = over_nodes(senders).gather(sent)
        kept, found = [], []
        for of, m, own, all_sent in zip(shapes, leaves, sent, every, strict=True):
            kept.append(m - of.decode(spread(of, own)).astype(m.dtype).reshape(m.shape))
            mean = jax.vmap(lambda one, of=of: spread(of, one))(all_sent).mean(axis=0)
            found.append(of.decode(mean).astype(m.dtype).reshape(m.shape))
        if signed:
            gamma = jnp.asarray(event.hyper["learning_rate"])
            found = [gamma.astype(q.dtype) * jnp.sign(q) for q in found]
        theta = jax.tree.map(jnp.subtract, theta, jax.tree.unflatten(tree_of, found))
        state = State(after.moved_to(theta), jax.tree.unflatten(tree_of, kept))
        return state, with_sent(info, size(sent))

    return Rule(init, step)


def largest(found: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The `count` largest coefficients of every chunk, and their places in it."""
    _, place = jax.lax.top_k(jnp.abs(found), min(count, found.shape[1]))
    return jnp.take_along_axis(found, place, axis=1), place.astype(jnp.uint16)


def spread(of: Chunks, sent: tuple[jax.Array, jax.Array]) -> jax.Array:
    """(chunks, height width) with what was sent in its places, and 0 elsewhere."""
    values, place = sent
    nothing = jnp.zeros((of.rows * of.columns, of.height * of.width), values.dtype)
    return nothing.at[jnp.arange(len(values))[:, None], place.astype(jnp.int32)].set(values)


@dataclass(frozen=True)
class DeMo(Mixes):
    momentum_decay: float = field(
        0.999, "demo: beta, what is kept of a node's momentum until the next update.", **FRACTION
    )
    chunk: int = field(
        64, "demo: c, rows and columns of a chunk at most.", at_least=1, at_most=256, static=True
    )
    coefficients: int = field(
        32, "demo: k, of every chunk, that are sent.", at_least=1, static=True
    )
    signed: bool = field(True, "demo: whether steps are of the sign only.", static=True)

    laws = DRAWN
    cluster = ("overlap", "speeds", "latencies", "bandwidths", "regions")
    info = ("sent_bytes",)

    def mix(self, inner: Rule, senders: str | None = None) -> Rule:
        return demo(inner, self.chunk, self.coefficients, self.signed, senders)

    def sends(self, params: Params) -> Sends:
        def of(leaf: Array) -> int:
            own = chunks(leaf.shape, self.chunk)
            kept = min(self.coefficients, own.height * own.width)
            return own.rows * own.columns * kept * (leaf.dtype.itemsize + PLACE)

        return Sends(float(sum(map(of, jax.tree.leaves(params)))), gathered=True)

    def clock(self, setting: Setting, methods: Methods) -> Timeline:
        """Nodes wait after every update until all have what all others send."""
        sent = self.sends(setting.model.params).bytes
        line = every_update(setting, methods, to_all_nodes(setting.setup.cluster, sent))
        beta = np.full(len(line.seconds), self.momentum_decay, np.float32)
        return line._replace(choice=line.choice._replace(numbers={"momentum_decay": beta}))

    def check(self, setup: Setup, methods: Methods) -> None:
        nodes.check(setup, methods)
        if self.signed:
            nodes.needs_rate(setup)


METHOD = DeMo
