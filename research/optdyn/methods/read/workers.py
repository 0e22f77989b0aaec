"""Workers with parameters of their own that arrive by themselves: their table and their clock.

    w_i <- w_i - gamma grad f(w_i)      an arrival of worker i: a local step, by an optimizer of its
                                        own; with every H_i-th it exchanges, by its method's rule

A worker is a compute group of `asynchronous.py`, with its law of service. A row of a table is what
worker i has: parameters, what it has read, an optimizer's state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base import seeds
from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.base.trees import Tree, bytes_of
from optdyn.clock.arrivals import Work, arrivals
from optdyn.clock.base import Timeline, from_arrivals
from optdyn.clock.compute_groups import habits_of, work_of
from optdyn.clock.exchanges import batches, exchanges
from optdyn.clock.versions import empty
from optdyn.clock.volunteers import volunteers
from optdyn.core import Array, Params, distance, snapshots
from optdyn.methods.method import ClockInputs, Methods, Reads, slowed
from optdyn.methods.read import local_steps
from optdyn.methods.read.groups import divides
from optdyn.methods.setup import Setup

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


def mean(table: Table) -> Tree:
    """The mean of the rows."""
    return jax.tree.map(lambda leaf: leaf.mean(axis=0), table)


def where(condition: Array, tree: Tree, other: Tree) -> Tree:
    """`jnp.where` over pytrees, in the dtypes of `other`."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b).astype(b.dtype), tree, other)


def both_ways(exchange: Array, params: Params) -> jax.Array:
    """Bytes, float32, of the parameters to the other side and back, where there is an exchange."""
    return jnp.where(exchange, jnp.float32(2 * bytes_of(params)), 0.0)


def logged(workers: Table) -> dict[str, float]:
    """The distance of workers from their mean, for the log."""
    return {"worker_distance": distance(workers)}


@dataclass(frozen=True)
class WorkerMethod(Reads):
    """A method whose workers have parameters of their own."""

    groups: int = field(1, "Compute groups, each synchronous inside.", at_least=1, static=True)

    cluster: ClassVar[tuple[str, ...]] = ("split", "overlap", "speeds")
    barrier = False
    workers = True
    info = ("sent_bytes",)

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield divides(self.groups, setup, methods)
        if setup.cluster.service.name == "race":
            yield from local_steps.races(setup)


def local_work(of: WorkerMethod, setting: ClockInputs, methods: Methods, sent: bool) -> Work:
    """What workers do for a local step, their exchange `sent` or not.

    A gradient that is slower, as a local one may be, is so here too.
    """
    setup, cluster = setting.setup, slowed(setting, methods)
    return work_of(cluster, of.groups, setup.batch_size, setting.update_bytes, sent)


def timeline(
    of: WorkerMethod,
    setting: ClockInputs,
    methods: Methods,
    periods: Sequence[int],
    is_stale: bool = True,
) -> tuple[Timeline, np.ndarray]:
    """Arrivals of local steps, and (steps,) bool: which of them exchange.

    Those of worker i do at every `periods[i]`-th. Its service has two messages of `update_bytes` in
    it then, as all of `asynchronous` have. The staleness is how many exchanges of others there were
    since the worker's own last one; none where what it read then does not count (`is_stale`).
    """
    setup = setting.setup
    if setup.cluster.service.name == "race":
        return empty(len(periods), setup.steps), np.zeros(setup.steps, bool)
    if held := setting.held:
        held.groups(held.worker, len(periods))
        line = from_arrivals(held.worker, held.seconds, len(periods))
        exchange, late, _ = exchanges(line.worker, periods, is_stale)
        return line._replace(staleness=late, batch=batches(line.worker, periods)), exchange
    alone, exchanged = (local_work(of, setting, methods, sent) for sent in (False, True))
    cycles = [[alone.of(i)] * (period - 1) + [exchanged.of(i)] for i, period in enumerate(periods)]
    compute, sent = (
        [np.concatenate([each[n] for each in own]) for own in cycles] for n in range(2)
    )
    work = Work(compute, sent, exchanged.overlap)
    stream = seeds.number(setup.seed, "arrivals")
    line = arrivals(stream, setup.cluster.service.draw, work, setup.steps)
    exchange, late, _ = exchanges(line.worker, periods, is_stale)
    return line._replace(staleness=late), exchange


def unhindered(of: WorkerMethod, setting: ClockInputs, methods: Methods) -> Timeline:
    """Arrivals of local steps of workers that wait for no message; they may come and go."""
    setup, count = setting.setup, of.groups
    if held := setting.held:
        held.groups(held.worker, count)
        return from_arrivals(held.worker, held.seconds, count)
    work, service = local_work(of, setting, methods, sent=False), setup.cluster.service.draw
    stream = seeds.number(setup.seed, "arrivals")
    if habits := habits_of(setup.cluster, count, 0):
        return volunteers(stream, service, work, setup.steps, habits)[0]
    return arrivals(stream, service, work, setup.steps)


def by_speed(of: WorkerMethod, setting: ClockInputs, methods: Methods, period: int) -> list[int]:
    """How many local steps each worker takes while the fastest takes `period`; at least one."""
    seconds = local_work(of, setting, methods, sent=False).means().max(axis=1)
    shares = seconds.min() / seconds
    return [max(int(period * share + 1e-9), 1) for share in shares]
