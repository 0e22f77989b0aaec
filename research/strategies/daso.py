"""Distributed asynchronous and selective optimization (DASO, arXiv 2104.05588).

    x <- (2 S x + sum_p x_p(sent)) / (2 S + P)

x: parameters of a node; x_p(sent): what the P nodes sent S batches before. Gradients are averaged
inside a node at every batch, nodes meet only in this merge. When they send and receive is the
timeline's. S = 0 is the blocking synchronization of warm-up and cool-down, the plain mean (heat,
the authors' implementation, weighs x there by 1 if it is received as the others are).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from research.strategies.base import Array, Batch, Event, Loss, Params, Strategy, descend


class State(NamedTuple):
    params: Params  # x of this node
    in_flight: Params  # sum_p x_p(sent), in the type it travels in
    opt_state: optax.OptState  # of this node, never synchronized


def daso(
    loss: Loss,
    optimizer: optax.GradientTransformationExtraArgs,
    transfer_dtype: str | None = None,
) -> Strategy:
    """The rule of one device over the axes `node` and `local`; parameters equal along `local`.

    `event.control`: `send`, `receive` (bool) and `waited` (int32, S), the same on all devices. The
    order of a step, as in heat: the node's own update, the sending of its result, the receipt and
    merge of what was sent S batches before, which is what was just sent if S = 0. No more than one
    message is in flight. Between nodes nothing is exchanged in steps that do not send.

    Messages and their sums are of `transfer_dtype`, by default of the type of the parameters.
    """

    def travelling(leaf: jax.Array) -> jax.Array:
        return leaf.astype(transfer_dtype or leaf.dtype)

    def init(params: Params) -> State:
        nothing = jax.tree.map(lambda leaf: jnp.zeros_like(travelling(leaf)), params)
        return State(params, nothing, optimizer.init(params))

    def step(state: State, event: Event, batch: Batch) -> tuple[State, jax.Array]:
        assert event.control is not None
        send, receive, waited = (event.control[name] for name in ("send", "receive", "waited"))
        value, grads = jax.value_and_grad(loss)(state.params, batch)
        grads = jax.lax.pmean(grads, "local")
        params, opt_state = descend(optimizer, grads, state.opt_state, state.params, event)
        in_flight = jax.lax.cond(send, total, lambda *_: state.in_flight, params)
        params = jax.lax.cond(
            receive, merge, lambda x, *_: x, params, state.in_flight, in_flight, waited
        )
        return State(params, in_flight, opt_state), value

    def total(params: Params) -> Params:
        return jax.lax.psum(jax.tree.map(travelling, params), "node")

    return Strategy(init, step)


def merge(params: Params, before: Params, now: Params, waited: Array) -> Params:
    """x after a receipt, S = `waited`, of the sum in flight before the step or, if S = 0, now."""

    def leaf(x: jax.Array, before: jax.Array, now: jax.Array) -> jax.Array:
        own = jnp.asarray(2 * waited, x.dtype)
        total = jnp.where(waited > 0, before, now).astype(x.dtype)
        return (own * x + total) / (own + jax.lax.axis_size("node"))

    return jax.tree.map(leaf, params, before, now)
