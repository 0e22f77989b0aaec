"""Nodes with parameters of their own that meet now and then: one rule for all such methods.

    D     = theta - mean_p x_p(sent)          what the P nodes sent, `waited` updates before
    theta <- theta - outer(D)                 any optax optimizer; by default sgd(1), the mean
    x     <- (w x + v P theta) / (w + v P)    w, v: weights of a node's own parameters, of each sent

The mixing is w / (w + v P): it is 0 where nodes take over theta, and 1 where they ignore it. In
between every node makes updates by itself, by any strategy.

As in streaming DiLoCo (arXiv 2501.18512) the rule holds for every fragment of the parameters by
itself. Each has an outer optimizer of its own and may have its own times of meeting. At most one
message of a fragment is in flight. Nodes exchange nothing of a fragment that is not sent.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from research.strategies.base import Batch, Event, Info, Params, Strategy
from research.strategies.fragments import cut, join

Weights = Callable[[jax.Array], tuple[Any, Any]]

OWN = ("send", "receive", "waited")  # of `event.control`; all else there is (nodes, ...)


class State(NamedTuple):
    inner: Any  # of this node
    in_flight: Params  # sum_p x_p(sent), in the type it travels in
    outer: Any = ()  # of each fragment theta and its optimizer's state, the same in all nodes

    @property
    def params(self) -> Params:
        return self.inner.params


def outer(
    inner: Strategy,
    weights: Weights,
    optimizer: optax.GradientTransformation | None = None,
    transfer_dtype: str | None = None,
    blocking_dtype: str | None = None,
    senders: str | None = None,
    fragments: int = 1,
) -> Strategy:
    """The rule of one device over the axis `node`, around the strategy that a node does by itself.

    `event.control`: `send`, `receive` (bool) and `waited` (int32, updates), the same on all nodes,
    (fragments,) or scalars for all fragments alike, and of every node what the inner strategy asks
    for. The order of a step: the node's own update, the sending of its result, the receipt and
    merge of what was sent `waited` updates before, which is what was just sent if that is 0.
    `weights(waited)` is (w, v). Raises `ConfigError` with more fragments than leaves.

    Messages and their sums are of `transfer_dtype`, by default of the type of the parameters, and
    those that nobody computes behind (`waited` = 0) of `blocking_dtype`. A node sends its message
    once: each of its real devices, those of the axis `senders`, sends its own part of it and gets
    the rest of the sum from the others.
    """
    exchange = (
        partial(in_parts, senders=senders) if senders else partial(lax.psum, axis_name="node")
    )

    def init(params: Params) -> State:
        nothing = jax.tree.map(lambda leaf: jnp.zeros_like(travelling(leaf)), params)
        theta = tuple((x, optimizer.init(x)) if optimizer else () for x in cut(params, fragments))
        return State(inner.init(params), nothing, theta)

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        control = event.control or {}
        turns = (jnp.broadcast_to(control[name], fragments) for name in OWN)
        node, staleness = lax.axis_index("node"), event.staleness
        own = {name: v[node] for name, v in control.items() if name not in OWN}
        if staleness is not None and jnp.ndim(staleness):  # that of every node
            staleness = staleness[node]
        own_event = event._replace(control=own, staleness=staleness)
        after, info = inner.step(state.inner, own_event, batch)
        x, in_flight = cut(after.params, fragments), cut(state.in_flight, fragments)
        met = map(meet, x, state.outer, in_flight, *turns)
        x, theta, in_flight, sent = zip(*met, strict=True)
        info |= {"sent_bytes": sum(sent)}
        return State(after.moved_to(join(x)), join(in_flight), theta), info

    def meet(
        x: Params,
        theta: Any,
        before: Params,
        send: jax.Array,
        receive: jax.Array,
        waited: jax.Array,
    ) -> tuple[Params, Any, Params, jax.Array]:
        """One fragment: what it is, its theta, what is in flight of it, and the bytes sent."""
        blocking = receive & (waited == 0)
        in_flight = lax.cond(send, total, lambda *_: before, x, blocking)
        meeting = x, theta, before, in_flight, waited
        x, theta = lax.cond(receive, merged, lambda x, theta, *_: (x, theta), *meeting)
        sent = jnp.where(blocking, _bytes(in_flight, blocking_dtype), _bytes(in_flight))
        return x, theta, in_flight, jnp.where(send, sent, 0.0)

    def travelling(leaf: jax.Array) -> jax.Array:
        return leaf.astype(transfer_dtype or leaf.dtype)

    def total(params: Params, blocking: jax.Array) -> Params:
        def sums(params: Params) -> Params:
            return exchange(jax.tree.map(travelling, params))

        def short(params: Params) -> Params:
            messages = jax.tree.map(lambda leaf: leaf.astype(blocking_dtype), params)
            return jax.tree.map(
                lambda now, leaf: now.astype(travelling(leaf).dtype),
                exchange(messages),
                params,
            )

        return lax.cond(blocking, short, sums, params) if blocking_dtype else sums(params)

    def merged(
        x: Params, theta: Any, before: Params, now: Params, waited: jax.Array
    ) -> tuple[Params, Any]:
        nodes = lax.axis_size("node")

        def due(x: jax.Array, before: jax.Array, now: jax.Array) -> jax.Array:
            return jnp.where(waited > 0, before, now).astype(x.dtype)

        arrived = jax.tree.map(due, x, before, now)
        if optimizer:
            center, opt_state = theta
            gap = jax.tree.map(lambda center, total: center - total / nodes, center, arrived)
            updates, opt_state = optimizer.update(gap, opt_state, center)
            center = optax.apply_updates(center, updates)
            theta, arrived = (center, opt_state), jax.tree.map(lambda leaf: nodes * leaf, center)

        def mixed(x: jax.Array, total: jax.Array) -> jax.Array:
            w, v = (jnp.asarray(weight, x.dtype) for weight in weights(waited))
            return (w * x + v * total) / (w + v * nodes)

        return jax.tree.map(mixed, x, arrived), theta

    return Strategy(init, step)


def _bytes(tree: Params, dtype: str | None = None) -> jax.Array:
    """Of a message, float32; of its own types where there is no other."""
    leaves = jax.tree.leaves(tree)
    return jnp.float32(sum(leaf.size * jnp.dtype(dtype or leaf.dtype).itemsize for leaf in leaves))


def in_parts(tree: Params, senders: str) -> Params:
    """The sum over the nodes, of which each device of a node adds up the part that is its own."""
    vector, tree_of = ravel_pytree(tree)
    devices = lax.axis_size(senders)
    padded = jnp.pad(vector, (0, -len(vector) % devices)).reshape(devices, -1)
    own = lax.psum(padded[lax.axis_index(senders)], "node")
    return tree_of(lax.all_gather(own, senders).reshape(-1)[: len(vector)])
