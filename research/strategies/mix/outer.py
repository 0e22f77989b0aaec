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
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from optdyn.basics.trees import Hyper, Tree
from optdyn.core import Apart, Batch, Event, Info, Params, Rule
from optdyn.strategies.mix.fragments import averaged, cut, join, moments
from optdyn.strategies.mix.messages import Messages, over_nodes, own_event, size

Weights = Callable[[jax.Array], tuple[ArrayLike, ArrayLike]]

INNER_STATES = ("kept", "averaged", "reset")


class State(NamedTuple):
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

    def parts(tree: Params) -> tuple[Params, ...]:
        return cut(tree, fragments)

    def init(params: Params) -> State:
        nothing = jax.tree.map(jnp.zeros_like, messages.travelling(params))
        theta = tuple((x, transform.init(x)) if transform else () for x in parts(params))
        kept = tuple(map(messages.kept, parts(params)))
        return State(inner.init(params), nothing, theta, kept, params if corrects else ())

    def turns(event: Event) -> tuple[jax.Array, ...]:
        """The `send`, `receive` and `waited` of every fragment."""
        choice = event.choice
        each = choice.send, choice.receive, choice.waited
        return tuple(jnp.broadcast_to(turn, fragments) for turn in each)

    def averages(event: Event) -> tuple[jax.Array, jax.Array]:
        """Whether first and second moments are averaged after this update."""
        receives, states = turns(event)[1].any(), event.choice.states
        if states is None:
            return receives, receives
        return receives & states[0], receives & states[1]

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        after, info = update(state, event, batch)
        return merge(exchange(after, event), event, state.in_flight), info

    def update(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        """What the node does by itself; `info` counts the bytes that it is about to send."""
        after, info = inner.step(state.inner, own_event(event), batch)
        send, receive, waited = turns(event)
        blocking = receive & (waited == 0)
        each = [messages.size(*of) for of in zip(parts(after.params), blocking, strict=True)]
        sent = jnp.where(send, jnp.stack(each), 0.0).sum() * _peers(event)
        if inner_state == "averaged":
            for now, own in zip(averages(event), moments(after.opt_state), strict=True):
                sent += jnp.where(now, size(own), 0.0)
        info |= {"sent_bytes": sent + info.get("sent_bytes", 0.0)}
        return state._replace(inner=after), info

    def exchange(state: State, event: Event) -> State:
        """Puts what nodes have just sent in flight; fragments not sent stay as they were."""
        send, receive, waited = turns(event)
        decay = dict(event.choice.outer).get("error_decay")
        total = partial(messages.total, to=event.choice.to, decay=decay)

        def of(send: jax.Array, before: Params, *own: Tree) -> tuple[Params, Tree]:
            return lax.cond(send, total, lambda x, theta, kept, _: (before, kept), *own)

        x, present = state.params, event.choice.present
        if present is not None:
            part = present[lax.axis_index("node")]
            x = jax.tree.map(lambda leaf: (part * leaf).astype(leaf.dtype), x)
        own = parts(x), state.outer, state.errors, receive & (waited == 0)
        sent = map(of, send, parts(state.in_flight), *own)
        in_flight, errors = zip(*sent, strict=True)
        state = state._replace(in_flight=join(in_flight), errors=errors)
        if not corrects:
            return state
        ours = parts(state.sent), parts(state.params)
        newest = [
            jax.tree.map(partial(jnp.where, now), new, old)
            for now, old, new in zip(send, *ours, strict=True)
        ]
        return state._replace(sent=join(newest))

    def merge(state: State, event: Event, before: Params) -> State:
        """Merges the fragments received; `before`: what was in flight before this update."""
        _, receive, waited = turns(event)
        hyper = {**event.hyper, **dict(event.choice.outer)}

        def of(receive: jax.Array, *own: Tree) -> tuple[Params, Tree]:
            return lax.cond(receive, partial(merged, hyper), lambda x, theta, *_: (x, theta), *own)

        after = state.inner
        sent = parts(state.sent) if corrects else ((),) * fragments
        own = parts(after.params), state.outer, parts(before), parts(state.in_flight), waited, sent
        x, theta = zip(*map(of, receive, *own), strict=True)
        if inner_state == "averaged":
            mean = over_nodes(messages.senders).mean
            after = after._replace(opt_state=averaged(after.opt_state, averages(event), mean))
        elif inner_state == "reset":
            opt_state = lax.cond(receive.any(), fresh, lambda own: own.opt_state, after)
            after = after._replace(opt_state=opt_state)
        return state._replace(inner=after.moved_to(join(x)), outer=theta)

    def fresh(own: Tree) -> Tree:
        return inner.init(own.params).opt_state

    def merged(
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
        if transform:
            center, opt_state = theta
            gap = jax.tree.map(lambda center, total: center - total / nodes, center, arrived)
            updates, opt_state = transform.update(gap, opt_state, center, **hyper)
            center = optax.apply_updates(center, updates)
            theta, arrived = (center, opt_state), jax.tree.map(lambda leaf: nodes * leaf, center)

        def corrected(x: jax.Array, total: jax.Array, sent: jax.Array) -> jax.Array:
            return total / nodes + (x - sent)

        def mixed(x: jax.Array, total: jax.Array) -> jax.Array:
            w, v = (jnp.asarray(weight, x.dtype) for weight in weights(waited))
            return (w * x + v * total) / (w + v * nodes)

        if corrects:
            return jax.tree.map(corrected, x, arrived, sent), theta
        return jax.tree.map(mixed, x, arrived), theta

    def message(state: State, fragment: int, blocking: bool) -> jax.Array:
        vector, _ = ravel_pytree(messages.travelling(parts(state.params)[fragment], blocking))
        return vector

    def landed(state: State, fragment: int, total: jax.Array) -> State:
        in_flight = list(parts(state.in_flight))
        vector, tree_of = ravel_pytree(in_flight[fragment])
        in_flight[fragment] = tree_of(total.astype(vector.dtype))
        return state._replace(in_flight=join(in_flight))

    def carried(state: State, event: Event) -> State:
        return merge(state, event, state.in_flight)

    is_sum = not (messages.compression or corrects or inner_state == "averaged")
    apart = Apart(update, message, landed, carried, fragments) if is_sum else None
    return Rule(init, step, apart)


def _peers(event: Event) -> ArrayLike:
    """How many messages a node sends: one to all, or one to each of its neighbours."""
    if event.choice.to is None:
        return 1
    node = lax.axis_index("node")
    return (event.choice.to[node] != node).sum().astype(jnp.float32)
