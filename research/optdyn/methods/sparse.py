"""Nodes that send sparse messages: the largest numbers, the largest frequencies, a random share.

SparseLoCo keeps what a message left out in an error, DeMo in the momentum. DeMo's and SPARTA's
nodes wait after every update for the last node and its exchange (`nodes.barrier_clock`).
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
from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.base.ranges import PART
from optdyn.base.trees import Array, Tree
from optdyn.clock.network import all_gather, between_nodes
from optdyn.clock.timeline import Timeline
from optdyn.core import Batch, Event, Info, Params, Rule, State
from optdyn.methods import nodes
from optdyn.methods.averaging import ModelAveraging
from optdyn.methods.messages import (
    SIMULATED,
    Collectives,
    Compression,
    add_sent_bytes,
    count_sent,
    event_of_node,
    quantizer,
    size,
    top_k,
)
from optdyn.methods.method import FRACTION, ClockInputs, MethodStack, Mixes, NodeMessage, OuterRate
from optdyn.methods.setup import Setup


@dataclass(frozen=True)
class SparseLoCo(ModelAveraging, OuterRate, name="sparseloco"):
    """SparseLoCo (Sarfi et al., arXiv 2508.15706): sparse messages, errors in place of momentum.

        D_i   = theta - x_i                       every H updates, of P nodes
        e_i   <- beta e_i + D_i
        s_i   = Q_b(top-k(e_i))                   the share k of an array's numbers, b bits each
        e_i   <- e_i - s_i
        theta <- theta - a 1/P sum_i s_i          x_i <- theta

    With beta = 1, a = 1 and b = 32 it is model averaging with top-k and error feedback. There is no
    outer momentum: the error of each node acts as one.
    """

    error_decay: float = field(0.95, "beta, decay of an error per message.", **FRACTION)

    cluster = (*nodes.LINKED, "diurnal")
    allows_graphs = False  # messages are differences from a theta that all nodes have
    mean_hyper = MappingProxyType({"outer_learning_rate": 1.0, "error_decay": 1.0})

    def outer(self) -> optax.GradientTransformationExtraArgs:
        def update(
            gap: Tree, state: Tree, params: Params | None = None, **hyper: Array
        ) -> tuple[Params, Tree]:
            return jax.tree.map(lambda leaf: -hyper["outer_learning_rate"] * leaf, gap), state

        return optax.GradientTransformationExtraArgs(optax.identity().init, update)

    def compressor(self) -> Compression:
        sent = quantizer(self.compression_bits, self.compression_block)
        return top_k(self.compression_share, sent)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        yield self.compression_join("", "top_k")

    def why_no_overlap(self) -> str:
        return "sends the largest numbers of an array only"


PLACE = 2  # bytes of a coefficient's place in its chunk, and so at most 256 rows and columns
Largest = tuple[jax.Array, jax.Array]  # (chunks, k) coefficients, and their places, uint16


class Chunks(NamedTuple):
    """An array as a matrix of blocks (chunks), with the discrete cosine transform of each.

        C     = A X B^T                           of a chunk X; A and B have the cosines as rows
        top-k: the k largest |C| of the chunk     each with its place in it
        X     = A^T C B                           as A and B are orthonormal

    The matrix is of an array's last axis by all others; a vector is one row. Each side of a chunk
    is the largest number, at most c, that divides the matrix's side evenly.
    """

    rows: int  # rows of blocks
    height: int  # rows of a block
    columns: int
    width: int

    def encode(self, leaf: jax.Array) -> jax.Array:
        """Returns the coefficients of an array, (chunks, height * width)."""
        blocks = leaf.reshape(self.rows, self.height, self.columns, self.width)
        up, across = cosines(self.height), cosines(self.width)
        coefficients = jnp.einsum("iajb,ua,vb->ijuv", blocks, up, across, precision="highest")
        return coefficients.reshape(self.rows * self.columns, -1)

    def decode(self, coefficients: jax.Array, like: jax.Array) -> jax.Array:
        blocks = coefficients.reshape(self.rows, self.columns, self.height, self.width)
        up, across = cosines(self.height), cosines(self.width)
        array = jnp.einsum("ijuv,ua,vb->iajb", blocks, up, across, precision="highest")
        return array.astype(like.dtype).reshape(like.shape)

    def largest(self, leaf: jax.Array, count: int) -> Largest:
        coefficients = self.encode(leaf)
        _, place = jax.lax.top_k(jnp.abs(coefficients), self._count(count))
        return jnp.take_along_axis(coefficients, place, axis=1), place.astype(jnp.uint16)

    def spread(self, sent: Largest) -> jax.Array:
        """Returns what was sent in its places, and 0 elsewhere, (chunks, height * width)."""
        values, place = sent
        zeros = jnp.zeros((self.rows * self.columns, self.height * self.width), values.dtype)
        return zeros.at[jnp.arange(len(values))[:, None], place.astype(jnp.int32)].set(values)

    def sent_bytes(self, count: int, leaf: Array) -> int:
        """Returns the bytes of the `largest` coefficients of an array, with their places."""
        return self.rows * self.columns * self._count(count) * (leaf.dtype.itemsize + PLACE)

    def _count(self, count: int) -> int:
        return min(count, self.height * self.width)


def chunks(shape: tuple[int, ...], most: int) -> Chunks:
    """Returns the chunks of an array of that shape, of at most `most` numbers a side."""
    rows, columns = prod(shape[:-1]), (shape or (1,))[-1]
    height, width = (
        max(d for d in range(1, min(n, most) + 1) if n % d == 0) for n in (rows, columns)
    )
    return Chunks(rows // height, height, columns // width, width)


def cosines(n: int) -> np.ndarray:
    """Returns the orthonormal discrete cosine transform, (n, n): its inverse is its transpose."""
    u, x = np.arange(n)[:, None], np.arange(n)
    rows = np.sqrt(2 / n) * np.cos(np.pi * (2 * x + 1) * u / (2 * n))
    rows[0] /= np.sqrt(2)
    return rows.astype(np.float32)


class DeMoState(NamedTuple):
    inner: Tree  # the state of the inner rule, at theta
    momentum: Params  # m of this node

    @property
    def params(self) -> Params:
        return self.inner.params


def demo(
    inner: Rule,
    chunk: int,
    coefficients: int,
    signed: bool = True,
    collectives: Collectives = SIMULATED,
) -> Rule[DeMoState]:
    """Returns the rule of a device over `node`; `event.plan` is an `AllReduceStep` with beta."""

    def init(params: Params) -> DeMoState:
        return DeMoState(inner.init(params), jax.tree.map(jnp.zeros_like, params))

    def step(state: DeMoState, event: Event, batch: Batch) -> tuple[DeMoState, Info]:
        after, info = inner.step(state.inner, event_of_node(event), batch)
        beta, before = event.plan.numbers["momentum_decay"], state.params
        decayed = jax.tree.map(
            lambda m, x, y: beta.astype(m.dtype) * m + x - y, state.momentum, before, after.params
        )
        momenta, treedef = jax.tree.flatten(decayed)
        blocks = [chunks(m.shape, chunk) for m in momenta]
        q = [chunking.largest(m, coefficients) for chunking, m in zip(blocks, momenta, strict=True)]
        momenta_left, Q = [], []
        for chunking, m, sent, rows in zip(blocks, momenta, q, collectives.gather(q), strict=True):
            momenta_left.append(m - chunking.decode(chunking.spread(sent), m))
            Q.append(chunking.decode(jax.vmap(chunking.spread)(rows).mean(axis=0), m))
        if signed:
            gamma = jnp.asarray(event.hyper["learning_rate"])
            Q = [gamma.astype(x.dtype) * jnp.sign(x) for x in Q]
        theta = jax.tree.map(jnp.subtract, before, jax.tree.unflatten(treedef, Q))
        state = DeMoState(after.moved_to(theta), jax.tree.unflatten(treedef, momenta_left))
        return state, add_sent_bytes(info, size(q))

    return Rule(init, step)


@dataclass(frozen=True)
class DeMo(Mixes, name="demo"):
    """DeMo (Peng et al., arXiv 2411.19870): nodes send the largest frequencies of their momenta.

        m_i   <- beta m_i + gamma g_i             gamma g_i: an update of node i by itself
        q_i   = top-k(DCT(m_i))                   k coefficients of every chunk
        m_i   <- m_i - IDCT(q_i)                  what is sent is taken off
        Q     = IDCT(1/P sum_j q_j)
        theta <- theta - gamma sign(Q)            or theta - Q, where steps are not `signed`

    All nodes have the same theta after every update, and different momenta. With all coefficients
    this is SGD of the mean gradient, or of its sign.
    """

    momentum_decay: float = field(0.999, "beta, decay of a node's momentum.", **FRACTION)
    chunk: int = field(
        64, "c, rows and columns of a chunk at most.", at_least=1, at_most=256, static=True
    )
    coefficients: int = field(
        32, "k, coefficients that are sent of each chunk.", at_least=1, static=True
    )
    signed: bool = field(True, "Whether steps are of the sign only.", static=True)

    cluster = nodes.LINKED
    info = ("sent_bytes",)

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        return demo(inner, self.chunk, self.coefficients, self.signed, collectives)

    def update_message(self, params: Params) -> NodeMessage:
        sizes = (
            chunks(leaf.shape, self.chunk).sent_bytes(self.coefficients, leaf)
            for leaf in jax.tree.leaves(params)
        )
        return NodeMessage(float(sum(sizes)), gathered=True)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        sent = self.update_message(inputs.model.params).bytes
        line = nodes.barrier_clock(inputs, methods, all_gather(inputs.setup.cluster, sent))
        beta = np.full(len(line.seconds), self.momentum_decay, np.float32)
        return line._replace(plan=line.plan._replace(numbers={"momentum_decay": beta}))

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        if self.signed:
            yield nodes.has_rate(setup)


def places(draw: Array, number: int, count: int, share: float) -> jax.Array:
    """Returns the indices in S of an array's `count` numbers, (ceil(share count),) int32."""
    key = jax.random.fold_in(jax.random.key(draw), number)
    return jax.lax.top_k(jax.random.uniform(key, (count,)), count_sent(share, count))[1]


def sparta(inner: Rule, share: float, collectives: Collectives = SIMULATED) -> Rule:
    """Returns the rule of a device over `node`; `event.plan` is an `AllReduceStep` with draws."""

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        after, info = inner.step(state, event_of_node(event), batch)
        leaves, treedef = jax.tree.flatten(after.params)
        flat = [leaf.reshape(-1) for leaf in leaves]
        indices = [places(event.plan.draw, n, x.size, share) for n, x in enumerate(flat)]
        sent = [x[at] for x, at in zip(flat, indices, strict=True)]
        means = collectives.mean(sent)
        moved = [x.at[at].set(mean) for x, at, mean in zip(flat, indices, means, strict=True)]
        merged = [x.reshape(leaf.shape) for x, leaf in zip(moved, leaves, strict=True)]
        params = jax.tree.unflatten(treedef, merged)
        return after.moved_to(params), add_sent_bytes(info, size(sent))

    return Rule(inner.init, step)


@dataclass(frozen=True)
class Sparta(Mixes, name="sparta"):
    """SPARTA: nodes average a random share of their parameters after every update.

        S      <- a share s of the numbers of every array, drawn anew, the same on all nodes
        x_i[S] <- 1/P sum_j x_j[S]        other numbers stay

    Beton et al. (EXO Labs), "Improving the efficiency of distributed training using sparse
    parameter averaging", openreview.net/forum?id=stFPf3gzq1, 2025. Nodes draw S from one seed, so
    that no places travel. With s = 1 it is model averaging after every update.
    """

    averaged_share: float = field(
        0.01,
        "s, share of an array's numbers that are averaged after an update.",
        **PART,
        static=True,
    )

    cluster = nodes.LINKED
    info = ("sent_bytes",)

    def mix(self, inner: Rule, collectives: Collectives = SIMULATED) -> Rule:
        return sparta(inner, self.averaged_share, collectives)

    def update_message(self, params: Params) -> NodeMessage:
        leaves = jax.tree.leaves(params)
        sizes = (
            count_sent(self.averaged_share, leaf.size) * leaf.dtype.itemsize for leaf in leaves
        )
        return NodeMessage(float(sum(sizes)), gathered=False)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        sent = self.update_message(inputs.model.params).bytes
        line = nodes.barrier_clock(inputs, methods, between_nodes(inputs.setup.cluster, sent))
        rng = seeds.generator(inputs.setup.seed, "shares")
        draw = rng.integers(2**31, size=len(line.seconds)).astype(np.int32)
        return line._replace(plan=line.plan._replace(draw=draw))
