"""Reading a table that is written into afterwards, such that it is not copied for that.

XLA reads a row anew wherever it is used. Where such a use might come after the write, it copies the
whole table at every update.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from optdyn.trees import Array, Tree


def row(table: Tree, i: Array) -> Tree:
    """Row i of every leaf."""
    return jax.tree.map(lambda leaf: leaf[i], table)


@partial(jax.jit, static_argnums=0, inline=True)
def read_first(read: Callable[[Tree, Tree], Tree], table: Tree, i: Array) -> Tree:
    """`read(table, i)`, once: what uses it uses what was read. `i` are numbers of rows, from 0 on.

    On a CPU it is read in a branch that is always taken, as XLA drops barriers there before it
    decides what to copy.
    """

    def branch(table: Tree, i: Array) -> Tree:
        def nothing(*given: Tree) -> Tree:
            return jax.tree.map(jnp.zeros_like, read(*given))

        always = jnp.asarray(jax.tree.leaves(i)[0]) >= 0
        return lax.cond(always, read, nothing, table, i)

    def barrier(table: Tree, i: Array) -> Tree:
        return lax.optimization_barrier(read(table, i))

    return lax.platform_dependent(table, i, cpu=branch, default=barrier)
