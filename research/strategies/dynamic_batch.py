"""Synchronous SGD whose workers take unequal shares of the batch (DBS, arXiv 2007.11831).

    x_{t+1} = x_t - alpha sum_i (b_i / B) g_i        sum_i b_i = B

g_i is the mean gradient of worker i's b_i examples, so the update is the whole batch's gradient
however the batch is split. The shares b_i are the timeline's (`Event.control["shares"]`), from how
fast each worker was.

The shares are numbers, not shapes: a worker goes through its part in micro-batches of a fixed size,
as many as its part needs, and meets the others once, in the sum of the gradients.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import lax

from research.strategies.base import Batch, Event, Params, Strategy, descend
from research.strategies.sync import State

Losses = Callable[[Params, Batch], jax.Array]


def dynamic_batch(
    losses: Losses, optimizer: optax.GradientTransformationExtraArgs, micro_batch: int
) -> Strategy:
    """Strategy of one device of the axis `data`.

    `losses(params, batch) -> (B,)`, one an example. Every device is given the whole batch, of B
    examples, and `event.control["shares"]`, (workers,) int32 with sum B (`KeyError` without); it
    computes its own part, `micro_batch` examples at a time. All return the same state and loss.
    """

    def init(params: Params) -> State:
        return State(params, optimizer.init(params))

    def step(state: State, event: Event, batch: Batch) -> tuple[State, jax.Array]:
        shares = jnp.asarray((event.control or {})["shares"])
        worker = lax.axis_index("data")
        stop = jnp.cumsum(shares)[worker]
        own = _sums(losses, state.params, batch, stop - shares[worker], stop, micro_batch)
        value, grads = jax.tree.map(lambda leaf: leaf / _size(batch), lax.psum(own, "data"))
        return State(*descend(optimizer, grads, state.opt_state, state.params, event)), value

    return Strategy(init, step)


def _sums(
    losses: Losses,
    params: Params,
    batch: Batch,
    start: jax.Array,
    stop: jax.Array,
    micro_batch: int,
) -> tuple[jax.Array, Params]:
    """Sum of the losses of examples start..stop-1, float32, and its gradient."""
    size = min(micro_batch, _size(batch))

    def step(carry: tuple[jax.Array, jax.Array, Params]) -> tuple[jax.Array, jax.Array, Params]:
        begin, value, grads = carry
        # A slice that would reach beyond the batch lies further back; the mask drops what it
        # repeats, as it drops the examples of the next worker.
        at = jnp.minimum(begin, _size(batch) - size)
        index = at + jnp.arange(size)
        own = (begin <= index) & (index < stop)
        part = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, at, size), batch)

        def total(params: Params) -> jax.Array:
            return jnp.sum(jnp.where(own, losses(params, part), 0), dtype=jnp.float32)

        more, gradient = jax.value_and_grad(total)(params)
        return begin + size, value + more, jax.tree.map(jnp.add, grads, gradient)

    nothing = (start, jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
    _, value, grads = lax.while_loop(lambda carry: carry[0] < stop, step, nothing)
    return value, grads


def _size(batch: Batch) -> int:
    return len(jax.tree.leaves(batch)[0])
