"""The events of a run, as arrays of one entry an update, or (replicas, steps).

What a timeline decides of an update, besides when it is, is its plan, a NamedTuple. Plans that
several methods share are here, the others beside their method. Inside nodes a plan is the `inner`
of what the nodes do, with an axis of nodes, just as their states are.
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
    """Whose gradient an update is of, the version that it was taken at, and where the new one goes.

    int32. `worker` and `read` are (K,) of an update of K gradients, and all three (servers,) where
    blocks have servers of their own. Where gradients that are too old are dropped, `dropped`,
    (groups,) bool, has the groups whose gradient was, since the update before.
    """

    worker: Array
    read: Array  # slot
    write: Array  # slot
    seen: Params | None = None  # blocks as they were read, where they are not in the table any more
    dropped: Array | None = None


class WorkerStep(NamedTuple):
    """The arrival of a worker that has a slot of its own, such as a local step of its parameters.

    Of an update scalars, of a timeline (steps,). `numbers` are the method's own, by name.
    """

    worker: Array  # int32
    exchange: Array | None = None  # bool, whether it changes what others read; None: each does
    numbers: Tree = ()  # of which there may be none


class Shares(NamedTuple):
    """How the examples of a batch are divided among workers, (workers,) int32."""

    shares: Array  # examples of each, the size of the batch in sum
    work: Array | None = None  # how often each goes through its own, to be slow for real


class Meeting(NamedTuple):
    """Whether nodes send and receive after an update, of every fragment (fragments,) or a scalar.

    What is received was sent `waited` updates before; 0: it is what was just sent.
    """

    send: Array  # bool
    receive: Array  # bool
    waited: Array  # int32, updates; 0 where nothing is received
    inner: Plan = ()  # what is decided for each node, (nodes, ...)
    present: Array | None = None  # (nodes,) float32: what each sends is multiplied by it, P in sum
    outer: Tree = ()  # hyperparameters of the outer optimizer by name, float32
    states: Array | None = None  # (2,) bool: are first and second moments averaged, if not always
    to: Array | None = None  # (nodes, k) int32, whom each sends to, itself first, if it is not all


class AllReduceStep(NamedTuple):
    """Nodes that wait for one another after every update."""

    inner: Plan = ()  # what is decided for each node, (nodes, ...)
    draw: Array | None = None  # int32, of that update, from which all nodes draw the same
    numbers: Tree = ()  # of the rule, by name, float32


class Timeline(NamedTuple):
    worker: np.ndarray  # (..., steps) int32, group that arrives, of several the last
    staleness: np.ndarray  # (..., steps) int32, updates between the read and the arrival
    seconds: np.ndarray  # (..., steps) float64, simulated time of the arrival
    slots: int  # snapshots that the slots of a plan address
    plan: Plan = ()  # what else it decides: a NamedTuple of arrays (..., steps, ...)
    batch: np.ndarray | None = None  # (steps,) its number, or (steps, K) those of its parts


def entries_at(plan: T, index: int | slice | Array) -> T:
    """The plan of one update, of those of a slice, or of some replicas."""
    return jax.tree.map(lambda leaf: leaf[index], plan)


def plan_of(line: Timeline, kind: type[T]) -> T | None:
    """The plan of that type, wherever it is nested; None if there is none."""
    plan = line.plan
    while not isinstance(plan, kind) and hasattr(plan, "inner"):
        plan = plan.inner
    return plan if isinstance(plan, kind) else None


def staleness_of(read: np.ndarray, write: np.ndarray) -> np.ndarray:
    """Updates between the writing and the reading of a slot, (steps,); slots begin with version 0.

    `read` and `write` are (steps,): update t reads a slot and then writes one.
    """
    version = dict[int, int]()
    stale = np.empty(len(read), np.int32)
    for t, (seen, made) in enumerate(zip(read.tolist(), write.tolist(), strict=True)):
        stale[t] = t - version.get(seen, 0)
        version[made] = t + 1
    return stale


def from_arrivals(worker: np.ndarray, seconds: np.ndarray, workers: int) -> Timeline:
    """Timeline of workers that read when they write: slot w holds what worker w last saw.

    `worker` and `seconds`, (..., steps). All workers read version 0 at second 0. The staleness of
    an arrival is the number of others since the same worker's last: t - (s + 1) for arrivals at t
    and s, and t for the first.
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
    """(steps,) seconds at which updates count, of those at which their last worker is done.

    It is a running minimum from the end: a straggler that nobody waits for delays no update.
    """
    return np.minimum.accumulate(seconds[::-1])[::-1]


def divide_batch(rates: np.ndarray, batch_size: int, minimum: int = 1) -> np.ndarray:
    """Examples of each worker, (workers,) int32 with sum `batch_size`, none below `minimum`.

    Proportional to `rates`, (workers,) and positive, among those above the minimum; whole by the
    largest remainder. `TimelineError` if the batch is too small or a rate is not positive.
    """
    rates = np.asarray(rates, np.float64)
    few = f"{batch_size} examples for {len(rates)} workers, each needs {minimum} or more"
    good = np.all((rates > 0) & np.isfinite(rates))
    bad = f"rates {rates.tolist()}, all must be positive and finite"
    TimelineError.refuse(
        [(batch_size < minimum * len(rates), f"shares: {few}"), (not good, f"shares: {bad}")]
    )
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
    # Equal remainders go to the faster worker, so that who comes first decides nothing.
    order = np.lexsort((-rates, whole - quotas))
    whole[order[: int(batch_size - whole.sum())]] += 1
    return whole.astype(np.int32)


def padded_share(shares: np.ndarray) -> int:
    """Examples that the largest of the shares fits in, a power of two: few sizes are compiled."""
    return 1 << (max(int(shares.max(initial=1)), 1) - 1).bit_length()


def split_batches(batches: np.ndarray, shares: np.ndarray, columns: int) -> np.ndarray:
    """Each device's own examples of every batch, `columns` a device: (n, devices * columns).

    `batches`, (n, B), or (n, B, 2) and so is the result; `shares`, (n, ..., devices) with sum B in
    each batch, of devices that take their examples one after the other. A part is filled up with
    its last example (the one before it, where it is empty). ValueError if a share is larger.
    """
    own = shares.reshape(len(shares), int(np.prod(shares.shape[1:])))
    if own.max(initial=0) > columns:
        raise ValueError(f"a share of {own.max()} examples: there is room for {columns}")
    stops = np.cumsum(own, axis=1)[..., None]
    places = np.minimum(stops - own[..., None] + np.arange(columns), np.maximum(stops - 1, 0))
    rows = np.arange(len(batches))[:, None]
    return batches[rows, places.reshape(len(batches), own.shape[1] * columns)]
