"""Nodes that send a part of what they have: the largest numbers, the largest frequencies, a draw.

    SparseLoCo   of x - theta and what was left out, every H updates, the largest share of numbers
    DeMo         of momenta, after every update, the largest coefficients of their cosine transform
    SPARTA       of parameters, after every update, a share that is drawn

Those that send again what a message left out keep it: as an error, or in the momentum that a
message is taken off. Gossip of compressed messages, CHOCO, is in `gossip.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optdyn.base import seeds
from optdyn.base.errors import Join, one_of_these
from optdyn.base.fields import field
from optdyn.base.ranges import PART
from optdyn.base.trees import Array, Tree
from optdyn.clock.network import all_gather, between_nodes
from optdyn.clock.timeline import Timeline
from optdyn.core import Batch, Event, Info, Params, Rule, State
from optdyn.methods import nodes
from optdyn.methods.averaging import ALWAYS_THERE, ModelAveraging
from optdyn.methods.messages import (
    SIMULATED,
    Collectives,
    Compression,
    add_sent_bytes,
    event_of_node,
    numbers,
    part_sent,
    size,
    top_k,
)
from optdyn.methods.method import FRACTION, ClockInputs, MethodStack, Mixes, OuterRate, Sends
from optdyn.methods.setup import Setup


@dataclass(frozen=True)
class SparseLoCo(ModelAveraging, OuterRate, name="sparseloco"):
    """SparseLoCo (Sarfi et al., arXiv 2508.15706): sparse messages, errors in place of momentum.

        D_i   = theta - x_i                       every H updates, of P nodes on their own
        e_i   <- beta e_i + D_i
        s_i   = Q_b(top-k(e_i))                   the share k of an array's numbers, b bits each
        e_i   <- e_i - s_i
        theta <- theta - a 1/P sum_i s_i          x_i <- theta

    The rule of `averaging.py`, whose messages (`messages.py`) leave out e, and beta is its decay.
    With beta = 1, a = 1 and numbers as they are (b = 32) it is model averaging with top-k and error
    feedback. There is no outer momentum: what is not sent yet is one, of each node.
    """

    error_decay: float = field(
        0.95, "beta, what is kept of an error until the next message.", **FRACTION
    )

    cluster = ALWAYS_THERE  # nobody says what the errors of those who are away become
    over_graphs = False  # messages are differences from a theta that all nodes have
    mean = MappingProxyType({"outer_learning_rate": 1.0, "error_decay": 1.0})

    def outer(self) -> optax.GradientTransformationExtraArgs:
        """A step of rate a along the outer gradient."""

        def update(
            gap: Tree, state: Tree, params: Params | None = None, **numbers: Array
        ) -> tuple[Params, Tree]:
            return jax.tree.map(lambda leaf: -numbers["outer_learning_rate"] * leaf, gap), state

        return optax.GradientTransformationExtraArgs(optax.identity().init, update)

    def compressed(self) -> Compression:
        sent = numbers(self.compression_bits, self.compression_block)
        return top_k(self.compression_share, sent)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        known = ("", "top_k")
        said = f"of sparseloco must be {one_of_these(self.compression, known)}"
        yield Join("method.compression", self.compression not in known, said)

    def why_no_overlap(self) -> str:
        return "sends the largest numbers of an array only"


PLACE = 2  # bytes of a coefficient's place in its chunk, and so at most 256 rows and columns
Largest = tuple[jax.Array, jax.Array]  # (chunks, k) coefficients, and their places, uint16


class Chunks(NamedTuple):
    """An array as a matrix of blocks, with the discrete cosine transform of each.

        C     = A X B^T                           of a chunk X; A and B have the cosines as rows
        top-k: the k largest |C| of the chunk     each with its place in it
        X     = A^T C B                           as A and B are orthonormal

    The matrix is of an array's last axis by all others; a vector is one row. Each side of a chunk
    is the largest number, at most c, that divides the matrix's side evenly.
    """

    rows: int  # of blocks
    height: int  # of a block
    columns: int
    width: int

    def encode(self, leaf: jax.Array) -> jax.Array:
        """(chunks, height width) coefficients of the array."""
        blocks = leaf.reshape(self.rows, self.height, self.columns, self.width)
        up, across = cosines(self.height), cosines(self.width)
        found = jnp.einsum("iajb,ua,vb->ijuv", blocks, up, across, precision="highest")
        return found.reshape(self.rows * self.columns, -1)

    def decode(self, coefficients: jax.Array, like: jax.Array) -> jax.Array:
        """The array with these coefficients, of the shape and type of `like`."""
        blocks = coefficients.reshape(self.rows, self.columns, self.height, self.width)
        up, across = cosines(self.height), cosines(self.width)
        found = jnp.einsum("ijuv,ua,vb->iajb", blocks, up, across, precision="highest")
        return found.astype(like.dtype).reshape(like.shape)

    def largest(self, leaf: jax.Array, count: int) -> Largest:
        """The `count` largest coefficients of every chunk of the array."""
        found = self.encode(leaf)
        _, place = jax.lax.top_k(jnp.abs(found), self._kept(count))
        return jnp.take_along_axis(found, place, axis=1), place.astype(jnp.uint16)

    def spread(self, sent: Largest) -> jax.Array:
        """(chunks, height width) with what was sent in its places, and 0 elsewhere."""
        values, place = sent
        nothing = jnp.zeros((self.rows * self.columns, self.height * self.width), values.dtype)
        return nothing.at[jnp.arange(len(values))[:, None], place.astype(jnp.int32)].set(values)

    def sent_bytes(self, count: int, leaf: Array) -> int:
        """Bytes of the `largest` coefficients of an array, or its shape, and of their places."""
        return self.rows * self.columns * self._kept(count) * (leaf.dtype.itemsize + PLACE)

    def _kept(self, count: int) -> int:
        return min(count, self.height * self.width)


def chunks(shape: tuple[int, ...], most: int) -> Chunks:
    """How an array of that shape is cut into blocks of at most `most` numbers a side."""
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


class DeMoState(NamedTuple):
    inner: Tree  # of this node, at theta
    momentum: Params  # m of this node

    @property
    def params(self) -> Params:
        """theta."""
        return self.inner.params


def demo(
    inner: Rule,
    chunk: int,
    coefficients: int,
    signed: bool = True,
    collectives: Collectives = SIMULATED,
) -> Rule[DeMoState]:
    """The rule of one device over the axis `node`; `event.plan` is `AllReduceStep`, with beta."""

    def init(params: Params) -> DeMoState:
        return DeMoState(inner.init(params), jax.tree.map(jnp.zeros_like, params))

    def step(state: DeMoState, event: Event, batch: Batch) -> tuple[DeMoState, Info]:
        after, info = inner.step(state.inner, event_of_node(event), batch)
        beta, before = event.plan.numbers["momentum_decay"], state.params
        moved = jax.tree.map(
            lambda m, x, y: beta.astype(m.dtype) * m + x - y, state.momentum, before, after.params
        )
        momenta, tree_of = jax.tree.flatten(moved)
        blocks = [chunks(m.shape, chunk) for m in momenta]
        q = [cut.largest(m, coefficients) for cut, m in zip(blocks, momenta, strict=True)]
        kept, Q = [], []
        for cut, m, sent, rows in zip(blocks, momenta, q, collectives.gather(q), strict=True):
            kept.append(m - cut.decode(cut.spread(sent), m))
            Q.append(cut.decode(jax.vmap(cut.spread)(rows).mean(axis=0), m))
        if signed:
            gamma = jnp.asarray(event.hyper["learning_rate"])
            Q = [gamma.astype(x.dtype) * jnp.sign(x) for x in Q]
        theta = jax.tree.map(jnp.subtract, before, jax.tree.unflatten(tree_of, Q))
        state = DeMoState(after.moved_to(theta), jax.tree.unflatten(tree_of, kept))
        return state, add_sent_bytes(info, size(q))

    return Rule(init, step)


@dataclass(frozen=True)
class DeMo(Mixes, name="demo"):
    """DeMo (Peng et al., arXiv 2411.19870): momenta of nodes, of which the largest parts are sent.

        m_i   <- beta m_i + gamma g_i             gamma g_i: what an update of node i does by itself
        q_i   = top-k(DCT(m_i))                   k coefficients of every chunk
        m_i   <- m_i - IDCT(q_i)                  what is sent is taken off
        Q     = IDCT(1/P sum_j q_j)
        theta <- theta - gamma sign(Q)            or theta - Q, where steps are not `signed`

    All nodes have the same theta after every update, and momenta of their own. With all
    coefficients nothing is left of m, and this is SGD of the mean gradient, or of its sign. With
    numbers in the place of coefficients it would be SparseLoCo at H = 1.
    """

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

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        return demo(inner, self.chunk, self.coefficients, self.signed, collectives)

    def sends(self, params: Params) -> Sends:
        sizes = (
            chunks(leaf.shape, self.chunk).sent_bytes(self.coefficients, leaf)
            for leaf in jax.tree.leaves(params)
        )
        return Sends(float(sum(sizes)), gathered=True)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Nodes wait after every update until all have what all others send."""
        sent = self.sends(inputs.model.params).bytes
        line = nodes.barrier_clock(inputs, methods, all_gather(inputs.setup.cluster, sent))
        beta = np.full(len(line.seconds), self.momentum_decay, np.float32)
        return line._replace(plan=line.plan._replace(numbers={"momentum_decay": beta}))

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
        if self.signed:
            yield nodes.has_rate(setup)


def places(draw: Array, number: int, count: int, share: float) -> jax.Array:
    """(ceil(share count),) int32: of array `number`, of so many numbers, those in S."""
    key = jax.random.fold_in(jax.random.key(draw), number)
    return jax.lax.top_k(jax.random.uniform(key, (count,)), part_sent(share, count))[1]


def sparta(inner: Rule, share: float, collectives: Collectives = SIMULATED) -> Rule:
    """The rule of one device over the axis `node`; `event.plan` is `AllReduceStep`, with draws."""

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        after, info = inner.step(state, event_of_node(event), batch)
        leaves, tree_of = jax.tree.flatten(after.params)
        flat = [leaf.reshape(-1) for leaf in leaves]
        chosen = [places(event.plan.draw, n, x.size, share) for n, x in enumerate(flat)]
        sent = [x[at] for x, at in zip(flat, chosen, strict=True)]
        means = collectives.mean(sent)
        moved = [x.at[at].set(mean) for x, at, mean in zip(flat, chosen, means, strict=True)]
        whole = [x.reshape(leaf.shape) for x, leaf in zip(moved, leaves, strict=True)]
        params = jax.tree.unflatten(tree_of, whole)
        return after.moved_to(params), add_sent_bytes(info, size(sent))

    return Rule(inner.init, step)


@dataclass(frozen=True)
class Sparta(Mixes, name="sparta"):
    """SPARTA: nodes average a random share of their parameters after every update.

        S      <- a share s of the numbers of every array, drawn anew, the same on all nodes
        x_i[S] <- 1/P sum_j x_j[S]        what is not in S stays

    Sparse parameter averaging is of EXO Labs (Beton et al., "Improving the efficiency of
    distributed training using sparse parameter averaging", openreview.net/forum?id=stFPf3gzq1,
    2025). Nodes draw S from one seed, so that no places travel, and the numbers are added up on
    their way. With s = 1 it is model averaging after every update, and with SGD inside synchronous
    SGD.
    """

    averaged_share: float = field(
        0.01,
        "s, the share of an array's numbers that are averaged after an update.",
        **PART,
        static=True,
    )

    cluster = ("overlap", "speeds", "latencies", "bandwidths", "regions")
    info = ("sent_bytes",)

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        return sparta(inner, self.averaged_share, collectives)

    def sends(self, params: Params) -> Sends:
        leaves = jax.tree.leaves(params)
        sizes = (part_sent(self.averaged_share, leaf.size) * leaf.dtype.itemsize for leaf in leaves)
        return Sends(float(sum(sizes)), gathered=False)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Nodes wait for one another after every update, and for an all-reduce of what is in S."""
        sent = self.sends(inputs.model.params).bytes
        line = nodes.barrier_clock(inputs, methods, between_nodes(inputs.setup.cluster, sent))
        rng = seeds.generator(inputs.setup.seed, "shares")
        draw = rng.integers(2**31, size=len(line.seconds)).astype(np.int32)
        return line._replace(plan=line.plan._replace(draw=draw))

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
