"""What the momentum meter (`dynamics/moments.py`) needs of an update, in `SKETCH` numbers each.

    displacement   x_{t+1} - x_t              of this device's own update, before nodes meet
    raw step       -g_t                       the gradient that arrived, before the optimizer
    gradient       G_t at x_t                 of a second mini-batch of the same conditional mean

The sketch is one fixed count sketch: coordinate i is added to number i mod q with a random sign. It
is linear and keeps inner products in expectation.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from research.strategies.base import Batch, Event, Gradient, Info, Params, State, Strategy

SKETCH = 2048  # q, or the number of parameters if that is smaller
METERED = ("displacement", "raw_step", "gradient")


def metered(make: Callable[[Gradient], Strategy], gradient: Gradient) -> Strategy:
    """The strategy that `make` makes of a gradient, saying `METERED` of each update, (q,) each.

    Its step takes a pair of batches, the update's own and a second one.
    """

    def heard(params: Params, event: Event, batch: Batch) -> tuple[Any, Params]:
        loss, grads = gradient(params, event, batch)
        return (loss, sketch(grads, params, SKETCH)), grads

    strategy = make(heard)

    def step(state: State, event: Event, batches: Any) -> tuple[State, Info]:
        own, second = batches
        x = jax.lax.optimization_barrier(state.params)
        _, independent = gradient(x, event, second)
        # A table of versions is updated in place only if what is new in it is read afterwards.
        after, info = jax.lax.optimization_barrier(strategy.step(state, event, own))
        loss, arrived = info["loss"]
        moved = jax.tree.map(jnp.subtract, after.params, x)
        each = sketch(moved, x, SKETCH), -arrived, sketch(independent, x, SKETCH)
        said = dict(zip(METERED, each, strict=True))
        return after, info | {"loss": loss} | said

    return Strategy(strategy.init, step)


def sketch(tree: Params, like: Params, size: int) -> jax.Array:
    """(min(size, p),) float32, of a pytree like one of p numbers, in the order of its leaves.

    What the tree lacks of the other counts as zeros.
    """
    every = jax.tree.leaves_with_path(like)
    given = dict(jax.tree.leaves_with_path(tree))
    q = min(size, sum(leaf.size for _, leaf in every))
    total, offset = jnp.zeros(q), 0
    for path, leaf in every:
        if path in given:
            number = jnp.arange(leaf.size, dtype=jnp.uint32) + np.uint32(offset % 2**32)
            signed = given[path].reshape(-1).astype(jnp.float32) * _signs(number)
            rows = jnp.pad(signed, (0, -leaf.size % q)).reshape(-1, q)
            total = total + jnp.roll(rows.sum(axis=0), offset % q)
        offset += leaf.size
    return total


def _signs(i: jax.Array) -> jax.Array:
    """+-1, each by a hash of its number (the finalizer of MurmurHash3): nothing has to be kept."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        i = (i ^ (i >> shift)) * np.uint32(factor)
    return 1 - 2 * ((i >> 16 ^ i) & 1).astype(jnp.float32)
