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

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from optdyn.experiment import Experiment
from optdyn.fields import field
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
)
from optdyn.strategies.method import Methods, Setting
from optdyn.strategies.snapshots import Slot, State, is_rounded, packed
from optdyn.timeline.base import Timeline
from optdyn.timeline.service import DRAWN
from optdyn.timeline.versions import Versions


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


@dataclass(frozen=True)
class Asynchronous(groups.Grouped):
    staleness_bound: int = field(
        -1, "asynchronous: updates that a group may be ahead of the slowest; -1: any.", at_least=-1
    )
    fresh: tuple[str, ...] = field(
        (), "asynchronous, sync: blocks of a merged server, which groups read fresh.", static=True
    )

    laws = (*DRAWN, "race", "geometric")
    cluster = ("pieces", "split", "overlap", "speeds", "regions", *groups.HABITS)

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Strategy:
        return asynchronous(
            gradient, update, slots, self.fresh, servers, is_rounded(self.snapshots)
        )

    def clock(self, setting: Setting, methods: Methods) -> Timeline:
        return groups.clock(self, setting, methods)

    def check(self, config: Experiment, methods: Methods) -> None:
        groups.check(self, config, methods)

    def order(self, config: Experiment, line: Timeline) -> Versions:
        """Who reads when in a race."""
        bound = self.staleness_bound if self.staleness_bound >= 0 else math.inf
        return Versions(line, self.groups, bound)


METHOD = Asynchronous
