"""The events of a run, as arrays of one entry an update, or (replicas, steps).

What a timeline decides of an update, besides its second, is the update's plan, a NamedTuple. Plans
that several methods share are here, the others beside their method. The plan of what happens inside
nodes is the `inner` of the plan of their exchange, with an axis of nodes.
"""

from typing import NamedTuple, TypeVar

import jax
import numpy as np

from optdyn.base.errors import InputError
from optdyn.base.trees import Array, Params, Plan, Tree

T = TypeVar("T")


class TimelineError(InputError):
    """A timeline that cannot be made; the message is one line."""


class Arrival(NamedTuple):
    """The worker whose gradient an update applies, the slot it read, and the new version's slot.

    int32. `worker` and `read` are (K,) for an update of K gradients, and all three are (servers,)
    where each block has a server.
    """

    worker: Array
    read: Array  # slot
    write: Array  # slot
    params: Params | None = None  # the blocks that were read, where they are no longer in the table
    dropped: Array | None = None  # (groups,) bool, gradients dropped since the update before


class WorkerStep(NamedTuple):
    """A local step of a worker that has a slot, scalars of an update, (steps,) of a timeline."""

    worker: Array  # int32
    exchange: Array | None = None  # bool, whether it changes what others read; None: always
    numbers: Tree = ()  # numbers of the method, by name


class Shares(NamedTuple):
    """The division of a batch among workers, (workers,) int32."""

    shares: Array  # examples; their sum is the size of the batch
    work: Array | None = None  # how often a worker goes through its examples, to be slow for real


class Meeting(NamedTuple):
    """The fragments that nodes send and receive after an update, (fragments,) or a scalar."""

    send: Array  # bool
    receive: Array  # bool
    waited: Array  # int32, updates; 0 where nothing is received
    inner: Plan = ()  # plans inside the nodes, (nodes, ...)
    present: Array | None = None  # (nodes,) float32, factors of their messages, P in sum
    outer: Tree = ()  # hyperparameters of the outer optimizer by name, float32
    states: Array | None = None  # (2,) bool, are first and second moments averaged; None: always
    to: Array | None = None  # (nodes, k) int32, receivers of a node, itself first; None: all nodes


class AllReduceStep(NamedTuple):
    """The plan of nodes that wait for one another after every update."""

    inner: Plan = ()  # plans inside the nodes, (nodes, ...)
    draw: Array | None = None  # int32, the seed of this update, the same at all nodes
    numbers: Tree = ()  # numbers of the rule, by name, float32


class Timeline(NamedTuple):
    worker: np.ndarray  # (..., steps) int32, group that arrives, the last of several
    staleness: np.ndarray  # (..., steps) int32, updates between the read and the arrival
    seconds: np.ndarray  # (..., steps) float64, simulated time of the arrival
    slots: int  # snapshots that the slots of a plan address
    plan: Plan = ()  # a NamedTuple of arrays (..., steps, ...)
    batch: np.ndarray | None = None  # (steps,) number of the batch, or (steps, K) of its parts


def entries_at(plan: T, index: int | slice | Array) -> T:
    """Returns the entries of every leaf at an update, at a slice of updates or at replicas."""
    return jax.tree.map(lambda leaf: leaf[index], plan)


def plan_of(line: Timeline, kind: type[T]) -> T | None:
    """Returns the timeline's plan of that type, at whatever depth; None if there is none."""
    plan = line.plan
    while not isinstance(plan, kind) and hasattr(plan, "inner"):
        plan = plan.inner
    return plan if isinstance(plan, kind) else None


def staleness_of(read: np.ndarray, write: np.ndarray) -> np.ndarray:
    """Returns the updates between the writing and the reading of a slot, (steps,) int32."""
    version = dict[int, int]()
    staleness = np.empty(len(read), np.int32)
    for t, (source, target) in enumerate(zip(read.tolist(), write.tolist(), strict=True)):
        staleness[t] = t - version.get(source, 0)
        version[target] = t + 1
    return staleness


def from_arrivals(worker: np.ndarray, seconds: np.ndarray, workers: int) -> Timeline:
    """Returns the timeline of workers that read when they write; slot w holds what w read last.

    All workers read version 0 at second 0. The staleness of an arrival is the number of others
    since the same worker's last: t - (s + 1) for arrivals at t and s, and t for the first.
    """
    worker = worker.astype(np.int32)
    order = np.argsort(worker, axis=-1, kind="stable").astype(np.int32)
    ordered = np.take_along_axis(worker, order, -1)
    before = np.full_like(order, -1)
    before[..., 1:] = np.where(ordered[..., 1:] == ordered[..., :-1], order[..., :-1], -1)
    previous = np.empty_like(order)
    np.put_along_axis(previous, order, before, -1)
    staleness = np.arange(worker.shape[-1], dtype=np.int32) - previous - 1
    return Timeline(worker, staleness, seconds, workers, Arrival(worker, worker, worker))


def commit_times(seconds: np.ndarray) -> np.ndarray:
    """Returns the seconds of updates, (steps,), where a straggler nobody waits for delays none."""
    return np.minimum.accumulate(seconds[::-1])[::-1]


def divide_batch(rates: np.ndarray, batch_size: int, minimum: int = 1) -> np.ndarray:
    """Returns the examples of each worker, (workers,) int32, in proportion to `rates`, (workers,).

    Their sum is `batch_size`; fractions are rounded by the largest remainder. Raises
    `TimelineError` if the batch is too small or a rate is not positive.
    """
    rates = np.asarray(rates, np.float64)
    least = minimum * len(rates)
    few = f"batch of {batch_size} examples: must be at least {least}, {minimum} a worker"
    bad = f"rates = {rates.tolist()}: must be positive and finite"
    is_positive = np.all((rates > 0) & np.isfinite(rates))
    TimelineError.refuse([(batch_size < least, few), (not is_positive, bad)])
    quotas = np.full(len(rates), float(minimum))
    free = np.ones(len(rates), bool)
    while free.any():
        left = batch_size - minimum * np.count_nonzero(~free)
        proportional = left * (rates / rates[free].sum())
        low = free & (proportional < minimum)
        if not low.any():
            quotas[free] = proportional[free]
            break
        free &= ~low
    whole = np.floor(quotas)
    # Equal remainders go to the faster worker, so that the order of workers decides nothing.
    order = np.lexsort((-rates, whole - quotas))
    whole[order[: int(batch_size - whole.sum())]] += 1
    return whole.astype(np.int32)


def padded_share(shares: np.ndarray) -> int:
    """Returns the least power of two that the largest share fits in: few sizes are compiled."""
    return 1 << (max(int(shares.max(initial=1)), 1) - 1).bit_length()


def split_batches(batches: np.ndarray, shares: np.ndarray, columns: int) -> np.ndarray:
    """Returns the examples of each device, `columns` a device, (n, devices * columns).

    `batches`, (n, B), or (n, B, 2) and so is the result; `shares`, (n, ..., devices) with sum B in
    each batch. A part is filled up with its last example (the one before it, where it is empty).
    Raises ValueError if a share is larger than `columns`.
    """
    sizes = shares.reshape(len(shares), int(np.prod(shares.shape[1:])))
    if sizes.max(initial=0) > columns:
        raise ValueError(f"share of {sizes.max()} examples: must be at most {columns}")
    stops = np.cumsum(sizes, axis=1)[..., None]
    places = np.minimum(stops - sizes[..., None] + np.arange(columns), np.maximum(stops - 1, 0))
    rows = np.arange(len(batches))[:, None]
    return batches[rows, places.reshape(len(batches), sizes.shape[1] * columns)]
