"""Nodes with parameters of their own that meet now and then: one rule for all such methods.

    D     = theta - mean_p x_p(sent)          what the P nodes sent, `waited` updates before
    theta <- theta - outer(D)                 any optax optimizer; by default sgd(1), the mean
    x     <- (w x + v P theta) / (w + v P)    w, v: weights of a node's own parameters, of each sent

The mixing is w / (w + v P): it is 0 where nodes take over theta, and 1 where they ignore it. In
between every node makes updates by itself, by any rule. A merge that corrects has

    x     <- theta + (x - x(sent))            what a node did meanwhile is kept, whole

in the place of the last line (CO2, LOSCAR-SGD: arXiv 2605.20866); nothing was done where it waits.

Over a graph (`over_graph.py`) the mean is over a node's neighbours, and theta is its own.

As in streaming DiLoCo (arXiv 2501.18512) the rule holds for every fragment of the parameters by
itself. Each has an outer optimizer of its own and may have its own times of meeting. At most one
message of a fragment is in flight. Nodes exchange nothing of a fragment that is not sent.

A step is three pieces, one after the other: `update`, the node by itself; `exchange`, the sum of
what the nodes send; `merge`, what a receipt does. Only the second hears of other nodes (and, where
the states of the nodes' optimizers are averaged, the third).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from optdyn.base.trees import Hyper, Tree
from optdyn.core import Apart, Batch, Event, Info, Params, Rule
from optdyn.methods.mix.fragments import averaged, cut, join, moments
from optdyn.methods.mix.messages import Messages, over_nodes, own_event, size, with_sent

Weights = Callable[[jax.Array], tuple[ArrayLike, ArrayLike]]

INNER_STATES = ("kept", "averaged", "reset")


class OuterState(NamedTuple):
    inner: Tree  # of this node
    in_flight: Params  # sum_p x_p(sent), in the type it travels in
    outer: Tree = ()  # of each fragment theta and its optimizer's state, the same where all meet
    errors: Tree = ()  # of each fragment e and the compression's state, this node's
    sent: Tree = ()  # x(sent), this node's, where merges correct

    @property
    def params(self) -> Params:
        """x_t of this node."""
        return self.inner.params


def outer(
    inner: Rule,
    weights: Weights,
    optimizer: optax.GradientTransformation | None = None,
    messages: Messages | None = None,
    fragments: int = 1,
    inner_state: str = "kept",
    corrects: bool = False,
) -> Rule:
    """The rule of one device over the axis `node`, around the one that a node does by itself.

    `event.choice` is a `Meeting`, the same on all nodes but for what is `inner` there. The outer
    optimizer gets the hyperparameters of `outer` beside those of the event; `error_decay` is that
    of what messages left out. The order of a step:
    the node's own update, the sending of its result, the receipt and merge of what was sent
    `waited` updates before, which is what was just sent if that is 0. `weights(waited)` is (w, v);
    a merge that `corrects` has none. Raises `ConfigError` with more fragments than leaves.

    Where a node receives, the state of its inner optimizer is `kept`, `averaged` over the nodes
    (numbers that are no floats, such as counts, are the same in all) or `reset`. With the `states`
    of the event first and second moments are averaged where these say so (`des_loc.py`).
    """
    messages = messages or Messages()
    if messages.compression and not optimizer:  # theta is what messages are differences from
        optimizer = optax.sgd(1.0)
    transform = optax.with_extra_args_support(optimizer) if optimizer else None
    of = Outer(inner, weights, transform, messages, fragments, inner_state, corrects)
    is_sum = not (messages.compression or corrects or inner_state == "averaged")
    apart = Apart(of.update, of.message, of.landed, of.carried, fragments) if is_sum else None
    return Rule(of.init, of.step, apart)


@dataclass(frozen=True, eq=False)
class Outer:
    """The pieces of `outer`'s rule, and what they are made of."""

    inner: Rule
    weights: Weights
    transform: optax.GradientTransformationExtraArgs | None
    messages: Messages
    fragments: int
    inner_state: str
    corrects: bool

    def init(self, params: Params) -> OuterState:
        nothing = jax.tree.map(jnp.zeros_like, self.messages.travelling(params))
        parts, transform = self._parts(params), self.transform
        theta = tuple((x, transform.init(x)) if transform else () for x in parts)
        kept = tuple(map(self.messages.kept, parts))
        sent = params if self.corrects else ()
        return OuterState(self.inner.init(params), nothing, theta, kept, sent)

    def step(self, state: OuterState, event: Event, batch: Batch) -> tuple[OuterState, Info]:
        after, info = self.update(state, event, batch)
        return self._merge(self._exchange(after, event), event, state.in_flight), info

    def update(self, state: OuterState, event: Event, batch: Batch) -> tuple[OuterState, Info]:
        """What the node does by itself; `info` counts the bytes that it is about to send."""
        after, info = self.inner.step(state.inner, own_event(event), batch)
        send, receive, waited = self._turns(event)
        pairs = zip(self._parts(after.params), receive & (waited == 0), strict=True)
        each = [self.messages.size(part, blocking) for part, blocking in pairs]
        sent = jnp.where(send, jnp.stack(each), 0.0).sum() * _peers(event)
        if self.inner_state == "averaged":
            for now, own in zip(self._averages(event), moments(after.opt_state), strict=True):
                sent += jnp.where(now, size(own), 0.0)
        return state._replace(inner=after), with_sent(info, sent)

    def message(self, state: OuterState, fragment: int, blocking: bool) -> jax.Array:
        part = self._parts(state.params)[fragment]
        return ravel_pytree(self.messages.travelling(part, blocking))[0]

    def landed(self, state: OuterState, fragment: int, total: jax.Array) -> OuterState:
        in_flight = list(self._parts(state.in_flight))
        vector, tree_of = ravel_pytree(in_flight[fragment])
        in_flight[fragment] = tree_of(total.astype(vector.dtype))
        return state._replace(in_flight=join(in_flight))

    def carried(self, state: OuterState, event: Event) -> OuterState:
        return self._merge(state, event, state.in_flight)

    def _parts(self, tree: Params) -> tuple[Params, ...]:
        return cut(tree, self.fragments)

    def _turns(self, event: Event) -> tuple[jax.Array, ...]:
        """The `send`, `receive` and `waited` of every fragment."""
        choice = event.choice
        each = choice.send, choice.receive, choice.waited
        return tuple(jnp.broadcast_to(turn, self.fragments) for turn in each)

    def _averages(self, event: Event) -> tuple[jax.Array, jax.Array]:
        """Whether first and second moments are averaged after this update."""
        receives, states = self._turns(event)[1].any(), event.choice.states
        if states is None:
            return receives, receives
        return receives & states[0], receives & states[1]

    def _exchange(self, state: OuterState, event: Event) -> OuterState:
        """Puts what nodes have just sent in flight; fragments not sent stay as they were."""
        send, receive, waited = self._turns(event)
        decay = dict(event.choice.outer).get("error_decay")
        total = partial(self.messages.total, to=event.choice.to, decay=decay)

        def of(send: jax.Array, before: Params, *own: Tree) -> tuple[Params, Tree]:
            return lax.cond(send, total, lambda x, theta, kept, _: (before, kept), *own)

        x, present = state.params, event.choice.present
        if present is not None:
            part = present[lax.axis_index("node")]
            x = jax.tree.map(lambda leaf: (part * leaf).astype(leaf.dtype), x)
        own = self._parts(x), state.outer, state.errors, receive & (waited == 0)
        sent = map(of, send, self._parts(state.in_flight), *own)
        in_flight, errors = zip(*sent, strict=True)
        state = state._replace(in_flight=join(in_flight), errors=errors)
        if not self.corrects:
            return state
        ours = self._parts(state.sent), self._parts(state.params)
        newest = [
            jax.tree.map(partial(jnp.where, now), new, old)
            for now, old, new in zip(send, *ours, strict=True)
        ]
        return state._replace(sent=join(newest))

    def _merge(self, state: OuterState, event: Event, before: Params) -> OuterState:
        """Merges the fragments received; `before`: what was in flight before this update."""
        _, receive, waited = self._turns(event)
        merged = partial(self._merged, {**event.hyper, **dict(event.choice.outer)})

        def of(receive: jax.Array, *own: Tree) -> tuple[Params, Tree]:
            return lax.cond(receive, merged, lambda x, theta, *_: (x, theta), *own)

        after, flying = state.inner, self._parts(state.in_flight)
        sent = self._parts(state.sent) if self.corrects else ((),) * self.fragments
        own = self._parts(after.params), state.outer, self._parts(before), flying, waited, sent
        x, theta = zip(*map(of, receive, *own), strict=True)
        if self.inner_state == "averaged":
            mean = over_nodes(self.messages.senders).mean
            opt_state = averaged(after.opt_state, self._averages(event), mean)
            after = after._replace(opt_state=opt_state)
        elif self.inner_state == "reset":
            opt_state = lax.cond(receive.any(), self._fresh, lambda own: own.opt_state, after)
            after = after._replace(opt_state=opt_state)
        return state._replace(inner=after.moved_to(join(x)), outer=theta)

    def _fresh(self, own: Tree) -> Tree:
        return self.inner.init(own.params).opt_state

    def _merged(
        self,
        hyper: Hyper,
        x: Params,
        theta: Tree,
        before: Params,
        now: Params,
        waited: jax.Array,
        sent: Params,
    ) -> tuple[Params, Tree]:
        """The rule, of a fragment: what the node's parameters and theta become."""
        nodes = lax.axis_size("node")

        def due(x: jax.Array, before: jax.Array, now: jax.Array) -> jax.Array:
            return jnp.where(waited > 0, before, now).astype(x.dtype)

        arrived = jax.tree.map(due, x, before, now)
        if self.transform:
            center, opt_state = theta
            gap = jax.tree.map(lambda center, total: center - total / nodes, center, arrived)
            updates, opt_state = self.transform.update(gap, opt_state, center, **hyper)
            center = optax.apply_updates(center, updates)
            theta, arrived = (center, opt_state), jax.tree.map(lambda leaf: nodes * leaf, center)

        def corrected(x: jax.Array, total: jax.Array, sent: jax.Array) -> jax.Array:
            return total / nodes + (x - sent)

        def mixed(x: jax.Array, total: jax.Array) -> jax.Array:
            w, v = (jnp.asarray(weight, x.dtype) for weight in self.weights(waited))
            return (w * x + v * total) / (w + v * nodes)

        if self.corrects:
            return jax.tree.map(corrected, x, arrived, sent), theta
        return jax.tree.map(mixed, x, arrived), theta


def _peers(event: Event) -> ArrayLike:
    """How many messages a node sends: one to all who are there, or one to each neighbour."""
    node, choice = lax.axis_index("node"), event.choice
    if choice.to is not None:
        return (choice.to[node] != node).sum().astype(jnp.float32)
    if choice.present is None:
        return 1
    part = choice.present[node]  # 0 of who is away, P of who is there alone
    return ((part > 0) & (part < lax.axis_size("node"))).astype(jnp.float32)
