"""Reading a table that is written into afterwards, such that it is not copied for that.

XLA reads a row anew wherever it is used. Where such a use might come after the write, it copies the
whole table at every update.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def row(table: Any, i: Any) -> Any:
    """Row i of every leaf."""
    return jax.tree.map(lambda leaf: leaf[i], table)


@partial(jax.jit, static_argnums=0, inline=True)
def read_first(read: Callable[[Any, Any], Any], table: Any, i: Any) -> Any:
    """`read(table, i)`, once: what uses it uses what was read. `i` are numbers of rows, from 0 on.

    On a CPU it is read in a branch that is always taken, as XLA drops barriers there before it
    decides what to copy.
    """

    def branch(table: Any, i: Any) -> Any:
        def nothing(*given: Any) -> Any:
            return jax.tree.map(jnp.zeros_like, read(*given))

        always = jnp.asarray(jax.tree.leaves(i)[0]) >= 0
        return lax.cond(always, read, nothing, table, i)

    def barrier(table: Any, i: Any) -> Any:
        return lax.optimization_barrier(read(table, i))

    return lax.platform_dependent(table, i, cpu=branch, default=barrier)
