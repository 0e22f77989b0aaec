"""Asynchronous SGD with compute groups (arXiv 1605.09774, 1606.04487).

    x_{t+1} = x_t - alpha grad f(stale_{r(t)}, fresh_t)     x_t = (stale_t, fresh_t)

r(t) is the version that the arriving group had read. The workers of a group take one gradient
together; the groups do not wait for one another. Staleness is nowhere in this file: it follows from
the order of arrivals, which the timeline decides. Fresh blocks are those that one server both keeps
and computes, so that nobody holds an old copy: the merged fully-connected servers of 1606.04487. By
default there are none.

Where the gradient is local (`local.py`) no block waits for another, so each has a server and an
order of arrivals of its own. Then r(t), and the momentum that it is worth, differ by block.

The versions that are still to be read lie in a table (`snapshots.py`); whose turn it is, and what a
config may ask of groups, is in `groups.py`.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from optdyn.strategies import groups
from optdyn.strategies.base import (
    Array,
    Batch,
    Event,
    Gradient,
    Info,
    Params,
    Strategy,
    Update,
    alone,
)
from optdyn.strategies.method import Method, Racing
from optdyn.strategies.snapshots import Slot, State, is_rounded, packed
from optdyn.timeline.service import DRAWN


def asynchronous(
    gradient: Gradient,
    update: Update,
    slots: int,
    fresh: tuple[str, ...] = (),
    servers: Mapping[str, int] | None = None,
    rounded: bool = False,
) -> Strategy:
    """Strategy over a table of `slots` snapshots of the stale blocks, all x_0 at the start.

    Slots are read before one is written (`in_place.py`), so XLA updates the table in place: a step
    costs a synchronous one plus a copy of the stale blocks. `event.choice` is an `Arrival`; with
    `servers`, the number of each block's server, its slots are (servers,). Versions are exact, and
    x_t is that in its slot, or `rounded` to bfloat16, and x_t is kept besides.

    `init` raises ValueError if a name in `fresh` is not a key of the parameters.
    """

    def init(params: Params) -> State:
        if unknown := sorted(set(fresh) - set(params)):
            raise ValueError(f"fresh block {unknown[0]!r}: one of {', '.join(params)}")
        stale = {name: block for name, block in params.items() if name not in fresh}
        row = jax.tree.map(packed, stale) if rounded else stale
        table = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], slots, axis=0), row)
        first = {name: jnp.int32(0) for name in stale} if servers else jnp.int32(0)
        kept = {name: block for name, block in params.items() if rounded or name in fresh}
        return State(table, first, update.init(params), kept)

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        choice = event.choice
        read, write = (slot_of(slots, state.slots) for slots in (choice.read, choice.write))
        seen = state.at(read) | (choice.seen or {})
        loss, grads = gradient(seen, event, batch)
        if servers and event.staleness is not None:
            each = jnp.asarray(event.staleness)
            stale_by = {block: each[server] for block, server in servers.items()}
            event = event._replace(staleness=stale_by)
        params, opt_state = update.apply(grads, state.opt_state, state.params, event, seen)
        return state.after(params, opt_state, write), {"loss": loss}

    def slot_of(slots: Array, stale: Params) -> Slot:
        slots = jnp.asarray(slots, jnp.int32)
        if servers is None:
            return slots
        return {block: slots[server] for block, server in servers.items() if block in stale}

    return Strategy(init, step)


METHOD = Method(
    keys={
        "groups": 1,  # compute groups, each synchronous inside
        "staleness_bound": -1,  # updates a group may be ahead of the slowest; -1: any
        "fresh": (),  # blocks of a merged server, which groups read fresh
        "snapshots": "",  # versions: float32 on the device, rounded to 'bfloat16', or on the 'host'
    },
    compiled=("fresh", "snapshots"),
    read=lambda gradient, update, keys, slots, servers: asynchronous(
        gradient, update, slots, tuple(keys["fresh"]), servers, is_rounded(keys)
    ),
    clock=groups.clock,
    laws=(*DRAWN, "race", "geometric"),
    cluster=("pieces", "split", "overlap", "speeds", "regions", *groups.HABITS),
    barrier=False,
    values=groups.values,
    check=groups.check,
    race=Racing(groups.order, alone),
)
