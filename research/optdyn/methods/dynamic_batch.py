"""Dynamic batch sizes (DBS, arXiv 2007.11831): shares of the batch that follow workers' speeds.

    r_i' = (r_i / t_i) / sum_j (r_j / t_j)         b_i = B r_i' in whole numbers, their sum B

t_i is the time that worker i took over its shares of the last epoch, without communication. An
update ends with the slowest worker and then the all-reduce. r_i / t_i is a rate, examples a second;
between epochs the rates are smoothed, which the paper does not do (`smoothing` 0 is the paper's).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from optdyn.base import seeds
from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.clock.cluster import Cluster
from optdyn.clock.meetings import service_draws, synchronous_seconds
from optdyn.clock.service import DRAWN, Measured
from optdyn.clock.timeline import Shares, Timeline, TimelineError, divide_batch, from_arrivals
from optdyn.clock.trace import RecordedTrace
from optdyn.core import Batch, Event, Gradient, Params, all_reduce
from optdyn.methods.method import ClockInputs, Gradients, MethodStack
from optdyn.methods.setup import Setup
from optdyn.problem.problem import Problem

CHANGE = 0.1  # relative; a rate that moved by more is another speed and not noise
MOST_WORK = 1000  # times that a worker may go through its part to be slow
WEIGHTS = ("share", "equal")  # of the workers' mean gradients: b_i / B or 1 / N

Losses = Callable[[Params, Batch], jax.Array]
Part = Callable[[Params, Event, Batch, jax.Array], tuple[jax.Array, Params]]


@dataclass(frozen=True)
class DynamicBatch(Gradients, name="dynamic_batch"):
    """Synchronous SGD whose workers take unequal shares of the batch (DBS, arXiv 2007.11831).

        x_{t+1} = x_t - alpha sum_i (b_i / B) g_i        sum_i b_i = B

    g_i is the mean gradient of worker i's b_i examples, so the update is the whole batch's gradient
    however the batch is split. With weights 'equal' it is sum_i g_i / N over the N workers, which
    is what the authors' code does without its option of weights: examples of small shares count
    more. The shares b_i are the timeline's (`Shares`), from how fast each worker was.

    The shares are numbers, not shapes: a worker goes through its part in micro-batches of a fixed
    size, as many as its part needs, and meets the others once, in the sum of the gradients. It is
    given no others' examples.
    """

    adapt: bool = field(True, "False keeps the shares of the batch equal.")
    weights: str = field(
        "share",
        "Of the workers' gradients, b_i / B, or 'equal', 1 / N, the authors'.",
        one_of=WEIGHTS,
        static=True,
    )
    smoothing: float = field(0.5, "Weight of the rates measured before.", at_least=0, below=1)
    micro_batch: int = field(
        8, "Examples that a worker computes at a time.", at_least=1, static=True
    )

    reduces_itself = True
    laws = (*DRAWN, "measured")
    cluster = (
        *("overlap", "speeds", "latencies", "bandwidths"),
        *("disturbances", "disturbance_probability"),
    )

    def gradient(self, problem: Problem) -> Gradient:
        return weighted_gradient(problem.each_loss, self.micro_batch, self.weights)

    def timed(self, problem: Problem) -> Part:
        """Returns a worker's part of the gradient, to be timed."""
        return part(problem.each_loss, self.micro_batch)

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        """All workers wait for one another; shares follow how fast they were."""
        setup, cluster = inputs.setup, inputs.setup.cluster
        run = {
            "steps": setup.steps,
            "steps_per_epoch": inputs.steps_per_epoch,
            "batch_size": setup.batch_size,
        }
        if self.timeline_depends_on_log(setup):
            taken = [row["worker_seconds"] for row in inputs.epochs]
            return measured(cluster, self, worker_seconds=taken, **run)
        return clocked(cluster, self, update_bytes=inputs.update_bytes, seed=setup.seed, **run)[0]

    def with_recorded(self, line: Timeline, trace: RecordedTrace, setup: Setup) -> Timeline:
        """The timeline with the recorded seconds and shares, which followed speeds."""
        recorded = _recorded(trace, (setup.cluster.worker_count,), setup.batch_size)
        return line._replace(seconds=trace.seconds, plan=recorded)

    def work(self, inputs: ClockInputs, draws: np.ndarray) -> tuple[np.ndarray, Shares]:
        """Seconds of every device, (steps, nodes, k), and its share of its node's even part."""
        setup, (steps, nodes, k) = inputs.setup, draws.shape
        batch = setup.batch_size // nodes
        if trace := inputs.trace:
            return draws, _recorded(trace.inner, (nodes, k), batch)
        each = inputs.steps_per_epoch
        cost = costs(setup.cluster, -(-steps // each), each, setup.seed)

        def node(number: int) -> tuple[np.ndarray, np.ndarray]:
            devices = slice(number * k, (number + 1) * k)

            def seconds(epoch: int, share: np.ndarray, window: slice) -> np.ndarray:
                mean = share * cost.example[epoch, devices]
                return mean * draws[window, number] + cost.delay[epoch, devices]

            made, busy = _follow(self, steps, each, batch, k, seconds)
            return busy, made.plan.shares

        busy, taken = zip(*map(node, range(nodes)), strict=True)
        return np.stack(busy, axis=1), Shares(np.stack(taken, axis=1))

    def timeline_depends_on_log(self, setup: Setup) -> bool:
        return setup.cluster.service.name == "measured"

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        measured = self.timeline_depends_on_log(setup)
        apart = setup.parallel.api != "shard_map" or methods.mix
        said = (
            "only of real workers that are one node, so it needs config.parallel.api = 'shard_map'"
        )
        yield Join("cluster.service.name", measured and apart, said)
        for key in ("speeds", "disturbance_probability"):
            said = "simulated, so not of service 'measured'"
            yield Join(f"cluster.{key}", measured and getattr(setup.cluster, key), said)


def _recorded(trace: RecordedTrace, shape: tuple[int, ...], batch_size: int) -> Shares:
    """The shares of a run that a trace holds, which followed speeds. Raises `TimelineError`."""
    taken = trace.whole("shares", shape, 1, batch_size)
    whole = taken.sum(axis=-1, keepdims=True) == batch_size
    trace.require("shares", whole, f"{batch_size} in sum, the examples of a batch")
    work = trace.whole("work", shape, 1, MOST_WORK) if trace.has("work") else None
    return Shares(taken, work)


def weighted_gradient(losses: Losses, micro_batch: int, weights: str = "share") -> Gradient:
    """Gradient of one device of the axis `data`.

    `losses(params, examples) -> (examples,)`. Every device is given its own examples of the batch
    and computes its `part`, `micro_batch` examples at a time. All return the same gradient, and the
    loss, which is the mean of the batch's B examples whatever the `weights`.
    """
    own = part(losses, micro_batch)

    def gradient(params: Params, event: Event, batch: Batch) -> tuple[jax.Array, Params]:
        worker = lax.axis_index("data")
        value, grads = own(params, event, batch, worker)
        shares = jnp.asarray(event.plan.shares)
        total = shares.sum()
        if weights == "equal":
            examples = jnp.maximum(shares[worker], 1)  # 0 / 1, no NaN
            each = total / (lax.axis_size("data") * examples)
            grads = jax.tree.map(lambda leaf: leaf * each.astype(leaf.dtype), grads)
        sums = all_reduce((value, grads), "data")
        value, grads = jax.tree.map(lambda leaf: leaf / total.astype(leaf.dtype), sums)
        return value, grads

    return gradient


def part(losses: Losses, micro_batch: int) -> Part:
    """`(params, event, batch, worker) ->` sum of the worker's losses, float32, and its gradient.

    `batch` is what the worker is given, C examples: of the event's `Shares` the first
    `shares[worker]` are its own, and the rest counts nothing. It goes `work[worker]` times through
    each micro-batch: once, or oftener to be slow for real. The surplus is computed and counts
    nothing.
    """

    def sums(
        params: Params, event: Event, batch: Batch, worker: jax.Array
    ) -> tuple[jax.Array, Params]:
        plan: Shares = event.plan
        share = jnp.asarray(plan.shares)[worker]
        work = 1 if plan.work is None else jnp.asarray(plan.work)[worker]
        given = len(jax.tree.leaves(batch)[0])
        size = min(micro_batch, given)

        def begin(turn: jax.Array) -> jax.Array:
            return turn // work * size

        def step(carry: tuple[jax.Array, jax.Array, Params]) -> tuple[jax.Array, jax.Array, Params]:
            turn, value, grads = carry
            # A slice that would reach beyond what is given lies further back; the mask drops what
            # it repeats, as it drops what is not the worker's own.
            at = jnp.minimum(begin(turn), given - size)
            index = at + jnp.arange(size)
            own = (begin(turn) <= index) & (index < share) & (turn % work == 0)
            slices = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, at, size), batch)

            def total(params: Params) -> jax.Array:
                return jnp.sum(jnp.where(own, losses(params, slices), 0), dtype=jnp.float32)

            more, gradient = jax.value_and_grad(total)(params)
            return turn + 1, value + more, jax.tree.map(jnp.add, grads, gradient)

        nothing = (jnp.int32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
        _, value, grads = lax.while_loop(lambda carry: begin(carry[0]) < share, step, nothing)
        return value, grads

    return sums


def clocked(
    cluster: Cluster,
    method: DynamicBatch,
    *,
    steps: int,
    steps_per_epoch: int,
    batch_size: int,
    update_bytes: int = 0,
    seed: int = 0,
) -> tuple[Timeline, np.ndarray]:
    """Returns the timeline of synchronous updates by all workers, and their busy seconds.

    Its plan is `Shares`, (steps, workers): equal in the first epoch, then what the rates of the
    epochs before make of them, or always equal if `method.adapt` is false (the baseline: the same
    draws and disturbances). An example takes its cost times a draw of unit mean from the law
    `service`, one draw a worker and step; the all-reduce of `update_bytes` is that of synchronous
    SGD. The seconds are (steps, workers), without it. Raises `TimelineError` if the batch has fewer
    examples than there are workers.
    """
    workers = cluster.worker_count
    cost = costs(cluster, -(-steps // steps_per_epoch), steps_per_epoch, seed)
    factors = service_draws(cluster, steps, seed).reshape(steps, workers)

    def seconds(epoch: int, share: np.ndarray, window: slice) -> np.ndarray:
        return share * cost.example[epoch] * factors[window] + cost.delay[epoch]

    def update(compute: np.ndarray) -> np.ndarray:
        each = compute.reshape(-1, cluster.nodes, cluster.devices_per_node)
        return synchronous_seconds(cluster, each, update_bytes)

    return _follow(method, steps, steps_per_epoch, batch_size, workers, seconds, update)


def measured(
    cluster: Cluster,
    method: DynamicBatch,
    *,
    steps: int,
    steps_per_epoch: int,
    batch_size: int,
    worker_seconds: Sequence[Sequence[float]],
) -> Timeline:
    """Returns the timeline of real workers, as far as their measured speeds decide it.

    `worker_seconds`, (epochs past, workers): seconds an update without communication. The timeline
    ends with the epoch after those, or with the run. Its own seconds are those that the epoch
    before predicts, in the first epoch `seconds_per_example`. The `work` of its shares is the
    disturbances, whole numbers of times that a worker really goes through its examples
    (`TimelineError` if they are not whole).
    """
    workers = cluster.worker_count
    known = min(steps, steps_per_epoch * (len(worker_seconds) + 1))
    factors = slowdowns(cluster, -(-known // steps_per_epoch))

    def seconds(epoch: int, share: np.ndarray, window: slice) -> np.ndarray:
        return np.asarray(worker_seconds[epoch] if epoch < len(worker_seconds) else share)[None]

    made, _ = _follow(method, known, steps_per_epoch, batch_size, workers, seconds)
    share = made.plan.shares
    an_example = np.full((len(factors), workers), cluster.seconds_per_example)
    past = np.reshape(worker_seconds, (-1, workers))[: len(factors) - 1]
    an_example[1:] = past / share[::steps_per_epoch][: len(past)]
    each = np.repeat(an_example, steps_per_epoch, axis=0)[:known]
    work = np.repeat(factors, steps_per_epoch, axis=0)[:known].astype(np.int32)
    ends = np.cumsum((share * each).max(axis=1))
    return made._replace(seconds=ends, plan=Shares(share, work))


def _slowest(compute: np.ndarray) -> np.ndarray:
    """Returns the seconds of updates without an exchange, from those of the workers."""
    return compute.max(axis=1)


def _follow(
    method: DynamicBatch,
    steps: int,
    steps_per_epoch: int,
    batch_size: int,
    workers: int,
    seconds: Callable[[int, np.ndarray, slice], np.ndarray],
    update: Callable[[np.ndarray], np.ndarray] = _slowest,
) -> tuple[Timeline, np.ndarray]:
    """Returns the timeline of shares that follow the workers' seconds, and those, (steps, workers).

    `seconds(epoch, shares, window)` are (steps of the window, workers), of which `update` makes the
    seconds of updates.
    """
    share, rates = divide_batch(np.ones(workers), batch_size), None
    taken = np.empty((steps, workers), np.int32)
    lengths, busy = np.empty(steps), np.empty((steps, workers))
    for epoch, start in enumerate(range(0, steps, steps_per_epoch)):
        window = slice(start, start + steps_per_epoch)
        compute = seconds(epoch, share, window)
        taken[window], busy[window], lengths[window] = share, compute, update(compute)
        if method.adapt:
            found = share / compute.mean(axis=0)
            rates = found if rates is None else smooth(rates, found, method.smoothing)
            share = divide_batch(rates, batch_size)
    line = from_arrivals(np.zeros(steps, np.int32), np.cumsum(lengths), 1)
    return line._replace(plan=Shares(taken)), busy


def smooth(rates: np.ndarray, measured: np.ndarray, weight: float) -> np.ndarray:
    """Moving average, geometric, of measured rates; `weight`, in [0, 1), of those before.

    A rate more than `CHANGE` away from its average replaces it. One less away is averaged and after
    two epochs right to weight^2 CHANGE. By the average alone, a change of speed by 4 would be right
    to 5 % after two epochs only with a weight of 0.19, which leaves 83 % of the noise.
    """
    changed = np.abs(np.log(measured / rates)) > CHANGE
    return np.where(changed, measured, rates**weight * measured ** (1 - weight))


class StepCost(NamedTuple):
    """What the workers' time is made of: a step of b examples takes b c + d."""

    example: np.ndarray  # c, (epochs, workers) seconds an example
    delay: np.ndarray  # d, (epochs, workers) seconds a step


def costs(cluster: Cluster, epochs: int, steps_per_epoch: int, seed: int) -> StepCost:
    """Seconds an example by the speeds and `disturbances`; delays by chance.

    A disturbance (worker, first epoch, last epoch, factor) multiplies the seconds of an example
    from the first to the last epoch. The paper's come with `disturbance_probability` to a worker
    that has none, at the start of an epoch: some `disturbance_seconds` an epoch, spread over its
    steps, for some `disturbance_epochs`, both drawn evenly between the two numbers given.
    `TimelineError` if a disturbance cannot be.
    """
    workers = cluster.worker_count
    speeds = np.asarray(cluster.speeds or np.ones(workers), np.float64)
    example = cluster.seconds_per_example / speeds * slowdowns(cluster, epochs)

    least, most = cluster.disturbance_seconds
    shortest, longest = cluster.disturbance_epochs
    delay = np.zeros((epochs, workers))
    rng = seeds.generator(seed, "disturbances")
    until = np.zeros(workers, int)
    for epoch in range(epochs):
        # Every epoch draws alike, so a longer run begins with the shorter one.
        struck = rng.random(workers) < cluster.disturbance_probability
        seconds = rng.uniform(least, most, workers)
        lasting = rng.integers(shortest, longest + 1, workers)
        for worker in np.flatnonzero(struck & (until <= epoch)):
            until[worker] = epoch + lasting[worker]
            delay[epoch : until[worker], worker] = seconds[worker] / steps_per_epoch
    return StepCost(example, delay)


def slowdowns(cluster: Cluster, epochs: int) -> np.ndarray:
    """Returns the factors of workers' seconds by the `disturbances`, (epochs, workers)."""
    workers = cluster.worker_count
    try:
        table = np.asarray(cluster.disturbances, np.float64).reshape(-1, 4)
    except (TypeError, ValueError):
        table = np.full((1, 4), np.nan)
    worker, first, last, factor = table.T
    good = np.isin(worker, np.arange(workers)) & (first >= 0) & (first <= last) & (factor > 0)
    said = f"cluster.disturbances = {cluster.disturbances!r}: each must be (worker, first epoch, "
    bad = f"{said}last epoch, factor), workers are 0..{workers - 1}"
    said = f"config.cluster.disturbances = {cluster.disturbances!r}: with service='measured' the "
    part = f"{said}slowdowns are work that is really done, and must be whole numbers"
    parts = isinstance(cluster.service, Measured) and (factor % 1).any()
    TimelineError.refuse([(not np.all(good & np.isfinite(factor)), bad), (parts, part)])
    factors, number = np.ones((epochs, workers)), np.arange(epochs)
    for one, start, end, by in table:
        factors[(start <= number) & (number <= end), int(one)] *= by
    return factors


def ideal_seconds(costs: StepCost, batch_size: int) -> np.ndarray:
    """(epochs,) seconds of a step, without all-reduce and noise, if shares could be fractions.

    All workers end together: sum_i (T - d_i) / c_i = B. No step is shorter than the longest delay.
    """
    together = (batch_size + (costs.delay / costs.example).sum(-1)) / (1 / costs.example).sum(-1)
    return np.maximum(together, costs.delay.max(-1))


def waste(made: Timeline, busy: np.ndarray) -> float:
    """The share of the workers' time in which they wait, for one another or for the exchange."""
    return 1 - float(busy.sum() / (busy.shape[1] * made.seconds[-1]))
