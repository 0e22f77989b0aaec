"""Updates of several arrivals: a server that gathers the gradients of compute groups.

    x_{t+1} = x_t - alpha 1/K sum_j grad f_j(x_{t - tau_j})      j = 1, ..., K

Which groups wait, and so tau_j, is up to the clock (`clock/versions.py`). f_j is the loss of a K-th
of the batch, so that an update has as many examples as elsewhere.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from optdyn import core
from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.base.trees import bytes_of
from optdyn.clock.service import DRAWN
from optdyn.clock.timeline import Timeline
from optdyn.clock.versions import WAITING, Policy
from optdyn.core import Batch, Event, Gradient, Info, Rule, Update
from optdyn.core.snapshots import SnapshotState, is_rounded
from optdyn.methods.asynchronous import Grouped, asynchronous
from optdyn.methods.method import ClockInputs, MethodStack, Servers
from optdyn.methods.setup import Setup


def buffered(
    gradient: Gradient, update: Update, slots: int, arrivals: int, rounded: bool = False
) -> Rule[SnapshotState]:
    """Returns the rule of K `arrivals` an update; `event.plan` is an `Arrival` of K reads.

    Example i of a device's part of a batch is of arrival i mod K. The optimizer gets the means of
    the parameters read and of the stalenesses.
    """
    inner = asynchronous(gradient, update, slots, rounded=rounded)

    def step(state: SnapshotState, event: Event, batch: Batch) -> tuple[SnapshotState, Info]:
        after, info = (
            inner.step(state, event, batch) if arrivals == 1 else mean(state, event, batch)
        )
        sent = jnp.float32(arrivals * bytes_of(after.params))
        return after, info | {"sent_bytes": sent}

    def mean(state: SnapshotState, event: Event, batch: Batch) -> tuple[SnapshotState, Info]:
        def one(arrival: tuple) -> tuple:
            slot, examples = arrival
            read_params = state.read_slot(slot)
            return *gradient(read_params, event, examples), read_params

        def add(total: tuple, arrival: tuple) -> tuple[tuple, None]:
            return jax.tree.map(jnp.add, total, one(arrival)), None

        inputs = event.plan.read, core.split_parts(batch, arrivals)
        shapes = jax.eval_shape(one, jax.tree.map(lambda leaf: leaf[0], inputs))
        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, shapes), inputs)
        loss, grads, read_params = jax.tree.map(lambda leaf: leaf / arrivals, total)
        staleness = None if event.staleness is None else jnp.mean(event.staleness)
        event = event._replace(staleness=staleness)
        params, opt_state = update.apply(grads, state.opt_state, state.params, event, read_params)
        slot = jnp.asarray(event.plan.write, jnp.int32)
        return state.after(params, opt_state, slot), {"loss": loss}

    return Rule(inner.init, step)


@dataclass(frozen=True)
class Buffered(Grouped, name="buffered"):
    """Updates of several arrivals: K-sync, K-async and their kin, and buffered aggregation.

    K-sync and its kin are those of Dutta et al. (arXiv 1803.01113). FedBuff (Nguyen et al., arXiv
    2106.06639), whose clients send one gradient each, is `k_batch_async`. With K = n all of
    `k_sync` is synchronous SGD, and `k_batch_async` with K = 1 asynchronous SGD.
    """

    arrivals: int = field(
        1, "K, gradients of an update, each of a K-th of the batch.", at_least=1, static=True
    )
    waiting: str = field("k_batch_async", "Which groups wait or are dropped.", one_of=WAITING)

    single = False
    laws: ClassVar[tuple[str, ...]] = (*DRAWN, "race")
    cluster = ("split", "overlap", "speeds")
    info = ("sent_bytes",)

    def read(self, gradient: Gradient, update: Update, slots: int, servers: Servers) -> Rule:
        return buffered(gradient, update, slots, self.arrivals, is_rounded(self.snapshots))

    @property
    def policy(self) -> Policy:
        return Policy(self.arrivals, self.waiting)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        part = inputs.setup.batch_size // self.arrivals
        return self.timeline(inputs, methods, batch_size=part)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        nodes, devices = methods.devices(setup)
        many = self.arrivals > self.groups and "batch" not in self.waiting
        reason = f"must be at most config.method.groups = {self.groups} with {self.waiting!r}"
        yield Join("method.arrivals", many, reason)
        parts = self.arrivals * setup.parallel.accumulation
        parts *= nodes * devices if methods.mix else devices if setup.parallel.api else 1
        reason = f"must be a multiple of {parts} (config.method.arrivals x devices that share it x "
        yield Join("batch_size", setup.batch_size % parts, f"{reason}config.parallel.accumulation)")


@dataclass(frozen=True)
class MindFlayer(Buffered, name="mindflayer"):
    """MindFlayer (Maranjyan et al., arXiv 2410.04285): slow gradients are begun again.

    A group that has not delivered after a times its mean service drops its gradient, and begins
    another at the newest parameters. A service S that begins again after a takes
    E min(S, a) / P(S <= a) in the mean. Without a limit it is `buffered`. The paper takes all
    gradients at x_t (`waiting=k_batch_sync`) and gives each worker a number of trials; here it goes
    on until K are there.
    """

    allotted: float = field(
        0.0,
        "a, mean services after which a group begins again; 0: it never does.",
        at_least=0,
    )

    laws = DRAWN  # in a race nobody begins again

    @property
    def policy(self) -> Policy:
        return super().policy._replace(allotted=self.allotted or math.inf)
