"""Versions in the host's memory, where the device holds the newest and what an update reads.

The rule is the same (`methods/asynchronous.py`), with a table of one slot, so it is exact. The
loop leaves the compiled program at every update: the row that the timeline says is read next is
brought while the device computes, and the one that was made before is taken back. What is read
right after it was made is on the device still.

No row is written while it is read, so rows are brought from where they lie: what update t makes is
written when t is done, and then t + 1 is under way, which reads another slot or what is on the
device.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base.trees import Array, Examples
from optdyn.core import Event, Info, Params
from optdyn.core.snapshots import Slot, SnapshotState, rows
from optdyn.devices.layout import Advance, Layout

ROWS = 4  # on the device, besides its slot: brought for two updates, and made by two
ALIGNED = 64  # bytes; a CPU then reads a row where it is


class Paged(NamedTuple):
    """The state with its table on the host, where updates write into it."""

    slots: Params  # NumPy, leaves (slots, ...)
    newest: Slot
    device: SnapshotState  # of one slot


def broadcast_init(
    one: Callable[[Params], SnapshotState], slots: int
) -> Callable[[Params], SnapshotState]:
    """The `init` of so many slots from that of one: of the table only one row takes memory."""

    def init(params: Params) -> SnapshotState:
        state = one(params)
        return state._replace(
            slots=jax.tree.map(
                lambda leaf: np.broadcast_to(leaf, (slots, *leaf.shape[1:])), state.slots
            )
        )

    return init


def paged(advance: Advance, servers: Mapping[str, int] | None) -> Layout:
    """`advance` is the loop of a rule of one slot; events address the host's table.

    With `servers`, the number of each block's server, slots are (servers,) of every update.
    """

    @partial(jax.jit, donate_argnums=0)
    def one(
        state: SnapshotState, seen: Params, examples: Examples, event: Event, indices: Array, n: int
    ) -> tuple[SnapshotState, Params, Info]:
        seen = jax.tree.map(lambda leaf: leaf[None], seen)
        event = event._replace(plan=event.plan._replace(seen=seen))
        state, info = advance(state, examples, event, indices, n)
        return state, rows(state.slots, dict.fromkeys(state.slots, 0)), info

    def each(table: Params, slots: np.ndarray) -> dict[str, np.ndarray]:
        return {name: slots[servers[name]] if servers else slots for name in table}

    def keep(table: Params, slots: np.ndarray, made: Params) -> None:
        """Waits for what was made."""
        for name, slot in each(table, slots).items():
            pairs = zip(*map(jax.tree.leaves, (table[name], made[name])), strict=True)
            for leaf, new in pairs:
                leaf[slot] = new

    def run(
        state: Paged, examples: Examples, events: Event, indices: Array, n: int
    ) -> tuple[Paged, Info]:
        table, device, choice = state.slots, state.device, events.plan
        read, write = np.asarray(choice.read), np.asarray(choice.write)
        none = np.zeros_like(read)  # the device's one slot
        events = events._replace(plan=choice._replace(read=none, write=none))
        seen, last, said = fetch_rows(table, each(table, read[0])), write[0], list[Info]()
        made: Params = {}
        for t in range(max(int(n), 1)):  # of no update it is only compiled
            event, chosen = jax.tree.map(lambda leaf, t=t: leaf[t : t + 1], (events, indices))
            count, before = np.int32(min(n, 1)), made
            device, made, info = one(device, seen, examples, event, chosen, count)
            jax.tree.map(lambda leaf: leaf.copy_to_host_async(), made)
            if before:
                keep(table, last, before)
            last = write[t]
            if t + 1 < n:
                there, new = each(table, read[t + 1]), each(table, last)
                old = {name: slot for name, slot in there.items() if slot != new[name]}
                seen = made | fetch_rows(table, old)
            said.append(info)
        if not n:
            return state._replace(device=device), said[0]
        keep(table, last, made)
        newest = each(table, last) if isinstance(state.newest, dict) else last
        infos = jax.tree.map(lambda *leaves: np.concatenate(leaves), *said)
        return Paged(table, jax.tree.map(np.int32, newest), device), infos

    def put_state(state: SnapshotState) -> Paged:
        table, newest = (
            jax.tree.map(_aligned_copy, state.slots),
            jax.tree.map(np.int32, state.newest),
        )
        slot = newest if isinstance(newest, dict) else dict.fromkeys(table, newest)
        first = jax.tree.map(lambda leaf: jnp.array(leaf)[None], rows(table, slot))
        zeros = jax.tree.map(lambda _: jnp.int32(0), newest)
        rest = jax.tree.map(jnp.asarray, (state.opt_state, state.fresh))
        return Paged(table, newest, SnapshotState(first, zeros, *rest))

    def get(state: Paged) -> SnapshotState:
        return SnapshotState(state.slots, state.newest, state.device.opt_state, state.device.fresh)

    return Layout(run, put_state, partial(jax.tree.map, jnp.asarray), get)


def fetch_rows(table: Params, slots: Mapping[str, Array]) -> Params:
    """Rows of these blocks, on the device."""
    return jax.device_put(rows({name: table[name] for name in slots}, slots))


def _aligned_copy(leaf: Array) -> np.ndarray:
    """A copy that can be written into, aligned."""
    bytes_of = np.empty(leaf.nbytes + ALIGNED, np.uint8)
    start = -bytes_of.ctypes.data % ALIGNED
    own = bytes_of[start : start + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
    own[...] = leaf
    return own
