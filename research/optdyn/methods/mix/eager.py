"""Eager updates of DiLoCo (Kale, Douillard and Donchev, arXiv 2502.12996).

    D_i     = theta_i - x_i                   every H updates, of P nodes; it is sent, and arrives
                                              one meeting later
    G_i     = 1/P D_i + 1/P sum_{j != i} D_j(the meeting before)
    m_i     <- mu m_i + G_i
    theta_i <- theta_i - eta (G_i + mu m_i)   x_i <- theta_i

A node's own way counts at once, that of the others when it is there; at the first meeting these
have sent nothing yet. So an all-reduce has H updates of time, and nodes are never quite equal. With
one node it is DiLoCo's rule, and with mu = 0 Lookahead's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from optdyn.base.errors import Join
from optdyn.base.trees import Params, Tree
from optdyn.clock.base import Meeting, Timeline, undelayed
from optdyn.clock.network import between_nodes, broadcast
from optdyn.clock.nodes import Within, of_meetings
from optdyn.core import Batch, Event, Info, Rule
from optdyn.methods.method import ClockInputs, Methods, Mixes
from optdyn.methods.mix import nodes
from optdyn.methods.mix.averaging_clock import turns
from optdyn.methods.mix.diloco import nesterov
from optdyn.methods.mix.messages import over_nodes, own_event, size, with_sent
from optdyn.methods.setup import Setup
from optdyn.methods.shared_fields import OuterMomentum, Periodic


class EagerState(NamedTuple):
    inner: Tree  # of this node
    theta: Params
    outer: Tree  # the outer optimizer's
    others: Params  # sum_{j != i} D_j, of the last meeting

    @property
    def params(self) -> Params:
        return self.inner.params


def eager(
    inner: Rule, rule: optax.GradientTransformationExtraArgs, senders: str | None = None
) -> Rule:
    """The rule of one device over the axis `node`; `event.choice` is a `Meeting`."""

    def init(params: Params) -> EagerState:
        nothing = jax.tree.map(jnp.zeros_like, params)
        return EagerState(inner.init(params), params, rule.init(params), nothing)

    def step(state: EagerState, event: Event, batch: Batch) -> tuple[EagerState, Info]:
        after, info = inner.step(state.inner, own_event(event), batch)
        send = event.choice.send[0]
        hyper = {**event.hyper, **dict(event.choice.outer)}

        def met(state: EagerState) -> EagerState:
            count = lax.axis_size("node")
            own = jax.tree.map(jnp.subtract, state.theta, state.params)
            gap = jax.tree.map(lambda d, rest: (d + rest) / count, own, state.others)
            updates, outer = rule.update(gap, state.outer, state.theta, **hyper)
            theta = optax.apply_updates(state.theta, updates)
            others = jax.tree.map(jnp.subtract, over_nodes(senders).sums(own), own)
            return EagerState(state.inner.moved_to(theta), theta, outer, others)

        state = lax.cond(send, met, lambda state: state, state._replace(inner=after))
        sent = jnp.where(send, size(state.theta), 0.0)
        return state, with_sent(info, sent)

    return Rule(init, step)


@dataclass(frozen=True)
class Eager(Mixes, Periodic, OuterMomentum, name="eager"):
    cluster = ("overlap", "speeds", "latencies", "bandwidths", "regions")
    info = ("sent_bytes",)

    def mix(self, inner: Rule, senders: str | None = None) -> Rule:
        return eager(inner, nesterov(), senders)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """Nodes wait at a meeting for what was sent at the one before, and for nobody else."""
        steps = setting.setup.steps
        within = nodes.inside(setting, methods)(steps)
        meeting = turns(steps, self.period, 1, 0)
        rate, momentum = self.outer_learning_rate, self.outer_momentum
        numbers = {"outer_learning_rate": rate, "outer_momentum": momentum}
        outer = {key: np.full(steps, value, np.float32) for key, value in numbers.items()}
        late = np.where(meeting.send, np.int32(self.period), np.int32(0))
        meeting = meeting._replace(outer=outer, waited=late)
        seconds = setting.held.seconds if setting.held else _seconds(setting, within, meeting)
        return of_meetings(meeting, within, seconds)

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)


def _seconds(setting: ClockInputs, within: Within, meeting: Meeting) -> np.ndarray:
    """(steps,) at which the last node is done with each update; a message leaves with the last."""
    cluster, size = setting.setup.cluster, setting.update_bytes
    transfer, handed_on = between_nodes(cluster, size), broadcast(cluster, size)
    now, arrival, seconds = np.zeros(cluster.nodes), 0.0, np.zeros(len(meeting.send))
    for t, send in enumerate(meeting.send[:, 0]):
        first, now = now + within.ready[t], now + within.done[t]
        if send:
            before, now = arrival, np.maximum(now, arrival)
            arrival = max(max(first.max(), before) + transfer, now.max()) + handed_on
        seconds[t] = now.max()
    return undelayed(seconds)
