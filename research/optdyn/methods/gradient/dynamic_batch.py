"""Synchronous SGD whose workers take unequal shares of the batch (DBS, arXiv 2007.11831).

    x_{t+1} = x_t - alpha sum_i (b_i / B) g_i        sum_i b_i = B

g_i is the mean gradient of worker i's b_i examples, so the update is the whole batch's gradient
however the batch is split. With weights 'equal' it is sum_i g_i / N over the N workers, which is
what the authors' code does without its option of weights: examples of small shares count more. The
shares b_i are the timeline's (`Shares`), from how fast each worker was.

The shares are numbers, not shapes: a worker goes through its part in micro-batches of a fixed size,
as many as its part needs, and meets the others once, in the sum of the gradients. It is given no
others' examples (`problem/data/parts.py`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.clock import dynamic_batch as clocks
from optdyn.clock.base import Shares, Timeline, from_arrivals
from optdyn.clock.service import DRAWN
from optdyn.clock.trace import Held
from optdyn.core import Batch, Event, Gradient, Params, all_reduce
from optdyn.methods.method import ClockInputs, Gradients, Methods
from optdyn.methods.setup import Setup
from optdyn.problem.problem import Problem

MOST_WORK = 1000  # times that a worker may go through its part to be slow
WEIGHTS = ("share", "equal")  # of the workers' mean gradients: b_i / B or 1 / N

Losses = Callable[[Params, Batch], jax.Array]
Part = Callable[[Params, Event, Batch, jax.Array], tuple[jax.Array, Params]]


def shares(losses: Losses, micro_batch: int, weights: str = "share") -> Gradient:
    """Gradient of one device of the axis `data`.

    `losses(params, examples) -> (examples,)`. Every device is given its own examples of the batch
    and computes its `part`, `micro_batch` examples at a time. All return the same gradient, and the
    loss, which is the mean of the batch's B examples whatever the `weights`.
    """
    own = part(losses, micro_batch)

    def gradient(params: Params, event: Event, batch: Batch) -> tuple[jax.Array, Params]:
        worker = lax.axis_index("data")
        value, grads = own(params, event, batch, worker)
        shares = jnp.asarray(event.choice.shares)
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
        choice: Shares = event.choice
        shares = jnp.asarray(choice.shares)
        work = 1 if choice.work is None else jnp.asarray(choice.work)[worker]
        given = len(jax.tree.leaves(batch)[0])
        size, share = min(micro_batch, given), shares[worker]

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


def _recorded(held: Held, shape: tuple[int, ...], batch_size: int) -> Shares:
    """The shares of a run that a trace holds, which followed speeds. Raises `TimelineError`."""
    taken = held.whole("shares", shape, 1, batch_size)
    whole = taken.sum(axis=-1, keepdims=True) == batch_size
    held.require("shares", whole, f"{batch_size} in sum, the examples of a batch")
    work = held.whole("work", shape, 1, MOST_WORK) if held.has("work") else None
    return Shares(taken, work)


@dataclass(frozen=True)
class DynamicBatch(Gradients, name="dynamic_batch"):
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
        return shares(problem.each_loss, self.micro_batch, self.weights)

    def timed(self, problem: Problem) -> Part:
        """A worker's own part of the gradient, to be timed."""
        return part(problem.each_loss, self.micro_batch)

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """All workers wait for one another; shares follow how fast they were."""
        setup, cluster = setting.setup, setting.setup.cluster
        run = {"steps": setup.steps, "batch_size": setup.batch_size}
        run["steps_per_epoch"] = setting.steps_per_epoch
        workers = cluster.worker_count
        if held := setting.held:
            choice = _recorded(held, (workers,), setup.batch_size)
            line = from_arrivals(np.zeros(setup.steps, np.int32), held.seconds, 1)
            return line._replace(choice=choice)
        if cluster.service.name == "measured":
            taken = [row["worker_seconds"] for row in setting.epochs]
            return clocks.measured(cluster, self, worker_seconds=taken, **run)
        run |= {"update_bytes": setting.update_bytes, "seed": setup.seed}
        return clocks.dynamic_batch(cluster, self, **run)

    def work(self, setting: ClockInputs, draws: np.ndarray) -> tuple[np.ndarray, Shares]:
        """Seconds of every device, (steps, nodes, k), of nodes that divide each their own batch."""
        setup = setting.setup
        if held := setting.held:
            nodes = draws.shape[1]
            return draws, _recorded(held.inner, draws.shape[1:], setup.batch_size // nodes)
        each, taken = clocks.in_nodes(
            setup.cluster,
            self,
            draws,
            steps_per_epoch=setting.steps_per_epoch,
            batch_size=setup.batch_size,
            seed=setup.seed,
        )
        return each, Shares(taken)

    def follows(self, setup: Setup) -> bool:
        return setup.cluster.service.name == "measured"

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        cluster = setup.cluster
        measured = cluster.service.name == "measured"
        apart = setup.parallel.api != "shard_map" or methods.mix
        said = (
            "only of real workers that are one node, so it needs config.parallel.api = 'shard_map'"
        )
        yield Join("cluster.service.name", measured and apart, said)
        for key in ("speeds", "disturbance_probability"):
            said = "simulated, so not of service 'measured'"
            yield Join(f"cluster.{key}", measured and getattr(cluster, key), said)
