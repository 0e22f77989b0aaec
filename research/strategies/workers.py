"""Workers with parameters of their own that arrive by themselves: their table and their clock.

    w_i <- w_i - gamma grad f(w_i)      an arrival of worker i: a local step, by an optimizer of its
                                        own; with every H_i-th it exchanges, by its method's rule

A worker is a compute group of `asynchronous.py`, with its law of service. A row of a table is what
worker i has: parameters, what it has read, an optimizer's state.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from research import seeds
from research.strategies.asynchronous import divides
from research.strategies.base import Array, Event, Params, distance
from research.strategies.method import Chosen, Method, Setting, slowed
from research.timeline.arrivals import arrivals
from research.timeline.base import Timeline, from_arrivals
from research.timeline.compute_groups import service_means
from research.timeline.exchanges import exchanges
from research.timeline.service import DRAWN, law
from research.timeline.trace import recorded, verify
from research.timeline.versions import empty
from research.values import ConfigError

Table = Any  # a pytree, leaves (workers, ...)


def table(tree: Any, workers: int) -> Table:
    """The same in all rows."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], workers, axis=0), tree)


def row(table: Table, i: Array | int) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], table)


def put(table: Table, i: Array, tree: Any) -> Table:
    """The table with this row; as it was, if it has so few that there is no row i."""
    return jax.tree.map(lambda leaf, own: leaf.at[i].set(own), table, tree)


def mean(table: Table) -> Any:
    return jax.tree.map(lambda leaf: leaf.mean(axis=0), table)


def where(condition: Array, tree: Any, other: Any) -> Any:
    """One of two pytrees, in the types of the second; of the other one no number counts."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b).astype(b.dtype), tree, other)


def arriving(event: Event) -> jax.Array:
    """int32, the worker whose update it is; inside nodes every node has its own."""
    return jnp.asarray((event.control or {}).get("read", event.read), jnp.int32)


def both_ways(exchange: Array, params: Params) -> jax.Array:
    """Bytes, float32, of the parameters to the other side and back, where there is an exchange."""
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    return jnp.where(exchange, jnp.float32(2 * size), 0.0)


def logged(workers: Table) -> dict[str, float]:
    """For the log: how far workers are from their mean."""
    return {"worker_distance": distance(workers)}


def local_means(setting: Setting, methods: Chosen, sent: bool) -> np.ndarray:
    """(workers, k) mean seconds of a worker's devices for a local step, its exchange `sent` or not.

    A gradient that is slower, as a local one may be, is so here too.
    """
    config, cluster = setting.config, slowed(setting, methods)
    if not sent:
        cluster.latency = 0.0
    size = setting.update_bytes if sent else 0
    return service_means(cluster, config.strategy.groups, config.batch_size, size)


def timeline(
    setting: Setting, methods: Chosen, periods: Sequence[int]
) -> tuple[Timeline, np.ndarray]:
    """Arrivals of local steps, and (steps,) bool: which of them exchange.

    Those of worker i do at every `periods[i]`-th. Its service has two messages of `update_bytes` in
    it then, as all of `asynchronous` have. The staleness is how many exchanges of others there were
    since the worker's own last one.
    """
    config, groups = setting.config, len(periods)
    if config.cluster.service == "race":
        return empty(groups, config.steps), np.zeros(config.steps, bool)
    if config.cluster.service == "trace":
        held = recorded(config.cluster.trace, groups, config.steps)
        exchange, late, version = exchanges(held.worker, periods)
        verify(held, held.worker, version)
        line = from_arrivals(held.worker, held.seconds, groups)
        return line._replace(staleness=late, control=held.control), exchange
    alone, exchanged = (local_means(setting, methods, sent) for sent in (False, True))
    cycles = [
        np.stack([alone[i]] * (period - 1) + [exchanged[i]]) for i, period in enumerate(periods)
    ]
    stream = int(seeds.generator(config.seed, "arrivals").integers(2**63))
    line = arrivals(stream, law(config.cluster), cycles, config.steps)
    exchange, late, _ = exchanges(line.worker, periods)
    return line._replace(staleness=late), exchange


def check(config: ConfigDict, methods: Chosen) -> None:
    """Raises `ConfigError` where workers are not of equally many devices, or draw no times."""
    divides(config, methods)
    if any(config.cluster.pieces.values()):
        raise ConfigError(
            f"config.cluster.pieces: no server queues with config.strategy.name = {methods.name!r}"
        )


WORKERS = Method(
    compiled=("groups",),
    laws=DRAWN,
    cluster=("split", "overlap", "speeds"),
    barrier=False,
    workers=True,
    info=("sent_bytes",),
    check=check,
)
