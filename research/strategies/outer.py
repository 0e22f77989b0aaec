"""Nodes with parameters of their own that meet now and then: one rule for all such methods.

    D     = theta - mean_p x_p(sent)          what the P nodes sent, `waited` updates before
    theta <- theta - outer(D)                 any optax optimizer; by default sgd(1), the mean
    x     <- (w x + v P theta) / (w + v P)    w, v: weights of a node's own parameters, of each sent

The mixing is w / (w + v P): it is 0 where nodes take over theta, and 1 where they ignore it. In
between every node makes updates by itself, by any strategy.

With a compression C (`compression.py`) a node sends M = C(x - theta + e), so that x(sent) is
theta + M, and keeps what it left out, e <- x - theta + e - M, for its next message.

As in streaming DiLoCo (arXiv 2501.18512) the rule holds for every fragment of the parameters by
itself. Each has an outer optimizer of its own and may have its own times of meeting. At most one
message of a fragment is in flight. Nodes exchange nothing of a fragment that is not sent.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from research.strategies.base import Batch, Event, Info, Params, Strategy
from research.strategies.fragments import cut, join
from research.strategies.messages import Compression, over_nodes, own_event

Weights = Callable[[jax.Array], tuple[Any, Any]]

OWN = ("send", "receive", "waited")  # of `event.control`; all else there is (nodes, ...)
INNER_STATES = ("kept", "averaged", "reset")


class State(NamedTuple):
    inner: Any  # of this node
    in_flight: Params  # sum_p x_p(sent), in the type it travels in
    outer: Any = ()  # of each fragment theta and its optimizer's state, the same in all nodes
    errors: Any = ()  # of each fragment e and the compression's state, this node's

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
    inner_state: str = "kept",
    compression: Compression | None = None,
    numbers: Sequence[str] = (),
) -> Strategy:
    """The rule of one device over the axis `node`, around the strategy that a node does by itself.

    `event.control`: `send`, `receive` (bool) and `waited` (int32, updates), the same on all nodes,
    (fragments,) or scalars for all fragments alike; the outer optimizer's `numbers`, scalars, which
    it gets as further arguments beside the event's hyperparameters; and of every node what the
    inner strategy asks for. The order of a step: the node's own update, the sending of its result,
    the receipt and merge of what was sent `waited` updates before, which is what was just sent if
    that is 0. `weights(waited)` is (w, v). Raises `ConfigError` with more fragments than leaves.

    Where a node receives, the state of its inner optimizer is `kept`, `averaged` over the nodes
    (numbers that are no floats, such as counts, are the same in all) or `reset`.

    Messages and their sums are of `transfer_dtype`, by default of the type of the parameters, and
    those that nobody computes behind (`waited` = 0) of `blocking_dtype`; those of a `compression`
    are its own. A node sends its message once: each of its real devices, those of the axis
    `senders`, sends its own part of it and gets the rest from the others.
    """
    over = over_nodes(senders)
    if compression and not optimizer:  # theta is what messages are differences from
        optimizer = optax.sgd(1.0)
    rule = optax.with_extra_args_support(optimizer) if optimizer else None

    def init(params: Params) -> State:
        nothing = jax.tree.map(lambda leaf: jnp.zeros_like(travelling(leaf)), params)
        theta = tuple((x, rule.init(x)) if rule else () for x in cut(params, fragments))
        errors = tuple(
            (jax.tree.map(jnp.zeros_like, x), compression.init(x)) if compression else ()
            for x in cut(params, fragments)
        )
        return State(inner.init(params), nothing, theta, errors)

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        control = event.control or {}
        turns = [jnp.broadcast_to(control[name], fragments) for name in OWN]
        after, info = inner.step(state.inner, own_event(event, (*OWN, *numbers)), batch)
        hyper = {**event.hyper, **{name: control[name] for name in numbers}}
        x, in_flight = cut(after.params, fragments), cut(state.in_flight, fragments)
        met = map(partial(meet, hyper), x, state.outer, state.errors, in_flight, *turns)
        x, theta, errors, in_flight, sent = zip(*met, strict=True)
        received = turns[1].any()
        info |= {"sent_bytes": sum(sent) + info.get("sent_bytes", 0.0)}
        if inner_state == "averaged":
            size = _bytes(_floats(after.opt_state))
            info["sent_bytes"] += jnp.where(received, size, 0.0)
        if inner_state != "kept":
            after = after._replace(
                opt_state=lax.cond(received, settled, lambda after: after.opt_state, after)
            )
        return State(after.moved_to(join(x)), join(in_flight), theta, errors), info

    def meet(
        hyper: Mapping[str, Any],
        x: Params,
        theta: Any,
        errors: Any,
        before: Params,
        send: jax.Array,
        receive: jax.Array,
        waited: jax.Array,
    ) -> tuple[Params, Any, Any, Params, jax.Array]:
        """One fragment: what it is, its theta, its errors, what is in flight of it, bytes sent."""
        blocking = receive & (waited == 0)

        def unsent(x: Params, theta: Any, errors: Any, *_: Any) -> tuple[Params, Any]:
            return before, errors

        in_flight, errors = lax.cond(send, total, unsent, x, theta, errors, blocking)
        meeting = x, theta, before, in_flight, waited
        take = partial(merged, hyper)
        x, theta = lax.cond(receive, take, lambda x, theta, *_: (x, theta), *meeting)
        sent = jnp.where(blocking, _bytes(in_flight, blocking_dtype), _bytes(in_flight))
        if compression:
            sent = jnp.float32(sum(compression.messages(x)))
        return x, theta, errors, in_flight, jnp.where(send, sent, 0.0)

    def travelling(leaf: jax.Array) -> jax.Array:
        return leaf.astype(transfer_dtype or leaf.dtype)

    def total(x: Params, theta: Any, errors: Any, blocking: jax.Array) -> tuple[Params, Any]:
        def sums(params: Params) -> Params:
            return over.sums(jax.tree.map(travelling, params))

        def short(params: Params) -> Params:
            messages = jax.tree.map(lambda leaf: leaf.astype(blocking_dtype), params)
            return jax.tree.map(
                lambda now, leaf: now.astype(travelling(leaf).dtype),
                over.sums(messages),
                params,
            )

        if compression:
            return compressed(x, theta, errors)
        return (lax.cond(blocking, short, sums, x) if blocking_dtype else sums(x)), errors

    def compressed(x: Params, theta: Any, errors: Any) -> tuple[Params, Any]:
        assert compression
        (center, _), (error, state) = theta, errors
        whole = jax.tree.map(lambda x, center, error: x - center + error, x, center, error)
        mean, own, state = compression.apply(over, whole, state)
        error = jax.tree.map(jnp.subtract, whole, own)
        nodes = lax.axis_size("node")
        return jax.tree.map(lambda c, m: nodes * (c + m), center, mean), (error, state)

    def merged(
        hyper: Mapping[str, Any],
        x: Params,
        theta: Any,
        before: Params,
        now: Params,
        waited: jax.Array,
    ) -> tuple[Params, Any]:
        nodes = lax.axis_size("node")

        def due(x: jax.Array, before: jax.Array, now: jax.Array) -> jax.Array:
            return jnp.where(waited > 0, before, now).astype(x.dtype)

        arrived = jax.tree.map(due, x, before, now)
        if rule:
            center, opt_state = theta
            gap = jax.tree.map(lambda center, total: center - total / nodes, center, arrived)
            updates, opt_state = rule.update(gap, opt_state, center, **hyper)
            center = optax.apply_updates(center, updates)
            theta, arrived = (center, opt_state), jax.tree.map(lambda leaf: nodes * leaf, center)

        def mixed(x: jax.Array, total: jax.Array) -> jax.Array:
            w, v = (jnp.asarray(weight, x.dtype) for weight in weights(waited))
            return (w * x + v * total) / (w + v * nodes)

        return jax.tree.map(mixed, x, arrived), theta

    def settled(after: Any) -> Any:
        """What the inner optimizer's state is where its node receives."""
        if inner_state == "reset":
            return inner.init(after.params).opt_state
        means = iter(over.mean(_floats(after.opt_state)))
        return jax.tree.map(lambda leaf: next(means) if _is_float(leaf) else leaf, after.opt_state)

    return Strategy(init, step)


def _is_float(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _floats(tree: Any) -> list[jax.Array]:
    return list(filter(_is_float, jax.tree.leaves(tree)))


def _bytes(tree: Params, dtype: str | None = None) -> jax.Array:
    """Of a message, float32; of its own types where there is no other."""
    leaves = jax.tree.leaves(tree)
    return jnp.float32(sum(leaf.size * jnp.dtype(dtype or leaf.dtype).itemsize for leaf in leaves))
