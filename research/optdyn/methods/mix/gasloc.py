"""GASLoC (Cagnasso, Belilovsky, Oyallon, arXiv 2606.11081): local updates, gossip and momentum.

    y_i     = theta_i + eta (x_i - theta_i)     every H updates, of which node i has made x_i
    theta_i <- y_i - alpha (Lambda y)_i + gamma (y_i - y_i')
    x_i     <- theta_i                          y': y of the meeting before, at first theta

Lambda is the Laplacian of the graph, and alpha Lambda = I - W with W as in `gossip`: a node sends y
to its neighbours, and pairs take their mean. In DiLoCo's terms, D = theta - x and m <- gamma m + D,
y - y' is -eta m. So the mean over the nodes is DiLoCo's theta on every graph, as long as gradients
are of one quadratic. A node's momentum has in it what the meeting before has done to it, and eta
does not scale the pull to the neighbours, as it does in `diloco+gossip`. With gamma = 0 and eta = 1
it is `model_averaging+gossip`.

The equation is that of a catalogue (junaidaliop.github.io/zij); the paper itself was not read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from optdyn.base.errors import Join
from optdyn.base.trees import Tree
from optdyn.clock import graphs
from optdyn.clock.base import Timeline
from optdyn.core import Batch, Event, Info, Params, Rule
from optdyn.methods.method import ClockInputs, Methods, Mixes, ModelInfo
from optdyn.methods.mix import nodes, over_graph
from optdyn.methods.mix.averaging_clock import turns
from optdyn.methods.mix.messages import neighbours, over_nodes, own_event, size, with_sent
from optdyn.methods.mix.model_averaging import ALWAYS_THERE
from optdyn.methods.setup import Setup
from optdyn.methods.shared_fields import OnGraph, OuterMomentum, Periodic


class GASLoCState(NamedTuple):
    inner: Tree  # of this node, at x
    theta: Params  # of this node, where it was after the last meeting
    y: Params  # of this node, at the last meeting

    @property
    def params(self) -> Params:
        """x."""
        return self.inner.params


def gasloc(inner: Rule, senders: str | None = None) -> Rule:
    """The rule of one device over the axis `node`; `event.choice` is a `Meeting` over a graph."""

    def init(params: Params) -> GASLoCState:
        return GASLoCState(inner.init(params), params, params)

    def step(state: GASLoCState, event: Event, batch: Batch) -> tuple[GASLoCState, Info]:
        after, info = inner.step(state.inner, own_event(event), batch)
        node, choice = lax.axis_index("node"), event.choice
        eta, gamma = (choice.outer[key] for key in ("outer_learning_rate", "outer_momentum"))

        def local(theta: jax.Array, x: jax.Array) -> jax.Array:
            return theta + eta.astype(x.dtype) * (x - theta)

        def momentum(heard: jax.Array, y: jax.Array, before: jax.Array) -> jax.Array:
            return heard + gamma.astype(y.dtype) * (y - before)

        def met(x: Params, theta: Params, before: Params) -> tuple[Params, Params, Params]:
            y = jax.tree.map(local, theta, x)
            heard = neighbours(over_nodes(senders), choice.to).mean(y)  # W y
            theta = jax.tree.map(momentum, heard, y, before)
            return theta, theta, y

        own = after.params, state.theta, state.y
        x, theta, y = lax.cond(choice.send.all(), met, lambda *own: own, *own)
        peers = (choice.to[node] != node).sum().astype(jnp.float32)
        sent = jnp.where(choice.send.all(), size(y) * peers, 0.0)
        return GASLoCState(after.moved_to(x), theta, y), with_sent(info, sent)

    return Rule(init, step)


@dataclass(frozen=True)
class GASLoC(Mixes, OnGraph, Periodic, OuterMomentum, name="gasloc"):
    cluster = ALWAYS_THERE
    info = ("sent_bytes",)

    @property
    def cycle(self) -> int:
        return self.period

    def mix(self, inner: Rule, senders: str | None = None) -> Rule:
        return gasloc(inner, senders)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """A node waits for its neighbours' y, and for nobody else."""
        steps = setting.setup.steps
        line = over_graph.clock(self.graph, turns(steps, self.period, 1, 0), setting, methods)
        numbers = {key: getattr(self, key) for key in ("outer_learning_rate", "outer_momentum")}
        outer = {key: np.full(steps, value, np.float32) for key, value in numbers.items()}
        return line._replace(choice=line.choice._replace(outer=outer))

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
        yield from over_graph.joins(self.graph, methods)

    def report(self, setup: Setup, network: ModelInfo) -> Mapping[str, object]:
        return graphs.report(self.graph, setup.cluster.nodes)
