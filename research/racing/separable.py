"""Whether some blocks can be moved apart from the others, as several servers of a race do it."""

from collections.abc import Collection

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.errors import ConfigError
from optdyn.racing.server import event_of
from optdyn.racing.worker import halves_of
from optdyn.run import Run
from optdyn.strategies.base import Message, Params


def check(run: Run, blocks: Collection[str], wanted: str) -> None:
    """Raises `ConfigError` if how the blocks move depends on the gradients of others.

    So it does with an optimizer that scales all by the norm of all. Two updates are made of random
    gradients, the second for those that have a memory. `wanted` is the key that asks for it.
    """
    halves = halves_of(run)
    rng = np.random.default_rng(0)
    grads = jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(x.dtype), run.params)
    zeros = jax.tree.map(np.zeros_like, grads)
    event = event_of(run, 0)

    def moved(others: Params) -> list[jax.Array]:
        state = run.program.rule.init(run.params)
        own = {name: grads[name] for name in blocks}
        for _ in range(2):
            state, _ = halves.update(state, event, Message(jnp.zeros(()), {**others, **own}))
        return jax.tree.leaves({name: state.params[name] for name in blocks})

    pairs = zip(moved(grads), moved(zeros), strict=True)
    if not all(np.array_equal(one, other) for one, other in pairs):
        raise ConfigError(
            f"{wanted}: the servers of a race move their blocks one after the other, and this "
            "optimizer moves a block by the gradients of all; take one that does not"
        )
