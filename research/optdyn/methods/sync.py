"""Synchronous SGD: every gradient is taken at the parameters it is applied to.

    x_{t+1} = x_t - alpha grad f(x_t)

All other methods are compared with it, and each has a limit in which it is this one.
"""

from dataclasses import dataclass
from typing import NamedTuple

import optax

from optdyn.clock.base import Timeline
from optdyn.clock.compute_groups import make
from optdyn.core import Batch, Event, Gradient, Info, Params, Rule, Update
from optdyn.methods.method import ClockInputs, Methods
from optdyn.methods.shared_fields import MergedServer


class SyncState(NamedTuple):
    params: Params  # x_t
    opt_state: optax.OptState

    def moved_to(self, params: Params) -> "SyncState":
        """The state at other parameters."""
        return self._replace(params=params)


def sync(gradient: Gradient, update: Update) -> Rule:
    """Rule whose events' slots are ignored: there is one copy of the parameters."""

    def init(params: Params) -> SyncState:
        return SyncState(params, update.init(params))

    def step(state: SyncState, event: Event, batch: Batch) -> tuple[SyncState, Info]:
        x = state.params
        loss, grads = gradient(x, event, batch)
        return SyncState(*update.apply(grads, state.opt_state, x, event, x)), {"loss": loss}

    return Rule(init, step)


@dataclass(frozen=True)
class Sync(MergedServer, name="sync"):
    cluster = ("pieces", "split", "overlap", "speeds", "latencies", "bandwidths")

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """Every update waits for the slowest of all workers."""
        setup = setting.setup
        return make(
            setup.cluster,
            groups=1,
            steps=setup.steps,
            batch_size=setup.batch_size,
            update_bytes=setting.update_bytes,
            seed=setup.seed,
            replicas=setting.replicas,
            merged=bool(self.fresh),
        )
