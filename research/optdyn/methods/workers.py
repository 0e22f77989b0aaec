"""Workers that each have parameters and an optimizer, arrive by themselves and exchange.

    w_i <- w_i - gamma grad f(w_i)      an arrival of worker i: a local step; with each H_i-th it
                                        exchanges, by its method's rule

A worker is a compute group of `asynchronous.py`, with its law of service; row i of a table is of
worker i. In a race a worker takes all steps up to its next exchange by itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from optdyn.base import seeds
from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.base.trees import Array, Hyper, Tree, bytes_of
from optdyn.clock.arrivals import Work, group_work, renewal_arrivals
from optdyn.clock.timeline import Timeline, WorkerStep
from optdyn.clock.versions import Exchanges, blank_timeline, exchanges_and_staleness, replay_order
from optdyn.core import (
    Batch,
    Event,
    Gradient,
    Info,
    Params,
    Rule,
    Update,
    relative_spread,
    snapshots,
    where,
)
from optdyn.methods.asynchronous import divides, races
from optdyn.methods.method import (
    ClockInputs,
    MethodStack,
    OnGraph,
    Periodic,
    Reads,
    Servers,
    slowed,
)
from optdyn.methods.setup import Setup


class LocalResult(NamedTuple):
    """The message of a race's worker that has taken local steps."""

    loss: jax.Array  # of the last step, or of each
    params: Params
    opt_state: Tree
    before: Tree = ()  # parameters before the last step, for methods that ask for them


def local_step(gradient: Gradient, update: Update) -> Callable[..., LocalResult]:
    """Returns (params, opt_state, event, batch) -> result; a race gives its result as the batch."""

    def step(params: Params, opt_state: Tree, event: Event, batch: Tree) -> LocalResult:
        if isinstance(batch, LocalResult):
            return batch
        loss, grads = gradient(params, event, batch)
        return LocalResult(loss, *update.apply(grads, opt_state, params, event, params), params)

    return step


def local_steps(
    gradient: Gradient, update: Update, before: bool = False
) -> Callable[..., LocalResult]:
    """Returns the work of a race's worker: a local step for each row of batch numbers."""
    step = local_step(gradient, update)

    def work(start: Tree, hyper: Hyper, batch: Callable[..., Batch], chosen: Array) -> LocalResult:
        def one(state: Tree, numbers: Tree) -> tuple[Tree, jax.Array]:
            after = step(*state[:2], Event((), hyper), batch(numbers))
            return tuple(after[1:]), after.loss

        params, opt_state = start
        after, losses = lax.scan(one, (params, opt_state, params), chosen)
        return LocalResult(losses, *(after if before else after[:2]))

    return work


Table = Tree  # a pytree, leaves (workers, ...)


def table(tree: Tree, workers: int) -> Table:
    return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], workers, axis=0), tree)


def row(table: Table, i: Array | int) -> Tree:
    """Returns row i, all of which is read before anything is written into the table."""
    return snapshots.read_first(snapshots.row, table, jnp.asarray(i))


def put(table: Table, i: Array, tree: Tree) -> Table:
    """Returns the table with row i replaced; unchanged if i is beyond its rows."""
    return jax.tree.map(lambda leaf, row: leaf.at[i].set(row), table, tree)


def round_trip_bytes(exchange: Array, params: Params) -> jax.Array:
    """Returns twice the bytes of the parameters, float32, where there is an exchange, else 0."""
    return jnp.where(exchange, jnp.float32(2 * bytes_of(params)), 0.0)


@dataclass(frozen=True)
class WorkerMethod(Reads):
    """A method whose workers each have parameters."""

    groups: int = field(1, "Compute groups, each synchronous inside.", at_least=1, static=True)

    cluster: ClassVar[tuple[str, ...]] = ("split", "overlap", "speeds")
    barrier = False
    has_worker_params = True
    info = ("sent_bytes",)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield divides(self.groups, setup, methods)
        key, optimizer = "cluster.service.name", setup.optimizer
        if setup.cluster.service.name != "race":
            return
        yield from races("", setup)
        changing = optimizer.schedule != "constant" or optimizer.warmup_steps
        reason = "needs config.optimizer.schedule = 'constant', without warmup_steps, as workers "
        reason += "that take local steps do not know the number of an update"
        yield Join(key, changing, reason)
        stale = "staleness_rate" in optimizer.chain
        reason = "needs config.optimizer.chain without 'staleness_rate', as local steps know none"
        yield Join(key, stale, reason)
        reason = "needs config.probes.momentum = False, as it does not see local steps"
        yield Join(key, setup.probes.momentum, reason)

    def work(self, inputs: ClockInputs, methods: MethodStack, sent: bool) -> Work:
        """Returns the mean seconds of a local step, with its exchange if that is `sent`."""
        setup, cluster = inputs.setup, slowed(inputs, methods)
        return group_work(cluster, self.groups, setup.batch_size, inputs.update_bytes, sent)

    def exchanged(self, plan: WorkerStep) -> np.ndarray:
        """Returns the share of the parameters that a step sends, and gets back, (steps, ...)."""
        return np.asarray(plan.exchange)

    def local_steps_timeline(
        self,
        inputs: ClockInputs,
        methods: MethodStack,
        periods: Sequence[int],
        is_stale: bool = True,
    ) -> Timeline:
        """Returns the arrivals of local steps, of which each `periods[i]`-th of worker i exchanges.

        An exchange adds two messages of `update_bytes` to a step's service. The staleness counts
        the exchanges of others since the worker's last; it is 0 unless `is_stale`.
        """
        setup, trace = inputs.setup, inputs.trace
        if trace or setup.cluster.service.name == "race":
            line = blank_timeline(self.groups, setup.steps)
            line = line._replace(plan=WorkerStep(line.worker, np.zeros(setup.steps, bool)))
            if trace:
                trace.require_groups(trace.worker, self.groups)
                replay_order(
                    Exchanges(line, periods, is_stale=is_stale), trace.worker, trace.seconds
                )
            return line
        quiet, sending = (self.work(inputs, methods, sent) for sent in (False, True))
        cycles = [
            [quiet.services(i)] * (n - 1) + [sending.services(i)] for i, n in enumerate(periods)
        ]
        compute, sent = (
            [np.concatenate([service[n] for service in cycle]) for cycle in cycles]
            for n in range(2)
        )
        work, stream = Work(compute, sent, sending.overlap), seeds.number(setup.seed, "arrivals")
        line = renewal_arrivals(stream, setup.cluster.service.draw, work, setup.steps)
        exchange, staleness = exchanges_and_staleness(line.worker, periods, is_stale)
        return line._replace(staleness=staleness, plan=WorkerStep(line.worker, exchange))


class ElasticState(NamedTuple):
    params: Params  # w*
    workers: Table  # w_i
    opt_state: Table

    def moved_to(self, params: Params) -> "ElasticState":
        """Returns the state with another w*; the workers stay, and are pulled there."""
        return self._replace(params=params)

    def read_slot(self, worker: int) -> tuple[Params, Tree]:
        return row((self.workers, self.opt_state), worker)

    def logged(self) -> dict[str, float]:
        return {"worker_distance": relative_spread(self.workers)}


def elastic(gradient: Gradient, update: Update, workers: int) -> Rule[ElasticState]:
    """Returns the rule; `event.plan` is a `WorkerStep` with the number `elasticity`, a."""

    local = local_step(gradient, update)

    def init(params: Params) -> ElasticState:
        return ElasticState(params, table(params, workers), table(update.init(params), workers))

    def step(state: ElasticState, event: Event, batch: Batch) -> tuple[ElasticState, Info]:
        i, exchange, numbers = event.plan
        w = row(state.workers, i)
        loss, after, opt_state, w = local(w, row(state.opt_state, i), event, batch)
        a = numbers["elasticity"]
        s = jax.tree.map(lambda w, c: a.astype(w.dtype) * (w - c), w, state.params)
        center = where(exchange, jax.tree.map(jnp.add, state.params, s), state.params)
        after = where(exchange, jax.tree.map(jnp.subtract, after, s), after)
        table = put(state.workers, i, after)
        info = {"loss": loss, "sent_bytes": round_trip_bytes(exchange, w)}
        return ElasticState(center, table, put(state.opt_state, i, opt_state)), info

    return Rule(init, step)


@dataclass(frozen=True)
class Elastic(WorkerMethod, Periodic, name="elastic"):
    """Elastic averaging SGD, EASGD and EAMSGD (Zhang, Choromanska and LeCun, arXiv 1412.6651).

        s   = a (w_i - w*)              with every H-th arrival of worker i, else 0
        w*  <- w* + s                   the center, which is evaluated
        w_i <- w_i - gamma g(w_i) - s   by its own optimizer: with momentum it is EAMSGD

    As in the paper's algorithm 1 the spring pulls at w_i as it was before the local step. The
    paper's a is 0.9 / p for p workers: the key is p a, so that at 1 the center would be the
    workers' mean if all exchanged at once.
    """

    elasticity: float = field(
        0.9, "p a, for p groups; an exchange moves both sides by a times their distance."
    )

    laws = (*WorkerMethod.laws, "race")

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = f"from 0 to config.method.groups = {self.groups}"
        self.require("elasticity", 0 <= self.elasticity <= self.groups, expected)

    def read(self, gradient: Gradient, update: Update, slots: int, servers: Servers) -> Rule:
        return elastic(gradient, update, self.groups)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        line = self.local_steps_timeline(inputs, methods, self.periods, is_stale=False)
        a = np.full(inputs.setup.steps, self.elasticity / self.groups, np.float32)
        return line._replace(plan=line.plan._replace(numbers={"elasticity": a}))

    @property
    def periods(self) -> list[int]:
        return [self.period] * self.groups

    def order(self, setup: Setup, methods: MethodStack, line: Timeline) -> Exchanges:
        return Exchanges(line, self.periods, is_stale=False)

    def message(self, gradient: Gradient, update: Update) -> Callable[..., LocalResult]:
        return local_steps(gradient, update, before=True)


class ADPSGDState(NamedTuple):
    workers: Table  # x_i
    read: Table  # x_i read
    opt_state: Table
    newest: jax.Array  # int32, the worker that has just read, or the number of workers

    @property
    def params(self) -> Params:
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), self.workers)

    def moved_to(self, params: Params) -> "ADPSGDState":
        """Returns the state with another mean; of what workers have read, only the newest moves."""
        shift = jax.tree.map(jnp.subtract, params, self.params)
        workers = jax.tree.map(jnp.add, self.workers, shift)
        read = put(self.read, self.newest, row(workers, self.newest))
        return self._replace(workers=workers, read=read)

    def logged(self) -> dict[str, float]:
        return {"worker_distance": relative_spread(self.workers)}


def ad_psgd(gradient: Gradient, update: Update, workers: int) -> Rule[ADPSGDState]:
    """Returns the rule; `event.plan` is a `WorkerStep` with the number `peer`, j."""

    def init(params: Params) -> ADPSGDState:
        workers_table, opt_state = table(params, workers), table(update.init(params), workers)
        return ADPSGDState(workers_table, workers_table, opt_state, jnp.int32(workers))

    def step(state: ADPSGDState, event: Event, batch: Batch) -> tuple[ADPSGDState, Info]:
        i, j = event.plan.worker, event.plan.numbers["peer"]
        x, read = row(state.workers, i), row(state.read, i)
        loss, grads = gradient(read, event, batch)
        mean = jax.tree.map(lambda x, y: (x + y) / 2, x, row(state.workers, j))
        x, opt_state = update.apply(grads, row(state.opt_state, i), mean, event, read)
        workers_table = put(put(state.workers, j, mean), i, x)
        info = {"loss": loss, "sent_bytes": round_trip_bytes(i != j, x)}
        read, opt_state = put((state.read, state.opt_state), i, (x, opt_state))
        return ADPSGDState(workers_table, read, opt_state, i), info

    return Rule(init, step)


def peers(worker: np.ndarray, workers: int, graph: str, rng: np.random.Generator) -> np.ndarray:
    """Returns a neighbour of each arriving worker, all equally likely, (steps,) int32."""
    draws = rng.random(len(worker))  # a longer run begins with the shorter one
    shift = np.where(draws < 0.5, 1, -1)
    if graph == "complete":
        shift = 1 + (draws * (workers - 1)).astype(int)
    return ((worker + shift) % workers).astype(np.int32)


@dataclass(frozen=True)
class ADPSGD(WorkerMethod, OnGraph, name="ad_psgd"):
    """Asynchronous decentralized parallel SGD, AD-PSGD (Lian et al., arXiv 1710.06952).

        x_i, x_j <- (x_i + x_j) / 2                 worker i arrives and meets a peer j in its graph
        x_i      <- x_i - gamma grad f(x_i read)    read: when its gradient was begun
        x_i read <- x_i

    Nobody waits. Others meet worker i while it computes and move x_i, so its gradient is stale. A
    meeting keeps the mean of all x_i, which is evaluated.
    """

    def read(self, gradient: Gradient, update: Update, slots: int, servers: Servers) -> Rule:
        return ad_psgd(gradient, update, self.groups)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """Returns the arrivals of workers; staleness counts others' since the worker read."""
        line = self.local_steps_timeline(inputs, methods, [1] * self.groups)
        rng = seeds.generator(inputs.setup.seed, "peers")
        peer = peers(line.worker, self.groups, self.graph, rng)
        return line._replace(plan=WorkerStep(line.worker, numbers={"peer": peer}))

    def exchanged(self, plan: WorkerStep) -> np.ndarray:
        return np.asarray(plan.numbers["peer"] != plan.worker)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        yield self.graph_join("ring", "complete")
