"""Workers with parameters of their own that arrive by themselves: their table.

    w_i <- w_i - gamma grad f(w_i)      an arrival of worker i: a local step, by an optimizer of its
                                        own; with every H_i-th it exchanges, by its method's rule

A worker is a compute group of `asynchronous.py`, with its law of service (`worker_clock.py`). A row
of a table is what worker i has: parameters, what it has read, an optimizer's state.
"""

from typing import Any

import jax
import jax.numpy as jnp

from optdyn.experiment import Experiment, Pieces
from optdyn.strategies import in_place, local_steps
from optdyn.strategies.base import Array, Params, distance
from optdyn.strategies.groups import divides
from optdyn.strategies.method import Chosen, Method
from optdyn.timeline.service import DRAWN
from optdyn.values import ConfigError

Table = Any  # a pytree, leaves (workers, ...)


def table(tree: Any, workers: int) -> Table:
    """The same in all rows."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], workers, axis=0), tree)


def row(table: Table, i: Array | int) -> Any:
    """Row i, all of which is read before anything is written into the table."""
    return in_place.read_first(in_place.row, table, jnp.asarray(i))


def put(table: Table, i: Array, tree: Any) -> Table:
    """The table with this row; as it was, if it has so few that there is no row i."""
    return jax.tree.map(lambda leaf, own: leaf.at[i].set(own), table, tree)


def mean(table: Table) -> Any:
    return jax.tree.map(lambda leaf: leaf.mean(axis=0), table)


def where(condition: Array, tree: Any, other: Any) -> Any:
    """One of two pytrees, in the types of the second; of the other one no number counts."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b).astype(b.dtype), tree, other)


def both_ways(exchange: Array, params: Params) -> jax.Array:
    """Bytes, float32, of the parameters to the other side and back, where there is an exchange."""
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    return jnp.where(exchange, jnp.float32(2 * size), 0.0)


def logged(workers: Table) -> dict[str, float]:
    """For the log: how far workers are from their mean."""
    return {"worker_distance": distance(workers)}


def check(config: Experiment, methods: Chosen) -> None:
    """Raises `ConfigError` where workers are not of equally many devices, or cannot race."""
    divides(config, methods)
    if config.cluster.service == "race":
        local_steps.races(config, methods)
    if config.cluster.pieces != Pieces():
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
