"""Asynchronous SGD with compute groups, and its kin: groups that share one set of parameters.

    x_{t+1} = x_t - alpha grad f(x_{r(t)})      r(t): the version that the arriving group had read

Versions that are still to be read lie in a table (`core/snapshots.py`). The clock
(`clock/arrivals.py`) draws a time for each gradient, sorts the arrivals, and so decides which
version is read when, and the staleness t - r(t). Methods differ in what an arrival does to x_t and
in the clock's policy.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base import seeds
from optdyn.base.errors import ConfigError, Join
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
from optdyn.methods.messages import Compression, compress_with_feedback
from optdyn.methods.method import (
    ClockInputs,
    Compressed,
    MergedServer,
    MethodStack,
    Reads,
    Servers,
    slowed,
)
from optdyn.methods.setup import Setup
from optdyn.methods.sync import LAST, before
from optdyn.problem import models

VOLUNTEER_KEYS = ("diurnal", "presence", "server_bandwidth")  # keys of the cluster
RECORDED = ("trace", "race")  # laws of service whose arrivals are recorded, not drawn


@dataclass(frozen=True)
class Grouped(Reads):
    """Groups that arrive by themselves and share one set of parameters."""

    groups: int = field(1, "Compute groups, each synchronous inside.", at_least=1)
    snapshots: str = field(
        "",
        "How versions are kept: '' exactly, on the device; 'bfloat16' rounded; 'host' in the "
        "host's memory.",
        one_of=STORAGES,
        static=True,
    )

    barrier = False

    @property
    def policy(self) -> Policy:
        """The policy by which groups wait and gradients are dropped."""
        return Policy()

    def read(self, gradient: Gradient, update: Update, slots: int, servers: Servers) -> Rule:
        return asynchronous(gradient, update, slots, rounded=is_rounded(self.snapshots))

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        return self.timeline(inputs, methods)

    def timeline(self, inputs: ClockInputs, methods: MethodStack, **changes: Any) -> Timeline:
        """Returns the timeline of `compute_groups`, with these `changes` of its arguments."""
        setup = inputs.setup
        arguments: dict[str, Any] = {
            "groups": self.groups,
            "steps": setup.steps,
            "batch_size": setup.batch_size,
            "update_bytes": inputs.update_bytes,
            "seed": setup.seed,
            "replicas": inputs.replicas,
            "policy": self.policy,
            "trace": inputs.trace,
        }
        return compute_groups(slowed(inputs, methods), **arguments | changes)

    def order(self, setup: Setup, methods: MethodStack, line: Timeline) -> Versions:
        return Versions(line, self.groups, self.policy)

    def message(self, gradient: Gradient, update: Update) -> Callable[..., Message]:
        return send_gradient(gradient, update)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield divides(self.groups, setup, methods)
        served = methods.by_block and setup.cluster.pieces != Pieces()
        reason = f"excludes config.method.name = {methods.name!r}, whose blocks each have a server"
        yield Join("cluster.pieces", served, reason)
        if setup.cluster.service.name == "race":
            yield from races(self.snapshots, setup)
        if self.snapshots == "host":
            yield from in_host_memory(setup, methods)


def divides(groups: int, setup: Setup, methods: MethodStack) -> Join:
    """Returns the row of groups that must be of equally many workers."""
    cluster = setup.cluster
    workers = cluster.devices_per_node if methods.mix else cluster.worker_count
    where = "a node's" if methods.mix else "the cluster's"
    reason = f"must divide {where} {workers} workers (config.cluster.nodes x config.cluster."
    return Join("method.groups", workers % groups, f"{reason}devices_per_node)")


def in_host_memory(setup: Setup, methods: MethodStack) -> Iterator[Join]:
    key = "method.snapshots"
    several = methods.mix or not methods.read or not methods.read.single
    reason = f"excludes config.method.name = {methods.name!r}; 'bfloat16' halves any table"
    yield Join(key, several, reason)
    reason = "needs config.parallel.api = ''; on several devices config.parallel.shard_snapshots "
    yield Join(key, setup.parallel.api, f"{reason}gives each a part of the table")
    yield Join(
        key, setup.replicas.count, "needs config.replicas.count = 0, replicas share a device"
    )


def races(snapshots: str, setup: Setup) -> Iterator[Join]:
    """Yields what groups need that race on real workers (`race`)."""
    key, real = "cluster.service.name", setup.parallel
    yield Join(key, snapshots, "needs config.method.snapshots = '', as workers are sent x_t")
    changed = real.api or real.accumulation > 1
    yield Join(key, changed, "needs the defaults of config.parallel")
    yield Join(key, setup.replicas.count, "needs config.replicas.count = 0, one race is one run")
    yield Join(key, setup.data.streaming, "needs config.data.streaming = False")


def asynchronous(
    gradient: Gradient,
    update: Update,
    slots: int,
    fresh: tuple[str, ...] = (),
    servers: Servers = None,
    rounded: bool = False,
    compression: Compression | None = None,
) -> Rule[SnapshotState]:
    """Returns the rule over a table of `slots` versions of the stale blocks, all x_0 at the start.

    `event.plan` is an `Arrival`; with `servers`, the number of each block's server, its slots are
    (servers,). Slots are read before one is written (`snapshots.read_first`), so that XLA updates
    the table in place. Versions are exact, x_t among them, or `rounded` to bfloat16, with x_t exact
    beside them. A `compression` needs at least as many slots as groups. `init` raises ConfigError
    if the parameters are no dict of blocks, ValueError if a name in `fresh` is not one of its keys.
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
        exact = {name: block for name, block in params.items() if rounded or name in fresh}
        errors = jax.tree.map(lambda leaf: jnp.zeros((slots, *leaf.shape), leaf.dtype), params)
        return SnapshotState(
            table, first, update.init(params), exact, errors if compression else ()
        )

    def step(state: SnapshotState, event: Event, batch: Batch) -> tuple[SnapshotState, Info]:
        plan = event.plan
        read, write = (slot_of(slots, state.slots) for slots in (plan.read, plan.write))
        read_params = state.read_slot(read) | (plan.params or {})
        loss, grads = gradient(read_params, event, batch)
        if compression:
            grads, errors = compress_with_feedback(compression, grads, state.errors, plan.worker)
            state = state._replace(errors=errors)
        if servers and event.staleness is not None:
            staleness = jnp.asarray(event.staleness)
            by_block = {block: staleness[server] for block, server in servers.items()}
            event = event._replace(staleness=by_block)
        params, opt_state = update.apply(grads, state.opt_state, state.params, event, read_params)
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
    blocks, by default none, are those that one server both keeps and computes: the merged
    fully-connected servers of 1606.04487.

    With a `compression` C group i sends C(g + e_i) for a gradient g, and keeps what that leaves
    out, e_i <- g + e_i - C(g + e_i). Where the gradient is local (`local.py`) each block has a
    server and an order of arrivals.
    """

    staleness_bound: int = field(
        -1, "Updates that a group may be ahead of the slowest; -1: no bound.", at_least=-1
    )

    laws = (*DRAWN, "race", "geometric")
    cluster = ("pieces", "split", "overlap", "speeds", "regions", *VOLUNTEER_KEYS)

    def read(self, gradient: Gradient, update: Update, slots: int, servers: Servers) -> Rule:
        rounded, compression = is_rounded(self.snapshots), self.compressor()
        return asynchronous(gradient, update, slots, self.fresh, servers, rounded, compression)

    @property
    def policy(self) -> Policy:
        return Policy(bound=self.staleness_bound if self.staleness_bound >= 0 else math.inf)

    def timeline(self, inputs: ClockInputs, methods: MethodStack, **changes: Any) -> Timeline:
        changes = {"merged": bool(self.fresh)} | changes
        if (compression := self.compressor()) and inputs.model_info:
            ratio = compression.ratio(inputs.model_info.params)
            changes["message_bytes"] = inputs.update_bytes * ratio
        return super().timeline(inputs, methods, **changes)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Returns the arrivals of groups, at each server by itself where the gradient is local.

        With several servers the plan is (steps, servers), the seconds are those of the last one. A
        group sends each server its block after it has computed all blocks.
        """
        if not methods.by_block:
            return self.timeline(inputs, methods)
        trace, seed, sent = inputs.trace, inputs.setup.seed, dict[int, int]()
        server_of = methods.servers(inputs.model.problem)
        assert server_of
        for name, block in inputs.model.params.items():
            sent[server_of[name]] = sent.get(server_of[name], 0) + bytes_of(block)
        if inputs.setup.cluster.service.name == "race" or (trace and not trace.has("worker")):
            order = trace and trace.with_order(trace.worker)  # all servers have one order
            line = self.timeline(inputs, methods, trace=order)
            return _join_servers([line] * len(sent))._replace(batch=line.batch)
        orders: list[RecordedTrace | None] = [None] * len(sent)
        if trace:
            workers = trace.workers((len(sent),), self.groups)
            orders = [trace.with_order(worker) for worker in workers.T]
        names = [f"server {server}" for server in range(1, len(sent))]
        server_seeds = [seed, *(seeds.number(seed, name, below=2**32) for name in names)]
        lines = [
            self.timeline(
                inputs, methods, update_bytes=sent[n], seed=server_seeds[n], trace=orders[n]
            )
            for n in range(len(sent))
        ]
        return _join_servers(lines)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        cluster, bound = setup.cluster, self.staleness_bound
        yield from super().joins(setup, methods)
        if cluster.service.name == "race" and self.fresh:
            yield from _merged_race(setup, methods, self.fresh)
        yield self.compression_join("", "top_k", "sign")
        pieces = cluster.pieces != Pieces()
        other = methods.by_block or bound >= 0 or pieces or setup.replicas.count
        other = other or not cluster.service.is_drawn
        for key in VOLUNTEER_KEYS:
            reason = "needs method.name=asynchronous and a sampled service law; it excludes "
            reason += "cluster.pieces, staleness_bound, replicas, and local"
            yield Join(f"cluster.{key}", getattr(cluster, key) and other, reason)
        ordered = cluster.service.is_drawn or cluster.service.name in RECORDED
        reason = f"needs config.cluster.service.name one of {', '.join((*DRAWN, *RECORDED))}, and "
        reason += "no cluster.pieces"
        yield Join("method.staleness_bound", bound >= 0 and (not ordered or pieces), reason)
        replicas = bound >= 0 and setup.replicas.count
        yield Join("method.staleness_bound", replicas, "excludes replicas")
        if not self.compressor():
            return
        key = "method.compression"
        part = methods.gradient or self.fresh or self.snapshots == "host"
        yield Join(key, part, "excludes local, method.fresh and method.snapshots = 'host'")
        undrawn = cluster.service.name in ("race", "geometric")
        undrawn = undrawn or pieces or any(getattr(cluster, name) for name in VOLUNTEER_KEYS)
        reason = f"needs config.cluster.service.name one of {', '.join(DRAWN)}; it excludes "
        yield Join(key, undrawn, f"{reason}cluster.pieces, {', '.join(VOLUNTEER_KEYS)}")
        yield Join(key, self.groups == 1, "needs method.groups of at least 2")


def _join_servers(lines: Sequence[Timeline]) -> Timeline:
    plans = [(line.plan, line.staleness) for line in lines]
    plan, staleness = jax.tree.map(lambda *leaves: np.stack(leaves, axis=-1), *plans)
    last = np.max([line.seconds for line in lines], axis=0)
    return lines[0]._replace(seconds=last, staleness=staleness, plan=plan, batch=None)


def _merged_race(setup: Setup, methods: MethodStack, fresh: tuple[str, ...]) -> Iterator[Join]:
    names = [name for name, _ in models.make(setup.model, classes=2)]
    yield Join("method.fresh", not before(names, fresh), LAST.format(", ".join(names)))
    reason = "in a race groups must take the gradient of the whole model's loss"
    yield Join("method.fresh", methods.gradient, reason)
    reason = "in a race config.probes.steer must be False, as these blocks are ahead"
    yield Join("method.fresh", setup.probes.steer, reason)


@dataclass(frozen=True)
class Ringmaster(Grouped, name="ringmaster"):
    """Asynchronous SGD that drops old gradients: Ringmaster ASGD (arXiv 2501.16168).

        x_{t+1} = x_t - alpha grad f(x_{t - tau})      if tau < R
        x_t stays                                      otherwise

    tau counts the updates since the arriving group had read; it reads the newest version in either
    case. With R = infinity it is asynchronous SGD; with R = 1 an update is of a group that was not
    overtaken. A dropped gradient took its group as long as any other, and is no row of the
    timeline, so `config.steps` counts what is applied. Its examples are not lost: in a race the
    group takes the same batch again, and elsewhere batch t is that of update t.
    """

    delay_bound: int = field(
        0,
        "R, gradients that are R or more updates old are dropped; 0: none.",
        expected="at least 1, or 0 for none",
        is_valid=lambda v: v >= 0,
    )

    laws = (*DRAWN, "race")
    cluster = ("split", "overlap", "speeds", "regions")

    @property
    def policy(self) -> Policy:
        drops = self.delay_bound and self.groups > 1
        return Policy(delay_bound=self.delay_bound if drops else math.inf)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        replicas = self.delay_bound and setup.replicas.count
        yield Join("method.delay_bound", replicas, "excludes replicas")
        hosted = methods.gradient and self.snapshots == "host"
        yield Join("method.snapshots", hosted, f"excludes config.method.name = {methods.name!r}")


def ringleader(
    gradient: Gradient, update: Update, slots: int, count: int, rounded: bool = False
) -> Rule[SnapshotState]:
    """Returns the rule of n = `count` groups, each of which has a slot.

    `event.plan` is a `WorkerStep`: an arrival that exchanges applies the table. Its numbers are
    `table`, 0 or 1, which of the two its gradient enters, and `number`, b_i. The optimizer is given
    the staleness of the arriving gradient, and what that was taken at.
    """
    inner = asynchronous(gradient, update, slots, rounded=rounded)

    def init(params: Params) -> SnapshotState:
        tables = jax.tree.map(lambda leaf: jnp.zeros((2, count, *leaf.shape), leaf.dtype), params)
        return inner.init(params)._replace(gradients=tables)

    def step(state: SnapshotState, event: Event, batch: Batch) -> tuple[SnapshotState, Info]:
        i, applied, numbers = event.plan
        table, b = numbers["table"], numbers["number"]
        read_params = state.read_slot(i)
        loss, grads = gradient(read_params, event, batch)

        def enter(G: jax.Array, g: jax.Array) -> jax.Array:
            return G.at[table, i].set((1 - 1 / b) * G[table, i] + g / b)

        tables = jax.tree.map(enter, state.gradients, grads)
        mean = jax.tree.map(lambda G: G[table].mean(axis=0), tables)
        before = state.params, state.opt_state
        updated = update.apply(mean, state.opt_state, state.params, event, read_params)
        params, opt_state = where(applied, updated, before)
        after = state._replace(gradients=tables).after(params, opt_state, jnp.asarray(i))
        return after, {"loss": loss}

    return Rule(init, step)


def table_rounds(worker: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the table of each arrival, its b_i, and whether it is applied, (steps,) each."""
    table, number = np.zeros((2, len(worker)), np.int32)
    applied, b = np.zeros(len(worker), bool), np.zeros((2, count), np.int32)
    now, waiting = 0, set[int]()  # the round's table; the groups that have yet to apply it
    for t, i in enumerate(worker.tolist()):
        next_round = bool(waiting) and i not in waiting
        table[t] = now ^ next_round
        b[table[t], i] += 1
        number[t] = b[table[t], i]
        if not waiting and b[now].all():
            waiting = set(range(count))
        if i in waiting:
            applied[t] = True
            waiting.remove(i)
            if not waiting:
                b[now], now = 0, 1 - now
    return table, number, applied


@dataclass(frozen=True)
class Ringleader(Grouped, name="ringleader"):
    """Ringleader ASGD (Maranjyan and Richtarik, arXiv 2509.22860): every group in every update.

        G_i     <- (1 - 1/b_i) G_i + g / b_i        a gradient g of group i arrives, its b_i-th
        x_{t+1} =  x_t - alpha 1/n sum_i G_i        if it is one that applies the table

    Nobody waits, and an arriving group reads the newest parameters. The server works in rounds of n
    updates. It gathers until each group has an entry. The arrival that completes the table applies
    it, and so does the next arrival of each other group. What a group sends after that goes into
    the table of the next round. So no applied gradient is older than 2n - 2 updates. One group is
    SGD. A row of the timeline is an arrival, of a gradient of a whole batch.
    """

    groups: int = field(1, "Compute groups, each synchronous inside.", at_least=1, static=True)

    single = False
    gathers = True
    cluster = ("split", "overlap", "speeds", "regions")

    def read(self, gradient: Gradient, update: Update, slots: int, servers: Servers) -> Rule:
        return ringleader(gradient, update, slots, self.groups, is_rounded(self.snapshots))

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Returns the arrivals of groups; the staleness counts updates, not arrivals."""
        line = self.timeline(inputs, methods)
        table, number, applied = table_rounds(line.worker, self.groups)
        t, updates = np.arange(len(applied)), np.append(0, np.cumsum(applied, dtype=np.int32))
        staleness = updates[t] - updates[t - line.staleness]
        plan = WorkerStep(line.worker, applied, {"table": table, "number": number})
        return line._replace(staleness=staleness, plan=plan)
