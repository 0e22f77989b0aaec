"""Ringleader ASGD (Maranjyan and Richtarik, arXiv 2509.22860): every group in every update.

    G_i     <- (1 - 1/b_i) G_i + g / b_i        a gradient g of group i arrives, its b_i-th
    x_{t+1} =  x_t - alpha 1/n sum_i G_i        if it is one that applies the table

n groups arrive as in asynchronous SGD: nobody waits, and a group that arrives reads the newest
parameters. The server goes in rounds of n updates. It gathers until each group has an entry. The
arrival that completes the table applies it, and so does the next arrival of each other group. What
a group sends after that goes into a second table, the next round's. So a fast group's mean is of
more gradients, but counts no more, and no gradient that is applied is older than 2n - 2 updates.
One group is SGD. A row of the timeline is an arrival, of a gradient of a whole batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base.fields import field
from optdyn.clock.base import Timeline
from optdyn.core import Array, Batch, Event, Gradient, Info, Params, Rule, Update
from optdyn.core.snapshots import SnapshotState, is_rounded
from optdyn.methods.method import ClockInputs, Methods
from optdyn.methods.read import groups
from optdyn.methods.read.asynchronous import asynchronous
from optdyn.methods.read.workers import where


class TableEntry(NamedTuple):
    """The arrival of a group, whose slot has what it had read, and the entry that it makes."""

    worker: Array  # int32, i
    table: Array  # int32, 0 or 1, which of the two
    number: Array  # int32, b_i
    applied: Array  # bool


def ringleader(
    gradient: Gradient, update: Update, slots: int, count: int, rounded: bool = False
) -> Rule:
    """Rule of `count` groups (n); `event.choice` is a `TableEntry`.

    The optimizer is given the staleness, and what was read, of the gradient that arrives. Versions
    are exact or `rounded`, as in `asynchronous`.
    """
    alone = asynchronous(gradient, update, slots, rounded=rounded)

    def init(params: Params) -> SnapshotState:
        tables = jax.tree.map(lambda leaf: jnp.zeros((2, count, *leaf.shape), leaf.dtype), params)
        return alone.init(params)._replace(gradients=tables)

    def step(state: SnapshotState, event: Event, batch: Batch) -> tuple[SnapshotState, Info]:
        i, table, b, applied = event.choice
        seen = state.at(i)
        loss, grads = gradient(seen, event, batch)

        def entered(G: jax.Array, g: jax.Array) -> jax.Array:
            return G.at[table, i].set((1 - 1 / b) * G[table, i] + g / b)

        kept = jax.tree.map(entered, state.gradients, grads)
        mean = jax.tree.map(lambda G: G[table].mean(axis=0), kept)
        now = state.params, state.opt_state
        params, opt_state = where(applied, update.apply(mean, now[1], now[0], event, seen), now)
        after = state._replace(gradients=kept).after(params, opt_state, jnp.asarray(i))
        return after, {"loss": loss}

    return Rule(init, step)


def rounds(worker: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(steps,) each, of arrivals of `count` groups: the table, b_i, and whether it is applied."""
    table, number = np.zeros((2, len(worker)), np.int32)
    applied, b = np.zeros(len(worker), bool), np.zeros((2, count), np.int32)
    now, turns = 0, set[int]()  # the round's table, and who has yet to apply it; none: it gathers
    for t, i in enumerate(worker.tolist()):
        later = bool(turns) and i not in turns
        table[t] = now ^ later
        b[table[t], i] += 1
        number[t] = b[table[t], i]
        if not turns and b[now].all():
            turns = set(range(count))
        if i in turns:
            applied[t] = True
            turns.remove(i)
            if not turns:
                b[now], now = 0, 1 - now
    return table, number, applied


@dataclass(frozen=True)
class Ringleader(groups.Grouped, name="ringleader"):
    groups: int = field(1, "Compute groups, each synchronous inside.", at_least=1, static=True)

    single = False
    gathers = True
    cluster = ("split", "overlap", "speeds", "regions")

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return ringleader(gradient, update, slots, self.groups, is_rounded(self.snapshots))

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """The arrivals of `asynchronous`; the staleness counts what was applied meanwhile."""
        held = setting.held and setting.held.order(setting.held.worker)
        line = groups.together(self, setting, methods, held=held)
        table, number, applied = rounds(line.worker, self.groups)
        t, so_far = np.arange(len(applied)), np.append(0, np.cumsum(applied, dtype=np.int32))
        late = so_far[t] - so_far[t - line.staleness]
        return line._replace(staleness=late, choice=TableEntry(line.worker, table, number, applied))
