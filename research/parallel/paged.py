"""Versions in the host's memory, where the device holds two: the one read and the newest.

The rule is the same (`strategies/asynchronous.py`), with a table of two slots, so it is exact. The
loop leaves the compiled program at every update: the row that the timeline says is read next is
brought while the device computes, and the one that was made before is taken back. What is read
right after it was made is on the device still.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from research.parallel.layout import Advance, Layout
from research.strategies.asynchronous import Slot, State, put, rows
from research.strategies.base import Event, Info, Params

READ, MADE = 0, 1  # the device's slots
ROWS = 4  # besides: brought for this update and for the next, made by this one and by the last


class Paged(NamedTuple):
    """The state with its table on the host, where updates write into it."""

    slots: Params  # NumPy, leaves (slots, ...)
    newest: Slot
    device: State  # of two slots


def initial(one: Callable[[Params], State], slots: int) -> Callable[[Params], State]:
    """The `init` of so many slots from that of one: of the table only one row takes memory."""

    def init(params: Params) -> State:
        state = one(params)
        return state._replace(
            slots=jax.tree.map(
                lambda leaf: np.broadcast_to(leaf, (slots, *leaf.shape[1:])), state.slots
            )
        )

    return init


def paged(advance: Advance, servers: Mapping[str, int] | None = None) -> Layout:
    """`advance` is the loop of a strategy of two slots; events address the host's table.

    With `servers`, the number of each block's server, slots are (servers,) of every update.
    """

    @partial(jax.jit, donate_argnums=0)
    def one(
        state: State, row: Params, examples: Any, event: Event, indices: Any, n: Any
    ) -> tuple[State, Params, Info]:
        held = state._replace(slots=put(state.slots, READ, row))
        state, info = advance(held, examples, event, indices, n)
        return state, rows(state.slots, dict.fromkeys(state.slots, MADE)), info

    def of_blocks(table: Params, slots: np.ndarray) -> dict[str, Any]:
        return {name: slots[servers[name]] if servers else slots for name in table}

    def bring(table: Params, slots: np.ndarray) -> Params:
        """Copies, as the rows may be written while they are on their way."""
        found = rows(table, of_blocks(table, slots))
        return jax.tree.map(lambda leaf: jax.device_put(leaf.copy()), found)

    def keep(table: Params, slots: np.ndarray, made: Params) -> None:
        """Waits for what was made."""
        for name, slot in of_blocks(table, slots).items():
            pairs = zip(*map(jax.tree.leaves, (table[name], made[name])), strict=True)
            for leaf, new in pairs:
                leaf[slot] = new

    def run(state: Paged, examples: Any, events: Event, indices: Any, n: Any) -> tuple[Paged, Info]:
        control = events.control or {}
        read, write = (
            np.asarray(control.get(name, getattr(events, name))) for name in ("read", "write")
        )
        table, device, said = state.slots, state.device, list[Info]()
        row, last, made = bring(table, read[0]), np.full_like(read[0], -1), None
        for t in range(max(int(n), 1)):  # of no update it is only compiled
            event, chosen = jax.tree.map(lambda leaf, t=t: leaf[t : t + 1], (events, indices))
            here = {
                "read": np.where(read[t] == last, MADE, READ)[None].astype(np.int32),
                "write": np.full_like(write[t : t + 1], MADE),
            }
            own = {**(event.control or {}), **(here if "read" in control else {})}
            event = event._replace(**({} if servers else here), control=own)
            before, (device, made, info) = (
                made,
                one(device, row, examples, event, chosen, np.int32(min(n, 1))),
            )
            jax.tree.map(lambda leaf: leaf.copy_to_host_async(), made)
            if before is not None:
                keep(table, last, before)
            if t + 1 < n:
                row = bring(table, read[t + 1])
            last = write[t]
            said.append(info)
        if not n:
            return state._replace(device=device), said[0]
        keep(table, last, made)
        newest = of_blocks(table, last) if isinstance(state.newest, dict) else last
        infos = jax.tree.map(lambda *leaves: np.concatenate(leaves), *said)
        return Paged(table, jax.tree.map(np.int32, newest), device), infos

    def put_state(state: State) -> Paged:
        table, newest = jax.tree.map(_writable, state.slots), jax.tree.map(np.int32, state.newest)
        each = newest if isinstance(newest, dict) else dict.fromkeys(table, newest)
        two = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), rows(table, each))
        rest = jax.tree.map(jnp.asarray, (state.opt_state, state.fresh))
        made = jax.tree.map(lambda _: jnp.int32(MADE), newest)
        return Paged(table, newest, State(two, made, *rest))

    def get(state: Paged) -> State:
        return State(state.slots, state.newest, state.device.opt_state, state.device.fresh)

    return Layout(run, put_state, partial(jax.tree.map, jnp.asarray), get)


def _writable(leaf: Any) -> np.ndarray:
    own = isinstance(leaf, np.ndarray) and leaf.flags.writeable
    return leaf if own else np.array(leaf)
