"""What the momentum meter (`dynamics/moments.py`) needs of an update, in `SKETCH` numbers each.

    displacement   x_{t+1} - x_t              of this device's own update, before nodes meet
    raw step       -g_t                       the gradient that arrived, before the optimizer
    gradient       G_t at x_t                 of a second mini-batch of the same conditional mean

The sketch is one fixed count sketch: coordinate i is added to number i mod q with a random sign. It
is linear and keeps inner products in expectation.
"""

from collections.abc import Callable

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

    def told(params: Params, event: Event, batch: Batch) -> tuple[jax.Array, Params]:
        loss, grads = gradient(params, event, batch)
        return (loss, sketch(grads)), grads  # type: ignore[return-value]

    strategy = make(told)

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        own, second = batch
        x = state.params
        after, info = strategy.step(state, event, own)  # type: ignore[arg-type]
        loss, arrived = info["loss"]
        _, independent = gradient(x, event, second)  # type: ignore[arg-type]
        moved = jax.tree.map(jnp.subtract, after.params, x)
        said = dict(zip(METERED, (sketch(moved), -arrived, sketch(independent)), strict=True))
        return after, info | {"loss": loss} | said

    return Strategy(strategy.init, step)


def sketch(tree: Params, size: int = SKETCH) -> jax.Array:
    """(min(size, p),) float32, of a pytree of p numbers; those of all leaves in order."""
    leaves = jax.tree.leaves(tree)
    q = min(size, sum(leaf.size for leaf in leaves))
    total, offset = jnp.zeros(q), 0
    for leaf in leaves:
        flat = leaf.reshape(-1).astype(jnp.float32)
        signed = flat * _signs(jnp.arange(leaf.size, dtype=jnp.uint32) + np.uint32(offset % 2**32))
        rows = jnp.pad(signed, (0, -leaf.size % q)).reshape(-1, q)
        total, offset = total + jnp.roll(rows.sum(axis=0), offset % q), offset + leaf.size
    return total


def _signs(i: jax.Array) -> jax.Array:
    """+-1, each by a hash of its number (the finalizer of MurmurHash3): nothing has to be kept."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        i = (i ^ (i >> shift)) * np.uint32(factor)
    return 1 - 2 * ((i >> 16 ^ i) & 1).astype(jnp.float32)
