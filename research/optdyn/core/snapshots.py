"""The table of parameter versions that groups have read, one row a slot.

A group computes with the row that it read last. Rows are exact, or rounded to bfloat16 with x_t
kept exactly beside them. `devices/paged.py` fetches rows from the host's memory.

`read_first` reads a row before another is written. Otherwise XLA reads it anew wherever it is used,
and where that might come after the write, it copies the whole table at every update.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from optdyn.base.trees import Array, Tree
from optdyn.core import Params

STORAGES = ("", "bfloat16", "host")  # how versions are
BITS = jnp.uint16
Slot = Tree  # int32, of all stale blocks, or a dict of one a block


class SnapshotState(NamedTuple):
    slots: Params  # stale blocks, leaves (slots, ...): the versions that are still to be read
    newest: Slot  # of stale_t
    opt_state: optax.OptState
    fresh: Params  # fresh_t; of a table of rounded versions all of x_t
    errors: Tree = ()  # of each group what its messages left out, where they are compressed
    gradients: Tree = ()  # two of each group, (2, groups, ...), where a table of them is kept

    def at(self, slot: Slot) -> Params:
        """The parameters with which a group computes that read `slot`."""
        return self._read(slot, partial(read_first, rows))

    @property
    def params(self) -> Params:
        """x_t."""
        rounded = self.slots.keys() <= self.fresh.keys()
        return self.fresh if rounded else self._read(self.newest, compiled_rows)

    def _read(self, slot: Slot, compiled: Callable[..., Params]) -> Params:
        each = slot if isinstance(slot, dict) else dict.fromkeys(self.slots, slot)
        host = all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(self.slots))
        seen = (rows if host else compiled)(self.slots, each)
        for name, exact in self.fresh.items():
            seen[name] = jax.tree.map(unpack, seen[name], exact) if name in seen else exact
        return seen

    def after(self, params: Params, opt_state: optax.OptState, slot: Slot) -> "SnapshotState":
        """x_{t+1} is these parameters, in this slot."""
        slots = put(self.slots, slot, {name: params[name] for name in self.slots})
        fresh = {name: params[name] for name in self.fresh}
        return SnapshotState(slots, slot, opt_state, fresh, self.errors, self.gradients)

    def moved_to(self, params: Params) -> "SnapshotState":
        """x_t is other parameters; the versions that were read stay."""
        return self.after(params, self.opt_state, self.newest)


def rows(table: Params, slots: Mapping[str, Tree]) -> Params:
    """Row `slots[name]` of each block of the table."""
    return {name: row(block, slots[name]) for name, block in table.items()}


compiled_rows = jax.jit(rows, inline=True)  # where it is in no program: one, and not a dozen


def put(table: Params, slot: Slot, blocks: Params) -> Params:
    """The table with these blocks in the slot."""
    each = slot if isinstance(slot, dict) else dict.fromkeys(table, slot)
    return {
        name: jax.tree.map(
            lambda t, leaf, s=each[name]: t.at[s].set(pack(leaf) if t.dtype == BITS else leaf),
            block,
            blocks[name],
        )
        for name, block in table.items()
    }


def pack(leaf: jax.Array) -> jax.Array:
    """Rounded to bfloat16, as bits: XLA on a CPU writes bfloat16 by converting the whole table."""
    return jax.lax.bitcast_convert_type(leaf.astype(jnp.bfloat16), BITS)


def unpack(bits: jax.Array, exact: jax.Array) -> jax.Array:
    """The rounded numbers of `bits`, in the dtype of `exact`."""
    return jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(exact.dtype)


def is_rounded(snapshots: str) -> bool:
    """Whether the table is of rounded versions."""
    return snapshots == "bfloat16"


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
