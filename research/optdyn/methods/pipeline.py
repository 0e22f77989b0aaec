"""Pipelines that are never flushed (arXiv 1806.03377, 1F1B): stages whose parameters differ in age.

The clock says which version each stage reads (`Stages`), and the rule is asynchronous SGD whose
blocks have a slot each, on one device that computes all stages in turn. `never_flushed` is the same
with a device for each stage.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.base.trees import Array, Json, Tree
from optdyn.clock import pipeline
from optdyn.clock.timeline import Timeline
from optdyn.core import Batch, Event, Gradient, Info, Params, Rule, Update, full_gradient
from optdyn.core.snapshots import SnapshotState
from optdyn.devices import layout
from optdyn.devices.layout import Layout, mesh
from optdyn.methods import local, stages
from optdyn.methods.asynchronous import asynchronous
from optdyn.methods.method import (
    ClockInputs,
    Gradients,
    MethodStack,
    MicroBatches,
    ModelInfo,
    Reads,
    Servers,
)
from optdyn.methods.setup import Setup
from optdyn.methods.stages import Form, Forms, Stacked, Stage, ravel, unravel
from optdyn.methods.sync import SyncState
from optdyn.problem import models
from optdyn.problem.models import Blocks, base
from optdyn.problem.problem import SEED, Examples, Problem

KINDS = ("stash", "2bw", "no_stash", "predict")
Beat = tuple[Array, Array, Array]  # a stage's gradient, its message, its loss


class Stages(NamedTuple):
    """The slots, (blocks,) int32, that each block is read from and written to."""

    read: Array
    write: Array
    before: Array | None = None  # the slot of the version before the one read, for predictions
    newest: Params | None = None  # x_t, whose derivatives `through` takes
    ahead: Params | None = None  # the predicted change of parameters
    params: Params | None = None  # the blocks that were read, where they are no longer in the table


@dataclass(frozen=True)
class StalePipeline(Gradients, Reads, MicroBatches, name="stale_pipeline"):
    """Pipelines that are never flushed: every stage has parameters of an age of its own.

        x^s_{t+1} = x^s_t - alpha grad_s f(x^1_{t - tau_1}, ..., x^S_{t - tau_S})      s = 1, ..., S

        stash      tau_s = S - s, forward and backward    PipeDream with weight stashing, 1806.03377
        2bw        tau_s = 1 of all stages                PipeDream-2BW, 2006.09503
        no_stash   likewise forward, backward at x_t      PipeDream without stashing
        predict    as stash, of parameters predicted for  SpecTrain, 1809.02839; FTPipe
                   tau_s updates later

    The nodes of the cluster are the stages. Each block has an optimizer and a staleness. Without
    stashing the derivatives are those of the newest parameters, at the activations of the old:

        h_{j+1} = stop(f_j(old, h_j)) + f_j(new, h_j) - stop(f_j(new, h_j))

    Predicted parameters are where heavy ball of momentum mu would be if all gradients in between
    were 0, from a displacement, as x_{t-1} - x_t is gamma v:

        x_t - (mu - mu^{tau+1}) / (1 - mu) (x_{t-1} - x_t)          tau updates on
    """

    pipeline: str = field(
        "stash",
        "Parameters that stages use: 'stash', '2bw', 'no_stash' or 'predict'.",
        one_of=KINDS,
        static=True,
    )

    pieces = ("gradient", "read")
    staged = True
    laws = ("constant",)
    cluster = ("latencies", "bandwidths")

    def gradient(self, problem: Problem) -> Gradient:
        at_read = full_gradient(problem.objective, has_aux=problem.carries)

        def loss(new: Params, old: Params, batch: Batch) -> jax.Array:
            outputs = through(problem.blocks, new, old, problem.input(batch), batch.get(SEED))
            return jnp.mean(problem.losses(outputs, batch))

        def gradient(params: Params, event: Event, batch: Batch) -> tuple[Tree, Params]:
            plan: Stages = event.plan
            if plan.newest is not None:
                return jax.value_and_grad(loss)(plan.newest, params, batch)
            if plan.ahead is not None:
                params = jax.tree.map(jnp.add, params, plan.ahead)
            return at_read(params, event, batch)

        return gradient

    def read(self, gradient: Gradient, update: Update, slots: int, servers: Servers) -> Rule:
        assert servers
        blocks = servers
        inner = asynchronous(gradient, update, slots, servers=blocks)

        def step(state: SnapshotState, event: Event, batch: Batch) -> tuple[SnapshotState, Info]:
            plan: Stages = event.plan
            if self.pipeline == "no_stash":
                plan = plan._replace(newest=state.params)
            if self.pipeline == "predict":
                plan = plan._replace(ahead=ahead(state, event))
            return inner.step(state, event._replace(plan=plan), batch)

        def ahead(state: SnapshotState, event: Event) -> Params:
            factor = momentum_reach(event.hyper["momentum"], event.staleness)
            read, before = (
                state.read_slot({name: slots[block] for name, block in blocks.items()})
                for slots in (event.plan.read, event.plan.before)
            )
            return {
                name: jax.tree.map(
                    lambda x, old, b=b: factor[b] * (x - old), read[name], before[name]
                )
                for name, b in blocks.items()
            }

        return Rule(inner.init, step)

    def servers(self, problem: Problem) -> dict[str, int]:
        return {name: place for place, (name, _) in enumerate(problem.blocks)}

    def parts(self, stages: int) -> int:
        return self.micro_batches if self.pipeline == "2bw" else 1

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        setup, nodes, kind = inputs.setup, inputs.setup.cluster.nodes, self.pipeline
        work = stage_work(setup, inputs.model)
        delay, steps = delays(kind, nodes, len(inputs.model.problem.blocks)), setup.steps
        size = {"steps": steps, "batch_size": setup.batch_size}
        seconds = pipeline.unflushed_seconds(setup.cluster, self.parts(nodes), work, **size)
        t = np.arange(steps)[:, None]
        staleness = np.minimum(delay, t).astype(np.int32)
        slots = int(delay.max()) + 1 + (kind == "predict")
        versions = {"read": t - staleness, "write": t + 1 + 0 * delay}
        if kind == "predict":
            versions["before"] = np.maximum(t - staleness - 1, 0)
        plan = Stages(**{name: (v % slots).astype(np.int32) for name, v in versions.items()})
        return Timeline(np.zeros(steps, np.int32), staleness, seconds, slots, plan)

    def joins(self, setup: Setup, methods: MethodStack) -> Iterator[Join]:
        cluster = setup.cluster
        blocks = len(models.make(setup.model, classes=2)) - 1
        reason = f"must be from 1 to {blocks}, the model's blocks but its last, as nodes are stages"
        yield Join("cluster.nodes", not 1 <= cluster.nodes <= blocks, reason)
        other = self.pipeline == "predict" and setup.optimizer.name != "sgd"
        yield Join("optimizer.name", other, "must be 'sgd' with method.pipeline = 'predict'")
        few = self.pipeline == "2bw" and self.micro_batches < cluster.nodes
        reason = f"must be at least the {cluster.nodes} stages with method.pipeline = '2bw'"
        yield Join("method.micro_batches", few, reason)
        parts = cluster.devices_per_node * self.parts(cluster.nodes)
        reason = f"must be a multiple of {parts} (config.cluster.devices_per_node, with '2bw' x "
        yield Join("batch_size", setup.batch_size % parts, f"{reason}config.method.micro_batches)")

    def report(self, setup: Setup, model_info: ModelInfo) -> Json:
        return {"communicated_bytes": int(2 * stage_work(setup, model_info).sent.sum())}

    def layout(
        self,
        problem: Problem,
        optimizer: optax.GradientTransformationExtraArgs,
        nodes: int,
        devices: int,
    ) -> Layout:
        devices_mesh = mesh(("stage", "data"), (nodes, devices))
        return never_flushed(problem, optimizer, self.pipeline, devices_mesh, self.parts(nodes))


def through(
    blocks: Blocks, new: Params, old: Params, h: jax.Array, seeds: Array | None
) -> jax.Array:
    """Returns the blocks' outputs with the `old` parameters, and the derivatives of the `new`."""
    for block in blocks:
        now, then = (base.apply((block,), x, h, seeds) for x in (new, old))
        h = lax.stop_gradient(then) + (now - lax.stop_gradient(now))
    return h


def momentum_reach(momentum: Array, staleness: Array) -> Array:
    """Returns how many of its last displacements heavy ball still moves in so many updates."""
    return (momentum - momentum ** (jnp.asarray(staleness) + 1)) / (1 - momentum)


def stage_work(setup: Setup, model_info: ModelInfo) -> pipeline.StageWork:
    return local.costs(local.Local(variant="backprop"), setup, model_info)[1]


def cuts(stages: int, blocks: int) -> list[int]:
    """Returns the first block of each stage."""
    return [(blocks - 1) * stage // stages for stage in range(stages)]


def delays(kind: str, stages: int, blocks: int) -> np.ndarray:
    """Returns tau of each block, (blocks,) int32; the last two blocks share a stage."""
    trunk = np.minimum(np.arange(blocks), max(blocks - 2, 0))
    behind = stages - np.searchsorted(cuts(stages, blocks), trunk, side="right")
    return np.minimum(behind.max(), 1) + 0 * behind if kind == "2bw" else behind


class StageVersions(NamedTuple):
    """A `SnapshotState` in parts: row j is of stage j."""

    rows: Stacked  # with params (S, slots, P), all versions
    newest: Array  # (S,) int32, the slot of x_t


def never_flushed(
    problem: Problem,
    optimizer: optax.GradientTransformationExtraArgs,
    kind: str,
    mesh: Mesh,
    micro_batches: int,
) -> Layout:
    """Returns the loop over events on a mesh of the axes `stage` and `data`.

        stage j, micro-batch i        forward in beat 2 i + j, backward in beat 2 i + 2 S - 1 - j

    It takes and returns the state of the rule on one device, whose updates it makes. In a beat
    neighbours work in pairs, one forward and one backward, and then swap messages. So stage j makes
    S - 1 - j updates between a batch's forward and its backward. The timeline says which stored
    version a stage computes with, so a call of `advance` may end with the pipeline drained.

    A stage is a row of vectors, as in `stages.py`. It stores what it received of the micro-batches
    in the pipeline, and computes the rest again in the backward pass. Normalization over a batch
    sees a micro-batch.
    """
    bounds = pairwise([*cuts(mesh.shape["stage"], len(problem.blocks)), len(problem.blocks)])
    parts = list[Stage]()
    for a, b in bounds:  # the last stage also has the model's last block
        names = tuple(name for name, _ in problem.blocks[a:b])
        parts.append(Stage(problem.blocks[a:b], (), names, a))
    advance = partial(_advance, problem, optimizer, kind, parts, micro_batches)
    laid = layout.shard_map(advance, mesh, P("stage"), P(None, "data"))
    names_of = [part.names for part in parts]

    def put_state(state: SnapshotState) -> StageVersions:
        return laid.put_state(to_rows(names_of, jax.device_get(state)))

    return laid._replace(
        put_state=put_state, get=lambda state: from_rows(names_of, laid.get(state))
    )


def to_rows(names: Sequence[Sequence[str]], state: SnapshotState) -> StageVersions:
    """Returns the state as NumPy rows; row j holds the blocks `names[j]`."""
    slots = range(len(jax.tree.leaves(state.slots)[0]))
    versions = [
        stages.stack(names, SyncState(state.read_slot(slot), state.opt_state)) for slot in slots
    ]
    params = np.stack([version.params for version in versions], 1)
    rows = Stacked(params, versions[0].opt_state, versions[0].forms)
    return StageVersions(rows, np.array([state.newest[keys[0]] for keys in names], np.int32))


def from_rows(names: Sequence[Sequence[str]], state: StageVersions) -> SnapshotState:
    params, opt_state, forms = state.rows.params, state.rows.opt_state, state.rows.forms
    versions = [
        stages.merge(Stacked(params[:, slot], opt_state, forms)) for slot in range(params.shape[1])
    ]
    slots = jax.tree.map(
        lambda *leaves: np.stack(leaves), *(version.params for version in versions)
    )
    newest = {name: slot for keys, slot in zip(names, state.newest, strict=True) for name in keys}
    return SnapshotState(slots, newest, versions[0].opt_state, {})


class Carry(NamedTuple):
    """A stage's state at the beginning of a beat."""

    versions: jax.Array  # (slots, P)
    newest: jax.Array  # int32
    opt_state: jax.Array  # (Q,)
    received: jax.Array  # (S, H), activations of the micro-batches in the pipeline
    message: jax.Array  # (H,), a neighbour's message of the last beat
    total: jax.Array  # (P,), the gradient so far of the batch in its backward pass
    losses: jax.Array  # (chunk,)


def _advance(
    problem: Problem,
    optimizer: optax.GradientTransformationExtraArgs,
    kind: str,
    parts: Sequence[Stage],
    micro_batches: int,
    state: StageVersions,
    examples: Examples,
    events: Event,
    indices: jax.Array,
    n: jax.Array,
) -> tuple[StageVersions, Info]:
    """Runs the loop on one device: (1, ...) of the state, its part of the indices."""
    chunk, stage, count = len(indices), lax.axis_index("stage"), len(parts)
    numbers = stages.in_micro_batches(indices, micro_batches)
    forms, first = state.rows.forms, jnp.array([part.first for part in parts])[stage]
    sent, message = stages.sent_by(problem, parts, forms, examples, numbers[0, 0])
    programs = _programs(problem, kind, parts, forms, sent)

    def update(
        j: int, params: jax.Array, opt_state: jax.Array, grads: jax.Array, event: Event, *read: Tree
    ) -> tuple[Array, Array]:
        part = parts[j]
        late = {name: event.staleness[part.first + k] for k, name in enumerate(part.names)}
        event = event._replace(staleness=late)
        return stages.update(optimizer, forms[j], params, opt_state, grads, event, *read)

    updates: list[Callable[..., tuple[Array, Array]]] = [
        *(partial(update, j) for j in range(count)),
        lambda params, opt_state, *_: (params, opt_state),
    ]

    def beat(number: jax.Array, carry: Carry) -> Carry:
        forward = (number - stage) % 2 == 0
        i = jnp.where(forward, number - stage, number - (2 * count - 1 - stage)) // 2
        t, m = jnp.clip(i // micro_batches, 0, chunk - 1), i % micro_batches
        works = (i >= 0) & (i < n * micro_batches)
        event = jax.tree.map(lambda leaf: leaf[t], events)

        place = jnp.where(works & forward, i % count, count)  # the last is no place
        received = carry.received.at[place].set(carry.message, mode="drop")
        seen = read = carry.versions[event.plan.read[first]]
        if kind == "predict":
            far = momentum_reach(event.hyper["momentum"], event.staleness[first])
            seen = read + far * (read - carry.versions[event.plan.before[first]])
        new = carry.versions[carry.newest]
        which = jnp.where(works, jnp.where(forward, stage, count + stage), 2 * count)
        arguments = seen, new, received[i % count], carry.message, examples, numbers[t, m]
        grads, message, loss = lax.switch(which, programs, *arguments)

        total = carry.total + grads / micro_batches
        ends = works & ~forward & (m == micro_batches - 1)
        mean = lax.pmean(total, "data") if lax.axis_size("data") > 1 else total
        which = jnp.where(ends, stage, count)
        params, opt_state = lax.switch(which, updates, new, carry.opt_state, mean, event, read)
        slot = event.plan.write[first]
        return Carry(
            carry.versions.at[jnp.where(ends, slot, len(carry.versions))].set(params, mode="drop"),
            jnp.where(ends, slot, carry.newest),
            opt_state,
            received,
            message,
            jnp.where(ends, 0, total),
            carry.losses.at[t].add(loss / micro_batches),
        )

    def pair_of_beats(pair: jax.Array, carry: Carry) -> Carry:
        for which in range(2):
            carry = beat(2 * pair + which, carry)
            carry = carry._replace(
                message=lax.ppermute(carry.message, "stage", _pairs(which, count))
            )
        return carry

    start = Carry(
        versions=state.rows.params[0],
        newest=state.newest[0],
        opt_state=state.rows.opt_state[0],
        received=jnp.stack([message] * count),
        message=message,
        total=jnp.zeros_like(state.rows.params[0, 0]),
        losses=jnp.zeros(chunk, jnp.float32),
    )
    end = lax.fori_loop(0, n * micro_batches + count - 1, pair_of_beats, start)
    rows = Stacked(end.versions[None], end.opt_state[None], forms)
    return StageVersions(rows, end.newest[None]), {"loss": lax.psum(end.losses, "stage")}


def _pairs(first: int, stages: int) -> list[tuple[int, int]]:
    """Returns the pairs of stages that swap: `first` and the next, the two after, and so on."""
    lower = range(first, stages - 1, 2)
    return [pair for j in lower for pair in ((j, j + 1), (j + 1, j))]


def _programs(
    problem: Problem,
    kind: str,
    parts: Sequence[Stage],
    forms: Sequence[Forms],
    sent: Sequence[Form],
) -> list[Callable[..., Beat]]:
    """Returns `(read, new, received, message, examples, numbers) -> gradient, message, loss`.

    First that of each stage forward, then of each stage backward, last an idle one.
    """
    last = len(parts) - 1

    def input_of(j: int, received: jax.Array, examples: Examples, numbers: jax.Array) -> jax.Array:
        return (
            unravel(sent[j - 1], received) if j else problem.input(problem.batch(examples, numbers))
        )

    def forward(
        j: int,
        seen: jax.Array,
        new: jax.Array,
        received: jax.Array,
        message: jax.Array,
        *data: Tree,
    ) -> Beat:
        if j == last:  # computes it with the derivatives
            return idle(seen, new, received, message)
        params = unravel(forms[j].params, seen)
        seeds = problem.batch(*data).get(SEED)
        h = base.apply(parts[j].blocks, params, input_of(j, received, *data), seeds)
        return jnp.zeros_like(seen), ravel(h, len(message), message.dtype), jnp.float32(0)

    def backward(
        j: int,
        seen: jax.Array,
        new: jax.Array,
        received: jax.Array,
        message: jax.Array,
        *data: Tree,
    ) -> Beat:
        blocks, old = parts[j].blocks, unravel(forms[j].params, seen)

        batch = problem.batch(*data)

        def run_blocks(params: Params, h: jax.Array) -> jax.Array:
            if kind == "no_stash":
                h = through(blocks, params, old, h, batch.get(SEED))
            else:
                h = base.apply(blocks, params, h, batch.get(SEED))
            return h if j < last else jnp.mean(problem.losses(h, batch))

        params = unravel(forms[j].params, new) if kind == "no_stash" else old
        out, back = jax.vjp(run_blocks, params, input_of(j, received, *data))
        grads, delta = back(unravel(sent[j], message) if j < last else jnp.ones_like(out))
        return (
            ravel(grads, len(seen)),
            ravel(delta, len(message), message.dtype) if j else message,
            out if j == last else jnp.float32(0),
        )

    def idle(
        seen: jax.Array, new: jax.Array, received: jax.Array, message: jax.Array, *_: Tree
    ) -> Beat:
        return jnp.zeros_like(seen), message, jnp.float32(0)

    stages = range(len(parts))
    return [*(partial(forward, j) for j in stages), *(partial(backward, j) for j in stages), idle]
