"""Updates of several arrivals: a server that gathers the gradients of compute groups.

    x_{t+1} = x_t - alpha 1/K sum_j grad f_j(x_{t - tau_j})      j = 1, ..., K

Groups, their table of versions and their clock are those of `asynchronous.py`. The gradients of n
groups are gathered, and their mean is applied at the Kth. Who waits meanwhile, and so what tau_j
is, is the clock's matter alone (`clock/versions.py`). f_j is the loss of a Kth of the batch, so
that an update is of as many examples as it is elsewhere.
"""

import math
from collections.abc import Iterator, Mapping
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
from optdyn.methods.method import ClockInputs, MethodStack
from optdyn.methods.setup import Setup


def buffered(
    gradient: Gradient, update: Update, slots: int, arrivals: int, rounded: bool = False
) -> Rule[SnapshotState]:
    """Rule of K `arrivals` an update; `event.plan` is an `Arrival` of as many reads, (K,).

    Example i of a device's part of a batch is of arrival i mod K, however many devices there are.
    The optimizer is given the means of what was read and of how late it is. A step also says the
    bytes that groups send (`sent_bytes`). Versions are exact or `rounded`, as in `asynchronous`.
    """
    alone = asynchronous(gradient, update, slots, rounded=rounded)

    def step(state: SnapshotState, event: Event, batch: Batch) -> tuple[SnapshotState, Info]:
        after, info = (
            alone.step(state, event, batch) if arrivals == 1 else mean(state, event, batch)
        )
        sent = jnp.float32(arrivals * bytes_of(after.params))
        return after, info | {"sent_bytes": sent}

    def mean(state: SnapshotState, event: Event, batch: Batch) -> tuple[SnapshotState, Info]:
        def one(arrival: tuple) -> tuple:
            slot, examples = arrival
            seen = state.at(slot)
            return *gradient(seen, event, examples), seen

        def add(total: tuple, arrival: tuple) -> tuple[tuple, None]:
            return jax.tree.map(jnp.add, total, one(arrival)), None

        every = event.plan.read, core.split_parts(batch, arrivals)
        shapes = jax.eval_shape(one, jax.tree.map(lambda leaf: leaf[0], every))
        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, shapes), every)
        loss, grads, seen = jax.tree.map(lambda leaf: leaf / arrivals, total)
        late = None if event.staleness is None else jnp.mean(event.staleness)
        event = event._replace(staleness=late)
        params, opt_state = update.apply(grads, state.opt_state, state.params, event, seen)
        slot = jnp.asarray(event.plan.write, jnp.int32)
        return state.after(params, opt_state, slot), {"loss": loss}

    return Rule(alone.init, step)


@dataclass(frozen=True)
class Buffered(Grouped, name="buffered"):
    """Updates of several arrivals: K-sync, K-async and their kin, and buffered aggregation.

    K-sync and its kin are those of Dutta et al. (arXiv 1803.01113). FedBuff (Nguyen et al., arXiv
    2106.06639), whose clients send one gradient each, is `k_batch_async`. With K = n all of
    `k_sync` is synchronous SGD, and `k_batch_async` with K = 1 asynchronous SGD.
    """

    arrivals: int = field(
        1, "K, gradients of an update, a Kth of the batch each.", at_least=1, static=True
    )
    waiting: str = field("k_batch_async", "buffered: who waits for whom meanwhile.", one_of=WAITING)

    single = False
    laws: ClassVar[tuple[str, ...]] = (*DRAWN, "race")
    cluster = ("split", "overlap", "speeds")
    info = ("sent_bytes",)

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return buffered(gradient, update, slots, self.arrivals, is_rounded(self.snapshots))

    @property
    def policy(self) -> Policy:
        """K arrivals an update; whoever is dropped stops at once."""
        return Policy(self.arrivals, self.waiting)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Groups compute a Kth of the batch, and send a gradient and read parameters for it."""
        part = inputs.setup.batch_size // self.arrivals
        return self.timeline(inputs, methods, batch_size=part)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        nodes, devices = methods.devices(setup)
        many = self.arrivals > self.groups and "batch" not in self.waiting
        said = f"must be at most config.method.groups = {self.groups}, of which each delivers once "
        yield Join("method.arrivals", many, f"{said}with {self.waiting!r}")
        parts = self.arrivals * setup.parallel.accumulation
        parts *= nodes * devices if methods.mix else devices if setup.parallel.api else 1
        said = f"must be a multiple of {parts} (config.method.arrivals x devices that share it x "
        yield Join("batch_size", setup.batch_size % parts, f"{said}config.parallel.accumulation)")


@dataclass(frozen=True)
class MindFlayer(Buffered, name="mindflayer"):
    """MindFlayer (Maranjyan et al., arXiv 2410.04285): no gradient takes too long.

    A group that has not delivered after a times its mean service drops what it is at, and begins
    again at the newest parameters, with a draw of its own. It pays where times have heavy tails: a
    service S that begins again after a takes E min(S, a) / P(S <= a) in the mean. Without a limit
    it is `buffered`, and with K = 1 and nobody waiting asynchronous SGD.

    MindFlayer SGD takes all gradients at x_t (`waiting=k_batch_sync`) and gives each worker a
    number of trials; here it goes on until K are there.
    """

    allotted: float = field(
        0.0,
        "a, mean services after which a group begins again; 0: it never does.",
        at_least=0,
    )

    laws = DRAWN  # in a race nobody begins again

    @property
    def policy(self) -> Policy:
        """That of `buffered`, and what takes longer than a is dropped."""
        return super().policy._replace(allotted=self.allotted or math.inf)
