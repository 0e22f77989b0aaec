"""Asynchronous decentralized parallel SGD, AD-PSGD (Lian et al., arXiv 1710.06952).

    x_i, x_j <- (x_i + x_j) / 2                 an arrival of worker i meets one peer j of its graph
    x_i      <- x_i - gamma grad f(x_i read)    read: when its gradient was begun
    x_i read <- x_i

There is no server and nobody waits. In between others have met worker i and moved x_i, and so the
gradient is stale. Meeting keeps the mean of all x_i, which is evaluated; a gradient moves it by
gamma / p, of p workers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base import seeds
from optdyn.base.errors import Join, one_of_these
from optdyn.base.trees import Array
from optdyn.clock.base import Timeline
from optdyn.core import Batch, Event, Gradient, Info, Params, Rule, Update
from optdyn.methods.method import ClockInputs, Methods
from optdyn.methods.read import workers as own
from optdyn.methods.setup import Setup
from optdyn.methods.shared_fields import OnGraph

GRAPHS = ("ring", "complete")


class Encounter(NamedTuple):
    """The gradient of worker i, and whom it meets."""

    worker: Array  # int32, i
    peer: Array  # int32, j; i itself where it is alone


class ADPSGDState(NamedTuple):
    workers: own.Table  # x_i
    read: own.Table  # x_i read
    opt_state: own.Table
    newest: jax.Array  # int32, who has just read, or the number of workers

    @property
    def params(self) -> Params:
        """The mean."""
        return own.mean(self.workers)

    def moved_to(self, params: Params) -> "ADPSGDState":
        """The mean is other parameters; workers differ from it as before.

        What they have read stays, but for who has just read it.
        """
        shift = jax.tree.map(jnp.subtract, params, self.params)
        every = jax.tree.map(jnp.add, self.workers, shift)
        read = own.put(self.read, self.newest, own.row(every, self.newest))
        return self._replace(workers=every, read=read)

    def logged(self) -> dict[str, float]:
        """The distance of workers from their mean, for the log."""
        return own.logged(self.workers)


def ad_psgd(gradient: Gradient, update: Update, workers: int) -> Rule:
    """Rule of a table of `workers`; `event.choice` is an `Encounter`."""

    def init(params: Params) -> ADPSGDState:
        every, opt_state = own.table(params, workers), own.table(update.init(params), workers)
        return ADPSGDState(every, every, opt_state, jnp.int32(workers))

    def step(state: ADPSGDState, event: Event, batch: Batch) -> tuple[ADPSGDState, Info]:
        i, j = event.choice
        x, read = own.row(state.workers, i), own.row(state.read, i)
        loss, grads = gradient(read, event, batch)
        met = jax.tree.map(lambda x, y: (x + y) / 2, x, own.row(state.workers, j))
        x, opt_state = update.apply(grads, own.row(state.opt_state, i), met, event, read)
        every = own.put(own.put(state.workers, j, met), i, x)
        info = {"loss": loss, "sent_bytes": own.both_ways(i != j, x)}
        read, opt_state = own.put((state.read, state.opt_state), i, (x, opt_state))
        return ADPSGDState(every, read, opt_state, i), info

    return Rule(init, step)


def peers(worker: np.ndarray, workers: int, graph: str, rng: np.random.Generator) -> np.ndarray:
    """(steps,) int32, of each arriving worker one of its neighbours, all as likely."""
    draws = rng.random(len(worker))  # a longer run begins with the shorter one
    away = np.where(draws < 0.5, 1, -1)
    if graph == "complete":
        away = 1 + (draws * (workers - 1)).astype(int)
    return ((worker + away) % workers).astype(np.int32)


@dataclass(frozen=True)
class ADPSGD(own.WorkerMethod, OnGraph, name="ad_psgd"):
    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return ad_psgd(gradient, update, self.groups)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """A worker's service has its message to the peer and the peer's back.

        The peer is not held up. The staleness is how many others arrived since the worker had read.
        """
        line, _ = own.timeline(self, setting, methods, [1] * self.groups)
        rng = seeds.generator(setting.setup.seed, "peers")
        each = peers(line.worker, self.groups, self.graph, rng)
        return line._replace(choice=Encounter(line.worker, each))

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        said = f"must be {one_of_these(self.graph, GRAPHS)}"
        yield Join("method.graph", self.graph not in GRAPHS, said)
