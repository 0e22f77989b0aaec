"""Dynamic batch sizes (DBS, arXiv 2007.11831): shares of the batch that follow workers' speeds.

    r_i' = (r_i / t_i) / sum_j (r_j / t_j)         b_i = B r_i' in whole numbers, their sum B

t_i is the time that worker i took over its shares of the last epoch, without communication. The
rates r_i / t_i, examples per second, are smoothed over epochs (the paper has `smoothing` 0).
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
from optdyn.base.trees import Tree
from optdyn.clock.cluster import Cluster
from optdyn.clock.meetings import service_draws, synchronous_seconds
from optdyn.clock.service import DRAWN, Measured
from optdyn.clock.timeline import Shares, Timeline, TimelineError, divide_batch, from_arrivals
from optdyn.clock.trace import RecordedTrace
from optdyn.core import Batch, Event, Gradient, Params, all_reduce
from optdyn.methods.method import ClockInputs, Gradients, MethodStack
from optdyn.methods.setup import Setup
from optdyn.problem.problem import Problem

CHANGE = 0.1  # relative change of a rate from which on it is another speed, not noise
MOST_WORK = 1000  # times that a worker may repeat its part to be slow
DISTURBANCES = ("disturbances", "disturbance_probability")  # keys of the cluster
WEIGHTS = ("share", "equal")  # weights of the workers' mean gradients: b_i / B or 1 / N

# (B,), and `moments` of the model's state after them, {} where none is carried
Losses = Callable[[Params, Batch], tuple[jax.Array, Params]]
Part = Callable[[Params, Event, Batch, jax.Array], tuple[tuple[jax.Array, Params], Params]]


@dataclass(frozen=True)
class DynamicBatch(Gradients, name="dynamic_batch"):
    """Synchronous SGD whose workers take unequal shares of the batch (DBS, arXiv 2007.11831).

        x_{t+1} = x_t - alpha sum_i (b_i / B) g_i        sum_i b_i = B

    g_i is the mean gradient of worker i's b_i examples, so the update is the whole batch's gradient
    however the batch is split. With weights 'equal' it is sum_i g_i / N over the N workers, as in
    the authors' code by default. The shares b_i are numbers, not shapes: a worker goes through its
    part in micro-batches of a fixed size and meets the others once.
    """

    adapt: bool = field(True, "Whether shares follow speeds; False: equal shares.")
    weights: str = field(
        "share",
        "Weights of the workers' gradients: 'share', b_i / B, or 'equal', 1 / N.",
        one_of=WEIGHTS,
        static=True,
    )
    smoothing: float = field(0.5, "Weight of earlier rates in the mean.", at_least=0, below=1)
    micro_batch: int = field(
        8, "Examples that a worker computes at a time.", at_least=1, static=True
    )

    reduces_itself = True
    laws = (*DRAWN, "measured")
    cluster = ("overlap", "speeds", "latencies", "bandwidths", *DISTURBANCES)

    def gradient(self, problem: Problem) -> Gradient:
        return weighted_gradient(
            problem.each_loss_and_state, self.micro_batch, self.weights, _normalizes(problem)
        )

    def worker_part(self, problem: Problem) -> Part:
        return part(problem.each_loss_and_state, self.micro_batch, _normalizes(problem))

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        setup, cluster = inputs.setup, inputs.setup.cluster
        run = {
            "steps": setup.steps,
            "steps_per_epoch": inputs.steps_per_epoch,
            "batch_size": setup.batch_size,
        }
        if self.timeline_depends_on_log(setup):
            seconds = [row["worker_seconds"] for row in inputs.epochs]
            return measured(cluster, self, worker_seconds=seconds, **run)
        return clocked(cluster, self, update_bytes=inputs.update_bytes, seed=setup.seed, **run)[0]

    def with_recorded(self, line: Timeline, trace: RecordedTrace, setup: Setup) -> Timeline:
        recorded = _recorded_shares(trace, (setup.cluster.worker_count,), setup.batch_size)
        return line._replace(seconds=trace.seconds, plan=recorded)

    def work(self, inputs: ClockInputs, draws: np.ndarray) -> tuple[np.ndarray, Shares]:
        """Returns the seconds of each device, (steps, nodes, k), and its share of a node's part."""
        setup, (steps, nodes, k) = inputs.setup, draws.shape
        batch = setup.batch_size // nodes
        if trace := inputs.trace:
            return draws, _recorded_shares(trace.inner, (nodes, k), batch)
        epoch_steps = inputs.steps_per_epoch
        cost = costs(setup.cluster, -(-steps // epoch_steps), epoch_steps, setup.seed)

        def node(number: int) -> tuple[np.ndarray, np.ndarray]:
            devices = slice(number * k, (number + 1) * k)

            def seconds(epoch: int, share: np.ndarray, window: slice) -> np.ndarray:
                mean = share * cost.example[epoch, devices]
                return mean * draws[window, number] + cost.delay[epoch, devices]

            line, busy = _follow(self, steps, epoch_steps, batch, k, seconds)
            return busy, line.plan.shares

        busy, share_columns = zip(*map(node, range(nodes)), strict=True)
        return np.stack(busy, axis=1), Shares(np.stack(share_columns, axis=1))

    def timeline_depends_on_log(self, setup: Setup) -> bool:
        return setup.cluster.service.name == "measured"

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        is_measured = self.timeline_depends_on_log(setup)
        other = setup.parallel.api != "shard_map" or methods.mix
        reason = "needs real workers that are one node, config.parallel.api = 'shard_map'"
        yield Join("cluster.service.name", is_measured and other, reason)
        for key in ("speeds", "disturbance_probability"):
            reason = "excludes cluster.service.name = 'measured', as it is simulated"
            yield Join(f"cluster.{key}", is_measured and getattr(setup.cluster, key), reason)


def _recorded_shares(trace: RecordedTrace, shape: tuple[int, ...], batch_size: int) -> Shares:
    """Returns the shares of a recorded run. Raises `TimelineError`."""
    recorded = trace.integers("shares", shape, 1, batch_size)
    is_whole = recorded.sum(axis=-1, keepdims=True) == batch_size
    trace.require("shares", is_whole, f"{batch_size} in sum, the examples of a batch")
    work = trace.integers("work", shape, 1, MOST_WORK) if trace.has("work") else None
    return Shares(recorded, work)


def _normalizes(problem: Problem) -> bool:
    return any(block.examples for _, block in problem.blocks)


def weighted_gradient(
    losses: Losses, micro_batch: int, weights: str = "share", normalizes: bool = False
) -> Gradient:
    """Returns the gradient of a device on the axis `data`, the same on all devices."""
    worker_part = part(losses, micro_batch, normalizes)

    def gradient(params: Params, event: Event, batch: Batch) -> tuple[Tree, Params]:
        worker = lax.axis_index("data")
        value, grads = worker_part(params, event, batch, worker)
        shares = jnp.asarray(event.plan.shares)
        total = shares.sum()
        if weights == "equal":
            examples = jnp.maximum(shares[worker], 1)  # 0 / 1, no NaN
            factor = total / (lax.axis_size("data") * examples)
            grads = jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), grads)
        sums = all_reduce((value, grads), "data")
        (loss, after), grads = jax.tree.map(lambda leaf: leaf / total.astype(leaf.dtype), sums)
        return (loss, after) if after else loss, grads

    return gradient


def part(losses: Losses, micro_batch: int, normalizes: bool = False) -> Part:
    """Returns `(params, event, batch, worker) ->` sums of the worker's losses, and their gradient.

    The first `shares[worker]` examples of `batch` count. The worker computes each micro-batch
    `work[worker]` times, to be slow for real; one of them counts. The sums are float32; beside the
    losses' is one of states, in which an example has that after its micro-batch. Where a model
    `normalizes` over a micro-batch, one that would reach beyond the share begins earlier, too.
    """

    def sums(
        params: Params, event: Event, batch: Batch, worker: jax.Array
    ) -> tuple[tuple[jax.Array, Params], Params]:
        plan: Shares = event.plan
        share = jnp.asarray(plan.shares)[worker]
        work = 1 if plan.work is None else jnp.asarray(plan.work)[worker]
        count = len(jax.tree.leaves(batch)[0])
        size = min(micro_batch, count)

        def begin(turn: jax.Array) -> jax.Array:
            return turn // work * size

        def step(carry: tuple[jax.Array, Tree]) -> tuple[jax.Array, Tree]:
            turn, so_far = carry
            # A slice that would reach beyond the batch begins earlier; the mask drops the examples
            # that it repeats, and those beyond the worker's share.
            last = jnp.maximum(share, size) if normalizes else count
            at = jnp.minimum(begin(turn), last - size)
            index = at + jnp.arange(size)
            is_own = (begin(turn) <= index) & (index < share) & (turn % work == 0)
            slices = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, at, size), batch)

            def total(params: Params) -> tuple[jax.Array, Params]:
                values, after = losses(params, slices)
                value = jnp.sum(jnp.where(is_own, values, 0), dtype=jnp.float32)
                return value, jax.tree.map(lambda leaf: leaf * is_own.sum(), after)

            more = jax.value_and_grad(total, has_aux=True)(params)
            return turn + 1, jax.tree.map(jnp.add, so_far, more)

        _, after = jax.eval_shape(losses, params, jax.tree.map(lambda leaf: leaf[:size], batch))
        states, grads = jax.tree.map(jnp.zeros_like, (after, params))
        nothing = jnp.int32(0), ((jnp.float32(0), states), grads)
        return lax.while_loop(lambda carry: begin(carry[0]) < share, step, nothing)[1]

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

    Its plan is `Shares`, (steps, workers): equal in the first epoch, then by the rates of the
    epochs before, or always equal if `method.adapt` is false. An example takes its cost times a
    draw of unit mean, one a worker and step. Busy seconds, (steps, workers), are without the
    all-reduce of `update_bytes`. Raises `TimelineError` for fewer examples than workers.
    """
    workers = cluster.worker_count
    cost = costs(cluster, -(-steps // steps_per_epoch), steps_per_epoch, seed)
    factors = service_draws(cluster, steps, seed).reshape(steps, workers)

    def seconds(epoch: int, share: np.ndarray, window: slice) -> np.ndarray:
        return share * cost.example[epoch] * factors[window] + cost.delay[epoch]

    def update(compute: np.ndarray) -> np.ndarray:
        by_node = compute.reshape(-1, cluster.nodes, cluster.devices_per_node)
        return synchronous_seconds(cluster, by_node, update_bytes)

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

    `worker_seconds`, (past epochs, workers): seconds per update without communication. The timeline
    ends with the epoch after those. Its seconds are predicted from the epoch before, in the first
    epoch from `seconds_per_example`. The `work` of its shares is the disturbances (`TimelineError`
    if they are no whole numbers).
    """
    workers = cluster.worker_count
    known = min(steps, steps_per_epoch * (len(worker_seconds) + 1))
    factors = slowdowns(cluster, -(-known // steps_per_epoch))

    def seconds(epoch: int, share: np.ndarray, window: slice) -> np.ndarray:
        return np.asarray(worker_seconds[epoch] if epoch < len(worker_seconds) else share)[None]

    line, _ = _follow(method, known, steps_per_epoch, batch_size, workers, seconds)
    share = line.plan.shares
    an_example = np.full((len(factors), workers), cluster.seconds_per_example)
    past = np.reshape(worker_seconds, (-1, workers))[: len(factors) - 1]
    an_example[1:] = past / share[::steps_per_epoch][: len(past)]
    per_example = np.repeat(an_example, steps_per_epoch, axis=0)[:known]
    work = np.repeat(factors, steps_per_epoch, axis=0)[:known].astype(np.int32)
    ends = np.cumsum((share * per_example).max(axis=1))
    return line._replace(seconds=ends, plan=Shares(share, work))


def _follow(
    method: DynamicBatch,
    steps: int,
    steps_per_epoch: int,
    batch_size: int,
    workers: int,
    seconds: Callable[[int, np.ndarray, slice], np.ndarray],
    update: Callable[[np.ndarray], np.ndarray] = lambda compute: compute.max(axis=1),
) -> tuple[Timeline, np.ndarray]:
    """Returns the timeline of shares that follow speeds, and the busy seconds, (steps, workers).

    `seconds(epoch, shares, window)` returns busy seconds, (steps of the window, workers), and
    `update` the seconds of updates from these.
    """
    share, rates = divide_batch(np.ones(workers), batch_size), None
    all_shares = np.empty((steps, workers), np.int32)
    lengths, busy = np.empty(steps), np.empty((steps, workers))
    for epoch, start in enumerate(range(0, steps, steps_per_epoch)):
        window = slice(start, start + steps_per_epoch)
        compute = seconds(epoch, share, window)
        all_shares[window], busy[window], lengths[window] = share, compute, update(compute)
        if method.adapt:
            measured = share / compute.mean(axis=0)
            rates = measured if rates is None else smooth(rates, measured, method.smoothing)
            share = divide_batch(rates, batch_size)
    line = from_arrivals(np.zeros(steps, np.int32), np.cumsum(lengths), 1)
    return line._replace(plan=Shares(all_shares)), busy


def smooth(rates: np.ndarray, measured: np.ndarray, weight: float) -> np.ndarray:
    """Returns the geometric moving average of rates; a rate beyond `CHANGE` of it replaces it."""
    changed = np.abs(np.log(measured / rates)) > CHANGE
    return np.where(changed, measured, rates**weight * measured ** (1 - weight))


class StepCost(NamedTuple):
    """The seconds of a worker's step: of b examples b c + d."""

    example: np.ndarray  # c, (epochs, workers) seconds per example
    delay: np.ndarray  # d, (epochs, workers) seconds per step


def costs(cluster: Cluster, epochs: int, steps_per_epoch: int, seed: int) -> StepCost:
    """Returns the workers' seconds per example by speeds and `disturbances`, and random delays.

    A disturbance (worker, first epoch, last epoch, factor) multiplies the seconds of an example.
    Random ones, the paper's, begin with `disturbance_probability` at the start of an epoch on a
    worker that has none: `disturbance_seconds` per epoch, spread over its steps, for
    `disturbance_epochs`, both drawn evenly between two bounds. Raises `TimelineError`.
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
    prefix = f"cluster.disturbances = {cluster.disturbances!r}: each must be (worker, first epoch, "
    bad = f"{prefix}last epoch, factor), workers are 0..{workers - 1}"
    prefix = f"config.cluster.disturbances = {cluster.disturbances!r}: with service='measured' the "
    part = f"{prefix}slowdowns are work that is really done, and must be whole numbers"
    parts = isinstance(cluster.service, Measured) and (factor % 1).any()
    TimelineError.refuse([(not np.all(good & np.isfinite(factor)), bad), (parts, part)])
    factors, number = np.ones((epochs, workers)), np.arange(epochs)
    for one, start, end, by in table:
        factors[(start <= number) & (number <= end), int(one)] *= by
    return factors


def ideal_seconds(costs: StepCost, batch_size: int) -> np.ndarray:
    """Returns the seconds of a step with fractional shares, without all-reduce or noise, (epochs,).

    All workers end together: sum_i (T - d_i) / c_i = B. No step is shorter than the longest delay.
    """
    together = (batch_size + (costs.delay / costs.example).sum(-1)) / (1 / costs.example).sum(-1)
    return np.maximum(together, costs.delay.max(-1))


def waste(line: Timeline, busy: np.ndarray) -> float:
    """Returns the share of the workers' time in which they wait for others or the exchange."""
    return 1 - float(busy.sum() / (busy.shape[1] * line.seconds[-1]))
