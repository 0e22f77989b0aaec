"""Workers with parameters of their own that arrive by themselves, and meet whom they do.

    w_i <- w_i - gamma grad f(w_i)      an arrival of worker i: a local step, by an optimizer of its
                                        own; with every H_i-th it exchanges, by its method's rule

A worker is a compute group of `asynchronous.py`, with its law of service. A row of a table is what
worker i has: parameters, what it has read, an optimizer's state. In a race a worker takes all steps
up to its next exchange by itself, and sends where it is then.

    elastic   it pulls at a center, and the center at it
    ad_psgd   it meets a neighbour, and both have the mean
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from optdyn.base import seeds
from optdyn.base.errors import Join, one_of_these
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
from optdyn.methods.method import ClockInputs, MethodStack, OnGraph, Periodic, Reads, slowed
from optdyn.methods.setup import Setup


class LocalResult(NamedTuple):
    """The message of a race's worker that has taken local steps."""

    loss: jax.Array  # of each, or of the last
    params: Params
    opt_state: Tree
    before: Tree = ()  # where the last step began, for methods that ask for it


def local_step(gradient: Gradient, update: Update) -> Callable[..., LocalResult]:
    """(w_i, state of its optimizer, event, batch) -> after a local step.

    Or, in place of the batch, what the worker says that has taken it by itself.
    """

    def step(params: Params, opt_state: Tree, event: Event, batch: Tree) -> LocalResult:
        if isinstance(batch, LocalResult):
            return batch
        loss, grads = gradient(params, event, batch)
        return LocalResult(loss, *update.apply(grads, opt_state, params, event, params), params)

    return step


def local_steps(
    gradient: Gradient, update: Update, before: bool = False
) -> Callable[..., LocalResult]:
    """A race's worker: it takes one local step for each of the batches that it is given.

    With `before` its message also has the parameters before the last step: as much again to send.
    """
    step = local_step(gradient, update)

    def work(given: Tree, hyper: Hyper, batch: Callable[..., Batch], chosen: Array) -> LocalResult:
        def one(own: Tree, numbers: Tree) -> tuple[Tree, jax.Array]:
            after = step(*own[:2], Event((), hyper), batch(numbers))
            return tuple(after[1:]), after.loss

        params, opt_state = given
        after, losses = lax.scan(one, (params, opt_state, params), chosen)
        return LocalResult(losses, *(after if before else after[:2]))

    return work


Table = Tree  # a pytree, leaves (workers, ...)


def table(tree: Tree, workers: int) -> Table:
    """A table of so many `workers` whose rows are all this tree."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], workers, axis=0), tree)


def row(table: Table, i: Array | int) -> Tree:
    """Row i, all of which is read before anything is written into the table."""
    return snapshots.read_first(snapshots.row, table, jnp.asarray(i))


def put(table: Table, i: Array, tree: Tree) -> Table:
    """The table with this row; as it was, if it has so few that there is no row i."""
    return jax.tree.map(lambda leaf, own: leaf.at[i].set(own), table, tree)


def round_trip_bytes(exchange: Array, params: Params) -> jax.Array:
    """Bytes, float32, of the parameters to the other side and back, where there is an exchange."""
    return jnp.where(exchange, jnp.float32(2 * bytes_of(params)), 0.0)


@dataclass(frozen=True)
class WorkerMethod(Reads):
    """A method whose workers have parameters of their own."""

    groups: int = field(1, "Compute groups, each synchronous inside.", at_least=1, static=True)

    cluster: ClassVar[tuple[str, ...]] = ("split", "overlap", "speeds")
    barrier = False
    workers = True
    info = ("sent_bytes",)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield divides(self.groups, setup, methods)
        key, optimizer = "cluster.service.name", setup.optimizer
        if setup.cluster.service.name != "race":
            return
        yield from races("", setup)  # and local steps depend on nothing that a worker cannot know
        changing = optimizer.schedule != "constant" or optimizer.warmup_steps
        said = "config.optimizer.schedule must be 'constant', without warmup_steps, for workers "
        said += "that take local steps do not know the number of an update"
        yield Join(key, changing, said)
        stale = "staleness_rate" in optimizer.chain
        yield Join(key, stale, "config.optimizer.chain: local steps know no staleness")
        said = "config.probes.momentum must be False, of local steps unseen"
        yield Join(key, setup.probes.momentum, said)

    def work(self, inputs: ClockInputs, methods: MethodStack, sent: bool) -> Work:
        """What workers do for a local step, their exchange `sent` or not."""
        setup, cluster = inputs.setup, slowed(inputs, methods)
        return group_work(cluster, self.groups, setup.batch_size, inputs.update_bytes, sent)

    def exchanged(self, plan: WorkerStep) -> np.ndarray:
        """The part of the parameters that each step sends, and gets back, (steps, ...)."""
        return np.asarray(plan.exchange)

    def exchanging(
        self,
        inputs: ClockInputs,
        methods: MethodStack,
        periods: Sequence[int],
        is_stale: bool = True,
    ) -> Timeline:
        """Arrivals of local steps, of which those of worker i exchange at every `periods[i]`-th.

        Its service has two messages of `update_bytes` in it then, as all of `asynchronous` have.
        The staleness is how many exchanges of others there were since the worker's own last one;
        none where what it read then does not count (`is_stale`). The plan is a `WorkerStep`.
        """
        setup, trace = inputs.setup, inputs.trace
        if trace or setup.cluster.service.name == "race":
            line = blank_timeline(self.groups, setup.steps)
            line = line._replace(plan=WorkerStep(line.worker, np.zeros(setup.steps, bool)))
            if trace:
                trace.groups(trace.worker, self.groups)
                replay_order(
                    Exchanges(line, periods, is_stale=is_stale), trace.worker, trace.seconds
                )
            return line
        alone, exchanged = (self.work(inputs, methods, sent) for sent in (False, True))
        cycles = [[alone.of(i)] * (n - 1) + [exchanged.of(i)] for i, n in enumerate(periods)]
        compute, sent = (
            [np.concatenate([service[n] for service in cycle]) for cycle in cycles]
            for n in range(2)
        )
        work, stream = Work(compute, sent, exchanged.overlap), seeds.number(setup.seed, "arrivals")
        line = renewal_arrivals(stream, setup.cluster.service.draw, work, setup.steps)
        exchange, late = exchanges_and_staleness(line.worker, periods, is_stale)
        return line._replace(staleness=late, plan=WorkerStep(line.worker, exchange))


class ElasticState(NamedTuple):
    params: Params  # w*
    workers: Table  # w_i
    opt_state: Table

    def moved_to(self, params: Params) -> "ElasticState":
        """w* is other parameters; the workers stay, and are pulled there."""
        return self._replace(params=params)

    def at(self, worker: int) -> tuple[Params, Tree]:
        """What a worker goes on with that has exchanged: w_i, and the state of its optimizer."""
        return row((self.workers, self.opt_state), worker)

    def logged(self) -> dict[str, float]:
        """The distance of workers from their mean, for the log."""
        return {"worker_distance": relative_spread(self.workers)}


def elastic(gradient: Gradient, update: Update, workers: int) -> Rule[ElasticState]:
    """Rule of a table of `workers`; of a `WorkerStep` the number `elasticity` is a."""

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

    As in the paper's algorithm 1 the spring pulls at what w_i was before the local step. An
    exchange keeps w* + sum_i w_i. The paper's a is 0.9 / p for p workers: the key is p a, so that
    at 1 the center would be the workers' mean if all exchanged at once. It is 0 where workers are
    on their own.
    """

    elasticity: float = field(
        0.9, "P a, of p groups; an exchange moves both sides by a of their distance."
    )

    laws = (*WorkerMethod.laws, "race")

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = f"from 0 to config.method.groups = {self.groups}"
        self.require("elasticity", 0 <= self.elasticity <= self.groups, expected)

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return elastic(gradient, update, self.groups)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """All workers have one period; a gradient is taken at what its worker is: none is stale."""
        line = self.exchanging(inputs, methods, self.periods, is_stale=False)
        a = np.full(inputs.setup.steps, self.elasticity / self.groups, np.float32)
        return line._replace(plan=line.plan._replace(numbers={"elasticity": a}))

    @property
    def periods(self) -> list[int]:
        """H of every worker."""
        return [self.period] * self.groups

    def order(self, setup: Setup, methods: MethodStack, line: Timeline) -> Exchanges:
        """The order of arrivals in a race, which writes who exchanges when."""
        return Exchanges(line, self.periods, is_stale=False)

    def message(self, gradient: Gradient, update: Update) -> Callable[..., LocalResult]:
        return local_steps(gradient, update, before=True)


GRAPHS = ("ring", "complete")


class ADPSGDState(NamedTuple):
    workers: Table  # x_i
    read: Table  # x_i read
    opt_state: Table
    newest: jax.Array  # int32, who has just read, or the number of workers

    @property
    def params(self) -> Params:
        """The mean."""
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), self.workers)

    def moved_to(self, params: Params) -> "ADPSGDState":
        """The mean is other parameters; workers differ from it as before.

        What they have read stays, but for who has just read it.
        """
        shift = jax.tree.map(jnp.subtract, params, self.params)
        every = jax.tree.map(jnp.add, self.workers, shift)
        read = put(self.read, self.newest, row(every, self.newest))
        return self._replace(workers=every, read=read)

    def logged(self) -> dict[str, float]:
        """The distance of workers from their mean, for the log."""
        return {"worker_distance": relative_spread(self.workers)}


def ad_psgd(gradient: Gradient, update: Update, workers: int) -> Rule[ADPSGDState]:
    """Rule of a table of `workers`.

    Of a `WorkerStep` the number `peer` is j, whom worker i meets; i itself where it is alone.
    """

    def init(params: Params) -> ADPSGDState:
        every, opt_state = table(params, workers), table(update.init(params), workers)
        return ADPSGDState(every, every, opt_state, jnp.int32(workers))

    def step(state: ADPSGDState, event: Event, batch: Batch) -> tuple[ADPSGDState, Info]:
        i, j = event.plan.worker, event.plan.numbers["peer"]
        x, read = row(state.workers, i), row(state.read, i)
        loss, grads = gradient(read, event, batch)
        met = jax.tree.map(lambda x, y: (x + y) / 2, x, row(state.workers, j))
        x, opt_state = update.apply(grads, row(state.opt_state, i), met, event, read)
        every = put(put(state.workers, j, met), i, x)
        info = {"loss": loss, "sent_bytes": round_trip_bytes(i != j, x)}
        read, opt_state = put((state.read, state.opt_state), i, (x, opt_state))
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
class ADPSGD(WorkerMethod, OnGraph, name="ad_psgd"):
    """Asynchronous decentralized parallel SGD, AD-PSGD (Lian et al., arXiv 1710.06952).

        x_i, x_j <- (x_i + x_j) / 2                 worker i arrives and meets a peer j in its graph
        x_i      <- x_i - gamma grad f(x_i read)    read: when its gradient was begun
        x_i read <- x_i

    There is no server and nobody waits. In between others have met worker i and moved x_i, and so
    the gradient is stale. Meeting keeps the mean of all x_i, which is evaluated; a gradient moves
    it by gamma / p, of p workers.
    """

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        return ad_psgd(gradient, update, self.groups)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """A worker's service has its message to the peer and the peer's back.

        The peer is not held up. The staleness is how many others arrived since the worker had read.
        """
        line = self.exchanging(inputs, methods, [1] * self.groups)
        rng = seeds.generator(inputs.setup.seed, "peers")
        met = peers(line.worker, self.groups, self.graph, rng)
        return line._replace(plan=WorkerStep(line.worker, numbers={"peer": met}))

    def exchanged(self, plan: WorkerStep) -> np.ndarray:
        """All, but where a worker is alone."""
        return np.asarray(plan.numbers["peer"] != plan.worker)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        yield from super().joins(setup, methods)
        said = f"must be {one_of_these(self.graph, GRAPHS)}"
        yield Join("method.graph", self.graph not in GRAPHS, said)
