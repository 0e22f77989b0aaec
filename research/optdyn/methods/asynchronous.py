"""Asynchronous SGD with compute groups, and its kin: groups that share one set of parameters.

    x_{t+1} = x_t - alpha grad f(x_{r(t)})      r(t): the version that the arriving group had read

Groups take gradients at the version that they read last, deliver by themselves, and read again.
The versions that are still to be read lie in a table (`core/snapshots.py`). Which one is read when,
and so the staleness t - r(t), is nowhere in this file: it follows from the order of arrivals, which
the clock decides (`clock/arrivals.py`). Members differ in what an arrival does to x_t and in the
clock's policy:

    asynchronous   each gradient is applied
    ringmaster     but those that are too old
    ringleader     the mean of a table with a gradient of each group
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base import seeds
from optdyn.base.errors import ConfigError, Join, one_of_these
from optdyn.base.fields import field
from optdyn.base.trees import bytes_of
from optdyn.clock.arrivals import compute_groups
from optdyn.clock.cluster import Pieces
from optdyn.clock.service import DRAWN
from optdyn.clock.timeline import Timeline, WorkerStep
from optdyn.clock.trace import RecordedTrace
from optdyn.clock.versions import Policy, Versions
from optdyn.core import (
    Array,
    Batch,
    Event,
    Gradient,
    Info,
    Message,
    Params,
    Rule,
    Update,
    send_gradient,
    where,
)
from optdyn.core.snapshots import STORAGES, Slot, SnapshotState, is_rounded, pack
from optdyn.methods.messages import Compression, fed_back
from optdyn.methods.method import ClockInputs, Compressed, MergedServer, MethodStack, Reads, slowed
from optdyn.methods.setup import Setup
from optdyn.methods.sync import LAST, before
from optdyn.problem import models

SLOTS = ("read", "write")
HABITS = ("diurnal", "presence", "server_bandwidth")  # of groups as volunteers
RECORDED = ("trace", "race")  # laws of service: arrivals that were, or are being, recorded


@dataclass(frozen=True)
class Grouped(Reads):
    """Groups that arrive by themselves and share one set of parameters."""

    groups: int = field(1, "Compute groups, each synchronous inside.", at_least=1)
    snapshots: str = field(
        "",
        "How versions are kept, '' exactly and on the device, "
        "rounded to 'bfloat16', or on the 'host'.",
        one_of=STORAGES,
        static=True,
    )

    barrier = False

    @property
    def policy(self) -> Policy:
        """Who waits for whom, and what is dropped."""
        return Policy()

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return asynchronous(gradient, update, slots, rounded=is_rounded(self.snapshots))

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Arrivals of groups that send all blocks together, also local ones."""
        return self.timeline(inputs, methods)

    def timeline(self, inputs: ClockInputs, methods: MethodStack, **changes: Any) -> Timeline:
        """The clock, with `changes` of what `compute_groups` takes."""
        setup = inputs.setup
        usual: dict[str, Any] = {
            "groups": self.groups,
            "steps": setup.steps,
            "batch_size": setup.batch_size,
            "update_bytes": inputs.update_bytes,
            "seed": setup.seed,
            "replicas": inputs.replicas,
            "policy": self.policy,
            "trace": inputs.trace,
        }
        return compute_groups(slowed(inputs, methods), **usual | changes)

    def order(self, setup: Setup, methods: MethodStack, line: Timeline) -> Versions:
        """The order of arrivals in a race, which writes who reads when."""
        return Versions(line, self.groups, self.policy)

    def message(self, gradient: Gradient, update: Update) -> Callable[..., Message]:
        return send_gradient(gradient, update)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield divides(self.groups, setup, methods)
        served = methods.by_block and setup.cluster.pieces != Pieces()
        yield Join("cluster.pieces", served, "no block of local learning has such a server")
        if setup.cluster.service.name == "race":
            yield from races(self.snapshots, setup)
        if self.snapshots == "host":
            yield from in_host_memory(setup, methods)


def divides(groups: int, setup: Setup, methods: MethodStack) -> Join:
    """Groups are of equally many workers."""
    cluster = setup.cluster
    workers = cluster.devices_per_node if methods.mix else cluster.worker_count
    where = "a node's" if methods.mix else "the cluster's"
    said = f"must divide {where} {workers} workers (config.cluster.nodes x config.cluster."
    return Join("method.groups", workers % groups, f"{said}devices_per_node)")


def in_host_memory(setup: Setup, methods: MethodStack) -> Iterator[Join]:
    """Versions lie in the host's memory."""
    several = methods.mix or not methods.read or not methods.read.single
    said = "of one set of parameters and one version an update, not of config.method.name = "
    said += f"{methods.name!r}; 'bfloat16' halves the table of all"
    yield Join("method.snapshots", several, said)
    said = "of one device, config.parallel.api = ''; on several config.parallel.shard_snapshots "
    yield Join("method.snapshots", setup.parallel.api, f"{said}gives each a part of the table")
    said = "config.replicas.count must be 0, replicas share a device"
    yield Join("method.snapshots", setup.replicas.count, said)


def races(snapshots: str, setup: Setup) -> Iterator[Join]:
    """Groups race on real workers (`race`)."""
    key, real = "cluster.service.name", setup.parallel
    said = "config.method.snapshots must be '', as workers are sent x_t"
    yield Join(key, snapshots, said)
    changed = real.api or real.accumulation > 1
    yield Join(key, changed, "config.parallel must be as it is by default")
    said = "config.replicas.count must be 0, one race is one run"
    yield Join(key, setup.replicas.count, said)
    yield Join(key, setup.data.streaming, "config.data.streaming must be False")


def asynchronous(
    gradient: Gradient,
    update: Update,
    slots: int,
    fresh: tuple[str, ...] = (),
    servers: Mapping[str, int] | None = None,
    rounded: bool = False,
    small: Compression | None = None,
) -> Rule[SnapshotState]:
    """Rule over a table of `slots` snapshots of the stale blocks, all x_0 at the start.

    Slots are read before one is written (`snapshots.read_first`), so XLA updates the table in
    place: a step costs a synchronous one plus a copy of the stale blocks. `event.plan` is an
    `Arrival`; with `servers`, the number of each block's server, its slots are (servers,). Messages
    may be `small`, of as many groups as slots at most.
    Versions are exact, and x_t is that in its slot, or `rounded` to bfloat16, and x_t is kept
    besides.

    `init` raises ValueError if the parameters are no dict of blocks, or if a name in `fresh` is not
    one of its keys.
    """

    def init(params: Params) -> SnapshotState:
        if type(params) is not dict:  # nor another mapping: what is read from the table is a dict
            raise ConfigError(
                "init: parameters must be a dict of blocks, such as {'all': params}, not of type "
                f"{type(params).__name__}"
            )
        if unknown := sorted(set(fresh) - set(params)):
            raise ValueError(f"fresh block {unknown[0]!r}: one of {', '.join(params)}")
        stale = {name: block for name, block in params.items() if name not in fresh}
        row = jax.tree.map(pack, stale) if rounded else stale
        table = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], slots, axis=0), row)
        first = {name: jnp.int32(0) for name in stale} if servers else jnp.int32(0)
        kept = {name: block for name, block in params.items() if rounded or name in fresh}
        nothing = jax.tree.map(lambda leaf: jnp.zeros((slots, *leaf.shape), leaf.dtype), params)
        return SnapshotState(table, first, update.init(params), kept, nothing if small else ())

    def step(state: SnapshotState, event: Event, batch: Batch) -> tuple[SnapshotState, Info]:
        plan = event.plan
        read, write = (slot_of(slots, state.slots) for slots in (plan.read, plan.write))
        seen = state.at(read) | (plan.seen or {})
        loss, grads = gradient(seen, event, batch)
        if small:
            grads, errors = fed_back(small, grads, state.errors, plan.worker)
            state = state._replace(errors=errors)
        if servers and event.staleness is not None:
            late = jnp.asarray(event.staleness)
            late_by = {block: late[server] for block, server in servers.items()}
            event = event._replace(staleness=late_by)
        params, opt_state = update.apply(grads, state.opt_state, state.params, event, seen)
        return state.after(params, opt_state, write), {"loss": loss}

    def slot_of(slots: Array, stale: Params) -> Slot:
        slots = jnp.asarray(slots, jnp.int32)
        if servers is None:
            return slots
        return {block: slots[server] for block, server in servers.items() if block in stale}

    return Rule(init, step)


@dataclass(frozen=True)
class Asynchronous(Grouped, MergedServer, Compressed, name="asynchronous"):
    """Asynchronous SGD with compute groups (arXiv 1605.09774, 1606.04487).

        x_{t+1} = x_t - alpha grad f(stale_{r(t)}, fresh_t)     x_t = (stale_t, fresh_t)

    The workers of a group take one gradient together; the groups do not wait for one another. Fresh
    blocks are those that one server both keeps and computes, so that nobody holds an old copy: the
    merged fully-connected servers of 1606.04487. By default there are none.

    Group i may send C(g + e_i) in the place of a gradient g, C a `compression`, and keeps what that
    leaves out, e_i <- g + e_i - C(g + e_i), for its next message.

    Where the gradient is local (`local.py`) no block waits for another, so each has a server and an
    order of arrivals of its own. Then r(t), and the momentum that it is worth, differ by block.
    """

    staleness_bound: int = field(
        -1, "Updates that a group may be ahead of the slowest; -1: any.", at_least=-1
    )

    laws = (*DRAWN, "race", "geometric")
    cluster = ("pieces", "split", "overlap", "speeds", "regions", *HABITS)

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        rounded, small = is_rounded(self.snapshots), self.compressed()
        return asynchronous(gradient, update, slots, self.fresh, servers, rounded, small)

    @property
    def policy(self) -> Policy:
        """No group is further ahead than s."""
        return Policy(bound=self.staleness_bound if self.staleness_bound >= 0 else math.inf)

    def timeline(self, inputs: ClockInputs, methods: MethodStack, **changes: Any) -> Timeline:
        """Those of groups, whose messages may be compressed and whose server may be merged."""
        changes = {"merged": bool(self.fresh)} | changes
        if (small := self.compressed()) and inputs.network:
            changes["message_bytes"] = inputs.update_bytes * small.part(inputs.network.params)
        return super().timeline(inputs, methods, **changes)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Arrivals of groups, at every server by itself where the gradient is local.

        Then update t is the t-th arrival at each of them, its plan is (steps, servers), and the
        seconds are those of the last. A group sends each server its block, all of them when it has
        computed all.
        """
        if not methods.by_block:
            return self.timeline(inputs, methods)
        trace, seed, sent = inputs.trace, inputs.setup.seed, dict[int, int]()
        server_of = methods.servers(inputs.model.problem)
        assert server_of
        for name, block in inputs.model.params.items():
            sent[server_of[name]] = sent.get(server_of[name], 0) + bytes_of(block)
        if inputs.setup.cluster.service.name == "race" or (trace and not trace.has("worker")):
            order = trace and trace.order(trace.worker)  # the one order of all servers
            line = self.timeline(inputs, methods, trace=order)
            return _of_servers([line] * len(sent))._replace(batch=line.batch)
        orders: list[RecordedTrace | None] = [None] * len(sent)
        if trace:
            workers = trace.workers((len(sent),), self.groups)
            orders = [trace.order(worker) for worker in workers.T]
        names = [f"server {server}" for server in range(1, len(sent))]
        drawn = [seed, *(seeds.number(seed, name, below=2**32) for name in names)]
        lines = [
            self.timeline(inputs, methods, update_bytes=sent[n], seed=drawn[n], trace=orders[n])
            for n in range(len(sent))
        ]
        return _of_servers(lines)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        cluster, bound = setup.cluster, self.staleness_bound
        yield from super().joins(setup, methods)
        if cluster.service.name == "race" and self.fresh:
            yield from _merges(setup, methods, self.fresh)
        small, pieces = ("", "top_k", "sign"), cluster.pieces != Pieces()
        said = f"of asynchronous must be {one_of_these(self.compression, small)}"
        yield Join("method.compression", self.compression not in small, said)
        apart = methods.by_block or bound >= 0 or pieces or setup.replicas.count
        apart = apart or not cluster.service.is_drawn
        for key in HABITS:
            said = "of one run of groups by themselves, whose times are drawn from a law, without "
            said += "config.cluster.pieces, a staleness bound, or blocks with servers of their own"
            yield Join(f"cluster.{key}", getattr(cluster, key) and apart, said)
        ordered = cluster.service.is_drawn or cluster.service.name in RECORDED
        said = "groups wait for one another only where their times are drawn or recorded, config."
        said += f"cluster.service.name one of {', '.join((*DRAWN, *RECORDED))} and no pieces"
        yield Join("method.staleness_bound", bound >= 0 and (not ordered or pieces), said)
        said = "only of runs, not of replicas"
        yield Join("method.staleness_bound", bound >= 0 and setup.replicas.count, said)
        if not self.compressed():
            return
        part = methods.gradient or self.fresh or self.snapshots == "host"
        said = "of groups that send whole gradients, all of which their server keeps on the device"
        yield Join("method.compression", part, said)
        undrawn = cluster.service.name in ("race", "geometric")
        undrawn = undrawn or pieces or any(getattr(cluster, key) for key in HABITS)
        said = "of groups whose times are drawn, config.cluster.service.name one of "
        said += f"{', '.join(DRAWN)}, without pieces, {', '.join(HABITS)}"
        yield Join("method.compression", undrawn, said)
        said = "of 2 groups at least, as one has no server"
        yield Join("method.compression", self.groups == 1, said)


def _of_servers(lines: Sequence[Timeline]) -> Timeline:
    """The timeline of servers by themselves, whose update is the last of theirs."""
    plans = [(line.plan, line.staleness) for line in lines]
    plan, staleness = jax.tree.map(lambda *leaves: np.stack(leaves, axis=-1), *plans)
    last = np.max([line.seconds for line in lines], axis=0)
    return lines[0]._replace(seconds=last, staleness=staleness, plan=plan, batch=None)


def _merges(setup: Setup, methods: MethodStack, fresh: tuple[str, ...]) -> Iterator[Join]:
    """A race has a merged server, of the last blocks."""
    names = [name for name, _ in models.make(setup.model, classes=2)]
    yield Join("method.fresh", not before(names, fresh), LAST.format(", ".join(names)))
    said = "in a race groups must take the gradient of the whole model's loss"
    yield Join("method.fresh", methods.gradient, said)
    said = "in a race config.probes.steer must be False, as these blocks are ahead"
    yield Join("method.fresh", setup.probes.steer, said)


@dataclass(frozen=True)
class Ringmaster(Grouped, name="ringmaster"):
    """Asynchronous SGD without what is too old: Ringmaster ASGD (arXiv 2501.16168).

        x_{t+1} = x_t - alpha grad f(x_{t - tau})      if tau < R
        x_t stays                                      otherwise

    tau is how many updates were made since the arriving group had read. It reads the newest version
    in either case. So an update is an update of asynchronous SGD, at parameters of the last R
    versions, and only the clock's policy is new. With R = infinity nothing is dropped and it is
    asynchronous SGD. With R = 1 an update is of who computes without being overtaken: of groups of
    unlike constant speeds that is the fastest alone.

    A gradient that is dropped took its group as long as any other, with its exchange. It changes
    nothing, the optimizer's state included. It makes no row of the timeline, so `config.steps`
    counts what is applied. Its examples are not lost: in a race the group takes the same batch
    again, and elsewhere batch t is that of update t.
    """

    delay_bound: int = field(
        0,
        "R, a gradient that is R or more updates old is dropped; 0: none is.",
        expected="at least 1, or 0 for none",
        is_valid=lambda v: v >= 0,
    )

    laws = (*DRAWN, "race")
    cluster = ("split", "overlap", "speeds", "regions")

    @property
    def policy(self) -> Policy:
        """What is R updates old is dropped; one group is never late."""
        drops = self.delay_bound and self.groups > 1
        return Policy(delay_bound=self.delay_bound if drops else math.inf)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        said = "only of runs, not of replicas"
        yield Join("method.delay_bound", self.delay_bound and setup.replicas.count, said)
        hosted = methods.gradient and self.snapshots == "host"
        yield Join("method.snapshots", hosted, f"not of config.method.name = {methods.name!r}")


def ringleader(
    gradient: Gradient, update: Update, slots: int, count: int, rounded: bool = False
) -> Rule[SnapshotState]:
    """Rule of `count` groups (n), each of which has a slot.

    `event.plan` is a `WorkerStep`: an arrival that exchanges applies the table. Its numbers are
    `table`, 0 or 1, which of the two its gradient enters, and `number`, b_i. The optimizer is given
    the staleness, and what was read, of the gradient that arrives. Versions are exact or `rounded`,
    as in `asynchronous`.
    """
    alone = asynchronous(gradient, update, slots, rounded=rounded)

    def init(params: Params) -> SnapshotState:
        tables = jax.tree.map(lambda leaf: jnp.zeros((2, count, *leaf.shape), leaf.dtype), params)
        return alone.init(params)._replace(gradients=tables)

    def step(state: SnapshotState, event: Event, batch: Batch) -> tuple[SnapshotState, Info]:
        i, applied, numbers = event.plan
        table, b = numbers["table"], numbers["number"]
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
class Ringleader(Grouped, name="ringleader"):
    """Ringleader ASGD (Maranjyan and Richtarik, arXiv 2509.22860): every group in every update.

        G_i     <- (1 - 1/b_i) G_i + g / b_i        a gradient g of group i arrives, its b_i-th
        x_{t+1} =  x_t - alpha 1/n sum_i G_i        if it is one that applies the table

    n groups arrive as in asynchronous SGD: nobody waits, and a group that arrives reads the newest
    parameters. The server goes in rounds of n updates. It gathers until each group has an entry.
    The arrival that completes the table applies it, and so does the next arrival of each other
    group. What a group sends after that goes into a second table, the next round's. So a fast
    group's mean is of more gradients, but counts no more, and no gradient that is applied is older
    than 2n - 2 updates. One group is SGD. A row of the timeline is an arrival, of a gradient of a
    whole batch.
    """

    groups: int = field(1, "Compute groups, each synchronous inside.", at_least=1, static=True)

    single = False
    gathers = True
    cluster = ("split", "overlap", "speeds", "regions")

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return ringleader(gradient, update, slots, self.groups, is_rounded(self.snapshots))

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Arrivals of groups; the staleness counts what was applied meanwhile."""
        line = self.timeline(inputs, methods)
        table, number, applied = rounds(line.worker, self.groups)
        t, so_far = np.arange(len(applied)), np.append(0, np.cumsum(applied, dtype=np.int32))
        late = so_far[t] - so_far[t - line.staleness]
        plan = WorkerStep(line.worker, applied, {"table": table, "number": number})
        return line._replace(staleness=late, plan=plan)
