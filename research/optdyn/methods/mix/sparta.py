"""SPARTA: nodes average a random share of their parameters after every update.

    S      <- a share s of the numbers of every array, drawn anew, the same on all nodes
    x_i[S] <- 1/P sum_j x_j[S]        what is not in S stays

Sparse parameter averaging is of EXO Labs (Beton et al., "Improving the efficiency of distributed
training using sparse parameter averaging", openreview.net/forum?id=stFPf3gzq1, 2025). Nodes draw S
from one seed, so that no places travel, and the numbers are added up on their way. With s = 1 it is
model averaging after every update, and with SGD inside synchronous SGD.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from optdyn.base import seeds
from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.base.ranges import PART
from optdyn.base.trees import Array
from optdyn.clock.base import Timeline
from optdyn.clock.network import between_nodes
from optdyn.core import Batch, Event, Info, Params, Rule, State
from optdyn.methods.method import ClockInputs, Methods, Mixes, Sends
from optdyn.methods.mix import nodes
from optdyn.methods.mix.averaging_clock import every_update
from optdyn.methods.mix.compression import part
from optdyn.methods.mix.messages import over_nodes, own_event, size, with_sent
from optdyn.methods.setup import Setup


def places(draw: Array, number: int, count: int, share: float) -> jax.Array:
    """(ceil(share count),) int32: of array `number`, of so many numbers, those in S."""
    key = jax.random.fold_in(jax.random.key(draw), number)
    return jax.lax.top_k(jax.random.uniform(key, (count,)), part(share, count))[1]


def sparta(inner: Rule, share: float, senders: str | None = None) -> Rule:
    """The rule of one device over the axis `node`; `event.choice` is `Together`, with draws."""

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        after, info = inner.step(state, own_event(event), batch)
        leaves, tree_of = jax.tree.flatten(after.params)
        flat = [leaf.reshape(-1) for leaf in leaves]
        chosen = [places(event.choice.draw, n, x.size, share) for n, x in enumerate(flat)]
        sent = [x[at] for x, at in zip(flat, chosen, strict=True)]
        means = over_nodes(senders).mean(sent)
        moved = [x.at[at].set(mean) for x, at, mean in zip(flat, chosen, means, strict=True)]
        whole = [x.reshape(leaf.shape) for x, leaf in zip(moved, leaves, strict=True)]
        params = jax.tree.unflatten(tree_of, whole)
        return after.moved_to(params), with_sent(info, size(sent))

    return Rule(inner.init, step)


@dataclass(frozen=True)
class Sparta(Mixes, name="sparta"):
    averaged_share: float = field(
        0.01,
        "s, the share of an array's numbers that are averaged after an update.",
        **PART,
        static=True,
    )

    cluster = ("overlap", "speeds", "latencies", "bandwidths", "regions")
    info = ("sent_bytes",)

    def mix(self, inner: Rule, senders: str | None = None) -> Rule:
        return sparta(inner, self.averaged_share, senders)

    def sends(self, params: Params) -> Sends:
        leaves = jax.tree.leaves(params)
        each = (part(self.averaged_share, leaf.size) * leaf.dtype.itemsize for leaf in leaves)
        return Sends(float(sum(each)), gathered=False)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """Nodes wait for one another after every update, and for an all-reduce of what is in S."""
        sent = self.sends(setting.model.params).bytes
        line = every_update(setting, methods, between_nodes(setting.setup.cluster, sent))
        rng = seeds.generator(setting.setup.seed, "shares")
        draw = rng.integers(2**31, size=len(line.seconds)).astype(np.int32)
        return line._replace(choice=line.choice._replace(draw=draw))

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
