"""Versions in the host's memory, where the device holds the newest and what an update reads.

The rule has a table of one slot (`methods/asynchronous.py`), so it is exact. The row that is read
next is copied to the device while that computes, and the row before is copied back. No row is
written while it is read: the row of update t is written when t is done, and t + 1, which is then
under way, reads another slot or what is on the device.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base.trees import Array, Examples
from optdyn.core import Event, Info, Params
from optdyn.core.snapshots import Slot, SnapshotState, by_block, rows
from optdyn.devices.layout import Advance, Layout

ROWS = 4  # on the device, besides its slot: read by two updates, and made by two
ALIGNED = 64  # bytes; a CPU then reads a row where it is


class Paged(NamedTuple):
    """The state with its table on the host, where updates write into it."""

    slots: Params  # NumPy, leaves (slots, ...)
    newest: Slot
    device: SnapshotState  # with one slot


def broadcast_init(
    init: Callable[[Params], SnapshotState], slots: int
) -> Callable[[Params], SnapshotState]:
    """Returns the `init` of so many slots, from that of one; all rows are one in memory."""

    def init_slots(params: Params) -> SnapshotState:
        state = init(params)
        table = jax.tree.map(
            lambda leaf: np.broadcast_to(leaf, (slots, *leaf.shape[1:])), state.slots
        )
        return state._replace(slots=table)

    return init_slots


def paged(advance: Advance, servers: Mapping[str, int] | None) -> Layout:
    """Returns the layout of the loop `advance` of one slot, whose events address the host's table.

    With `servers`, the number of each block's server, an update's slots are (servers,).
    """

    @partial(jax.jit, donate_argnums=0)
    def update(
        state: SnapshotState,
        stale: Params,
        examples: Examples,
        event: Event,
        indices: Array,
        n: int,
    ) -> tuple[SnapshotState, Params, Info]:
        stale = jax.tree.map(lambda leaf: leaf[None], stale)
        event = event._replace(plan=event.plan._replace(params=stale))
        state, info = advance(state, examples, event, indices, n)
        return state, rows(state.slots, dict.fromkeys(state.slots, 0)), info

    def slots_of_blocks(table: Params, slots: np.ndarray) -> dict[str, np.ndarray]:
        return {name: slots[servers[name]] if servers else slots for name in table}

    def write_back(table: Params, slots: np.ndarray, params: Params) -> None:
        """Waits for the device's `params` and writes them into the table."""
        for name, slot in slots_of_blocks(table, slots).items():
            pairs = zip(*map(jax.tree.leaves, (table[name], params[name])), strict=True)
            for leaf, new in pairs:
                leaf[slot] = new

    def run(
        state: Paged, examples: Examples, events: Event, indices: Array, n: int
    ) -> tuple[Paged, Info]:
        table, device, plan = state.slots, state.device, events.plan
        read, write = np.asarray(plan.read), np.asarray(plan.write)
        zero = np.zeros_like(read)  # the device's one slot
        events = events._replace(plan=plan._replace(read=zero, write=zero))
        stale = fetch_rows(table, slots_of_blocks(table, read[0]))
        last, infos = write[0], list[Info]()
        params: Params = {}
        for t in range(max(int(n), 1)):  # with n = 0 the update is only compiled
            event, rows_of_t = jax.tree.map(lambda leaf, t=t: leaf[t : t + 1], (events, indices))
            count, before = np.int32(min(n, 1)), params
            device, params, info = update(device, stale, examples, event, rows_of_t, count)
            jax.tree.map(lambda leaf: leaf.copy_to_host_async(), params)
            if before:
                write_back(table, last, before)
            last = write[t]
            if t + 1 < n:
                following, new = slots_of_blocks(table, read[t + 1]), slots_of_blocks(table, last)
                old = {name: slot for name, slot in following.items() if slot != new[name]}
                stale = params | fetch_rows(table, old)
            infos.append(info)
        if not n:
            return state._replace(device=device), infos[0]
        write_back(table, last, params)
        newest = slots_of_blocks(table, last) if isinstance(state.newest, dict) else last
        info = jax.tree.map(lambda *leaves: np.concatenate(leaves), *infos)
        return Paged(table, jax.tree.map(np.int32, newest), device), info

    def put_state(state: SnapshotState) -> Paged:
        table = jax.tree.map(_aligned_copy, state.slots)
        newest = jax.tree.map(np.int32, state.newest)
        newest_rows = rows(table, by_block(newest, table))
        slots = jax.tree.map(lambda leaf: jnp.array(leaf)[None], newest_rows)
        zeros = jax.tree.map(lambda _: jnp.int32(0), newest)
        fields = jax.tree.map(jnp.asarray, (state.opt_state, state.fresh))
        return Paged(table, newest, SnapshotState(slots, zeros, *fields))

    def get(state: Paged) -> SnapshotState:
        return SnapshotState(state.slots, state.newest, state.device.opt_state, state.device.fresh)

    return Layout(run, put_state, partial(jax.tree.map, jnp.asarray), get)


def fetch_rows(table: Params, slots: Mapping[str, Array]) -> Params:
    """Returns rows of these blocks, on the device."""
    return jax.device_put(rows({name: table[name] for name in slots}, slots))


def _aligned_copy(leaf: Array) -> np.ndarray:
    memory = np.empty(leaf.nbytes + ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED
    copy = memory[start : start + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
    copy[...] = leaf
    return copy
