"""The table of parameter versions that groups have read, one row a slot.

Rows are exact, or rounded to bfloat16 with x_t kept exactly beside them. `read_first` reads a row
before another is written; otherwise XLA, which reads it anew wherever it is used, copies the whole
table at every update.
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

STORAGES = ("", "bfloat16", "host")  # of versions; "": exact, on the device
BITS = jnp.uint16
Slot = Tree  # int32, one for all stale blocks, or a dict by block


class SnapshotState(NamedTuple):
    slots: Params  # stale blocks, leaves (slots, ...): versions that may still be read
    newest: Slot  # of stale_t
    opt_state: optax.OptState
    fresh: Params  # fresh_t; all of x_t where the table has rounded versions
    errors: Tree = ()  # by group, what compressed messages left out
    gradients: Tree = ()  # a table of two a group, (2, groups, ...), where a method has one

    def read_slot(self, slot: Slot) -> Params:
        return self._read(slot, partial(read_first, rows))

    @property
    def params(self) -> Params:
        rounded = self.slots.keys() <= self.fresh.keys()
        return self.fresh if rounded else self._read(self.newest, compiled_rows)

    def _read(self, slot: Slot, compiled: Callable[..., Params]) -> Params:
        host = all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(self.slots))
        params = (rows if host else compiled)(self.slots, by_block(slot, self.slots))
        for name, exact in self.fresh.items():
            params[name] = jax.tree.map(unpack, params[name], exact) if name in params else exact
        return params

    def after(self, params: Params, opt_state: optax.OptState, slot: Slot) -> "SnapshotState":
        """Returns the state whose x_{t+1} are these parameters, in this slot."""
        slots = put(self.slots, slot, {name: params[name] for name in self.slots})
        fresh = {name: params[name] for name in self.fresh}
        return SnapshotState(slots, slot, opt_state, fresh, self.errors, self.gradients)

    def moved_to(self, params: Params) -> "SnapshotState":
        """Returns the state with these parameters as x_t; versions that were read stay."""
        return self.after(params, self.opt_state, self.newest)


def by_block(slot: Slot, table: Mapping[str, Tree]) -> dict[str, Tree]:
    return slot if isinstance(slot, dict) else dict.fromkeys(table, slot)


def rows(table: Params, slots: Mapping[str, Tree]) -> Params:
    return {name: row(block, slots[name]) for name, block in table.items()}


compiled_rows = jax.jit(rows, inline=True)  # outside of a program one, and not a dozen


def put(table: Params, slot: Slot, blocks: Params) -> Params:
    slots = by_block(slot, table)
    return {
        name: jax.tree.map(
            lambda t, leaf, s=slots[name]: t.at[s].set(pack(leaf) if t.dtype == BITS else leaf),
            block,
            blocks[name],
        )
        for name, block in table.items()
    }


def pack(leaf: jax.Array) -> jax.Array:
    """Returns bits of bfloat16: XLA on a CPU writes bfloat16 by converting the whole table."""
    return jax.lax.bitcast_convert_type(leaf.astype(jnp.bfloat16), BITS)


def unpack(bits: jax.Array, exact: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(exact.dtype)


def is_rounded(snapshots: str) -> bool:
    return snapshots == "bfloat16"


def row(table: Tree, i: Array) -> Tree:
    return jax.tree.map(lambda leaf: leaf[i], table)


@partial(jax.jit, static_argnums=0, inline=True)
def read_first(read: Callable[[Tree, Tree], Tree], table: Tree, i: Array) -> Tree:
    """Returns `read(table, i)`, read once for all uses; `i` are numbers of rows, from 0 on.

    On a CPU, where XLA drops barriers, a branch that is always taken reads it.
    """

    def branch(table: Tree, i: Array) -> Tree:
        def zeros(table: Tree, i: Array) -> Tree:
            return jax.tree.map(jnp.zeros_like, read(table, i))

        always = jnp.asarray(jax.tree.leaves(i)[0]) >= 0
        return lax.cond(always, read, zeros, table, i)

    def barrier(table: Tree, i: Array) -> Tree:
        return lax.optimization_barrier(read(table, i))

    return lax.platform_dependent(table, i, cpu=branch, default=barrier)
