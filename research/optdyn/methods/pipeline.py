"""Stages of a pipeline that is never flushed, on devices of their own (arXiv 1806.03377, 1F1B).

    stage j, micro-batch i        forward in beat 2 i + j, backward in beat 2 i + 2 S - 1 - j

In every beat neighbours work in pairs, one forward and one backward, and then they swap what they
made: activations for their gradient. So stage j makes S - 1 - j updates between a batch's forward
and its backward. Which version of its parameters it computes with is not left to that: the
timeline says it (`stale_pipeline.py`), and the stage has kept it. So a call of
`advance` may end with the pipeline drained, and the updates are those of one device.

A stage is a row of vectors, as in `stages.py`. It keeps what it received of the micro-batches that
are under way, and computes the rest again on the way back.

Without stashing the derivatives are those of the newest parameters, at the activations of the old:

    h_{j+1} = stop(f_j(old, h_j)) + f_j(new, h_j) - stop(f_j(new, h_j))

Predicted parameters are where heavy ball of momentum mu would be if all gradients in between were
0, from a displacement and not from the velocity, as x_{t-1} - x_t is gamma v:

    x_t - (mu - mu^{tau+1}) / (1 - mu) (x_{t-1} - x_t)          tau updates on
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from optdyn.methods import local, sync
from optdyn.methods.asynchronous import asynchronous
from optdyn.methods.method import ClockInputs, Gradients, Methods, MicroBatches, ModelInfo, Reads
from optdyn.methods.setup import Setup
from optdyn.methods.stages import (
    Form,
    Forms,
    Stacked,
    Stage,
    in_micro_batches,
    merge,
    ravel,
    sent_by,
    stack,
    unravel,
    update,
)
from optdyn.problem import models
from optdyn.problem.models import Blocks, base
from optdyn.problem.problem import Examples, Problem

Beat = tuple[Array, Array, Array]  # of a stage: its gradient, its message, its loss


class StageVersions(NamedTuple):
    """`SyncState` in parts: row j is of stage j."""

    rows: Stacked  # its params (S, slots, P), all versions
    newest: Array  # (S,) int32, the slot of x_t


def never_flushed(
    problem: Problem,
    optimizer: optax.GradientTransformationExtraArgs,
    kind: str,
    cuts: Sequence[int],
    mesh: Mesh,
    micro_batches: int,
) -> Layout:
    """The loop over events on a mesh of the axes `stage` and `data`.

    Takes and gives back the state of `stale_pipeline` on one device. Stage j has the blocks from
    `cuts[j]` on; the last of them is also in charge of the model's last block. A batch goes through
    in `micro_batches`, and normalization over a batch sees one of them.
    """
    parts = list[Stage]()
    for a, b in pairwise([*cuts, len(problem.blocks)]):
        names = tuple(name for name, _ in problem.blocks[a:b])
        parts.append(Stage(problem.blocks[a:b], (), names, a))
    advance = partial(_advance, problem, optimizer, kind, parts, micro_batches)
    laid = layout.shard_map(advance, mesh, P("stage"), P(None, "data"))
    every = [part.names for part in parts]

    def put_state(state: SnapshotState) -> StageVersions:
        return laid.put_state(apart(every, jax.device_get(state)))

    return laid._replace(put_state=put_state, get=lambda state: together(every, laid.get(state)))


def apart(names: Sequence[Sequence[str]], state: SnapshotState) -> StageVersions:
    """Row j holds the blocks `names[j]`; NumPy arrays."""
    slots = range(len(jax.tree.leaves(state.slots)[0]))
    every = [stack(names, sync.SyncState(state.at(slot), state.opt_state)) for slot in slots]
    one = every[0]
    rows = Stacked(np.stack([each.params for each in every], 1), one.opt_state, one.forms)
    return StageVersions(rows, np.array([state.newest[own[0]] for own in names], np.int32))


def together(names: Sequence[Sequence[str]], state: StageVersions) -> SnapshotState:
    """The state whole, of NumPy arrays."""
    (every, opt_state), forms = (state.rows.params, state.rows.opt_state), state.rows.forms
    merged = [merge(Stacked(every[:, slot], opt_state, forms)) for slot in range(every.shape[1])]
    slots = jax.tree.map(lambda *leaves: np.stack(leaves), *(each.params for each in merged))
    newest = {name: slot for own, slot in zip(names, state.newest, strict=True) for name in own}
    return SnapshotState(slots, newest, merged[0].opt_state, {})


class Carry(NamedTuple):
    """What a stage has at the beginning of a beat."""

    versions: jax.Array  # (slots, P)
    newest: jax.Array  # int32
    opt_state: jax.Array  # (Q,)
    received: jax.Array  # (S, H), of the micro-batches under way
    message: jax.Array  # (H,), what a neighbour made in the last beat
    total: jax.Array  # (P,), the gradient so far of the batch that is on its way back
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
    """The loop on one device: (1, ...) of the state, its part of the indices."""
    chunk, stage, count = len(indices), lax.axis_index("stage"), len(parts)
    numbers = in_micro_batches(indices, micro_batches)
    forms, first = state.rows.forms, jnp.array([part.first for part in parts])[stage]
    sent, message = sent_by(problem, parts, forms, examples, numbers[0, 0])
    programs = _programs(problem, kind, parts, forms, sent)
    updates: list[Callable[..., tuple[Array, Array]]] = [
        *(partial(_update, optimizer, *own) for own in zip(parts, forms, strict=True)),
        lambda params, opt_state, *_: (params, opt_state),
    ]

    def beat(number: jax.Array, has: Carry) -> Carry:
        forward = (number - stage) % 2 == 0
        i = jnp.where(forward, number - stage, number - (2 * count - 1 - stage)) // 2
        t, m = jnp.clip(i // micro_batches, 0, chunk - 1), i % micro_batches
        works = (i >= 0) & (i < n * micro_batches)
        event = jax.tree.map(lambda leaf: leaf[t], events)

        place = jnp.where(works & forward, i % count, count)  # the last is no place
        received = has.received.at[place].set(has.message, mode="drop")
        read = has.versions[event.plan.read[first]]
        seen, new = _seen(kind, has.versions, read, event, first), has.versions[has.newest]
        which = jnp.where(works, jnp.where(forward, stage, count + stage), 2 * count)
        given = seen, new, received[i % count], has.message, examples, numbers[t, m]
        grads, message, loss = lax.switch(which, programs, *given)

        total = has.total + grads / micro_batches
        ends = works & ~forward & (m == micro_batches - 1)
        mean = lax.pmean(total, "data") if lax.axis_size("data") > 1 else total
        which = jnp.where(ends, stage, count)
        params, opt_state = lax.switch(which, updates, new, has.opt_state, mean, event, read)
        slot = event.plan.write[first]
        return Carry(
            has.versions.at[jnp.where(ends, slot, len(has.versions))].set(params, mode="drop"),
            jnp.where(ends, slot, has.newest),
            opt_state,
            received,
            message,
            jnp.where(ends, 0, total),
            has.losses.at[t].add(loss / micro_batches),
        )

    def two(pair: jax.Array, has: Carry) -> Carry:
        for which in range(2):
            has = beat(2 * pair + which, has)
            has = has._replace(message=lax.ppermute(has.message, "stage", _pairs(which, count)))
        return has

    start = Carry(
        versions=state.rows.params[0],
        newest=state.newest[0],
        opt_state=state.rows.opt_state[0],
        received=jnp.stack([message] * count),
        message=message,
        total=jnp.zeros_like(state.rows.params[0, 0]),
        losses=jnp.zeros(chunk, jnp.float32),
    )
    end = lax.fori_loop(0, n * micro_batches + count - 1, two, start)
    rows = Stacked(end.versions[None], end.opt_state[None], forms)
    return StageVersions(rows, end.newest[None]), {"loss": lax.psum(end.losses, "stage")}


def _pairs(first: int, stages: int) -> list[tuple[int, int]]:
    """Pairs of stages that swap: `first` and the next, the two after these, and so on."""
    lower = range(first, stages - 1, 2)
    return [pair for j in lower for pair in ((j, j + 1), (j + 1, j))]


def _seen(
    kind: str, versions: jax.Array, read: jax.Array, event: Event, first: jax.Array
) -> jax.Array:
    """The parameters that a stage computes with, which has read the version `read`."""
    if kind != "predict":
        return read
    far = distance(event.hyper["momentum"], event.staleness[first])
    return read + far * (read - versions[event.plan.before[first]])


def _update(
    optimizer: optax.GradientTransformationExtraArgs,
    part: Stage,
    forms: Forms,
    params: jax.Array,
    opt_state: jax.Array,
    grads: jax.Array,
    event: Event,
    read: jax.Array,
) -> tuple[Array, Array]:
    """The update by blocks, each with a staleness of its own."""
    stale = {name: event.staleness[part.first + k] for k, name in enumerate(part.names)}
    event = event._replace(staleness=stale)
    return update(optimizer, forms, params, opt_state, grads, event, read)


def _programs(
    problem: Problem,
    kind: str,
    parts: Sequence[Stage],
    forms: Sequence[Forms],
    sent: Sequence[Form],
) -> list[Callable[..., Beat]]:
    """`(seen, new, received, message, examples, own) -> (gradient, message, loss)`.

    Of every stage forward, of every stage backward, and of one that has nothing to do.
    """
    last = len(parts) - 1

    def input_of(j: int, received: jax.Array, examples: Examples, own: jax.Array) -> jax.Array:
        return unravel(sent[j - 1], received) if j else problem.input(problem.batch(examples, own))

    def forward(
        j: int, seen: jax.Array, new: jax.Array, received: jax.Array, message: jax.Array, *of: Tree
    ) -> Beat:
        if j == last:  # computes it with the derivatives
            return idle(seen, new, received, message)
        params = unravel(forms[j].params, seen)
        h = base.apply(parts[j].blocks, params, input_of(j, received, *of))
        return jnp.zeros_like(seen), ravel(h, len(message), message.dtype), jnp.float32(0)

    def backward(
        j: int, seen: jax.Array, new: jax.Array, received: jax.Array, message: jax.Array, *of: Tree
    ) -> Beat:
        blocks, old = parts[j].blocks, unravel(forms[j].params, seen)

        def made(params: Params, h: jax.Array) -> jax.Array:
            if kind == "no_stash":
                h = through(blocks, params, old, h)
            else:
                h = base.apply(blocks, params, h)
            return h if j < last else jnp.mean(problem.losses(h, problem.batch(*of)))

        params = unravel(forms[j].params, new) if kind == "no_stash" else old
        out, back = jax.vjp(made, params, input_of(j, received, *of))
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

    every = range(len(parts))
    return [*(partial(forward, j) for j in every), *(partial(backward, j) for j in every), idle]


def through(blocks: Blocks, new: Params, old: Params, h: jax.Array) -> jax.Array:
    """What the blocks make of h with the `old` parameters, with the derivatives of the `new`."""
    for block in blocks:
        now, then = (base.apply((block,), x, h) for x in (new, old))
        h = lax.stop_gradient(then) + (now - lax.stop_gradient(now))
    return h


def distance(momentum: Array, staleness: Array) -> Array:
    """How many of its last displacements heavy ball goes on in so many updates."""
    return (momentum - momentum ** (jnp.asarray(staleness) + 1)) / (1 - momentum)


KINDS = ("stash", "2bw", "no_stash", "predict")


class Stages(NamedTuple):
    """The version that each block is read at and that the new one is, (blocks,) int32 slots."""

    read: Array
    write: Array
    before: Array | None = None  # the version before that, which predictions ask for
    newest: Array | None = None  # x_t, whose derivatives `never_flushed.through` takes
    ahead: Array | None = None  # by how much parameters are predicted to move
    seen: Params | None = None


def cuts(stages: int, blocks: int) -> list[int]:
    """The first block of every stage."""
    return [(blocks - 1) * stage // stages for stage in range(stages)]


def delays(kind: str, stages: int, blocks: int) -> np.ndarray:
    """(blocks,) int32, tau of every block; the last is where the block before it is."""
    trunk = np.minimum(np.arange(blocks), max(blocks - 2, 0))
    behind = stages - np.searchsorted(cuts(stages, blocks), trunk, side="right")
    return np.minimum(behind.max(), 1) + 0 * behind if kind == "2bw" else behind


def stale_stages(kind: str, stages: int, blocks: int, seconds: np.ndarray) -> Timeline:
    """Updates that end at these `seconds`, (steps,), each block with slots in a ring."""
    late, steps = delays(kind, stages, blocks), len(seconds)
    t = np.arange(steps)[:, None]
    staleness = np.minimum(late, t).astype(np.int32)
    slots = int(late.max()) + 1 + (kind == "predict")
    versions = {"read": t - staleness, "write": t + 1 + 0 * late}
    if kind == "predict":
        versions["before"] = np.maximum(t - staleness - 1, 0)
    choice = Stages(**{name: (v % slots).astype(np.int32) for name, v in versions.items()})
    return Timeline(np.zeros(steps, np.int32), staleness, seconds, slots, choice)


def late(problem: Problem) -> Gradient:
    """The gradient at what was read; by `reading` also at the `newest`, or further `ahead`."""
    of = full_gradient(problem.loss)

    def loss(new: Params, old: Params, batch: Batch) -> jax.Array:
        outputs = through(problem.blocks, new, old, problem.input(batch))
        return jnp.mean(problem.losses(outputs, batch))

    def gradient(params: Params, event: Event, batch: Batch) -> tuple[jax.Array, Params]:
        newest, further = event.plan.newest, event.plan.ahead
        if newest is not None:
            return jax.value_and_grad(loss)(newest, params, batch)
        if further is not None:
            params = jax.tree.map(jnp.add, params, further)
        return of(params, event, batch)

    return gradient


def reading(
    gradient: Gradient, update: Update, kind: str, slots: int, servers: Mapping[str, int]
) -> Rule:
    """The rule of `asynchronous.py`, a server a block; `event.plan` is of `Stages`."""
    inner = asynchronous(gradient, update, slots, servers=servers)

    def step(state: SnapshotState, event: Event, batch: Batch) -> tuple[SnapshotState, Info]:
        choice = event.plan
        if kind == "no_stash":
            choice = choice._replace(newest=state.params)
        if kind == "predict":
            choice = choice._replace(ahead=ahead(state, event))
        return inner.step(state, event._replace(plan=choice), batch)

    def ahead(state: SnapshotState, event: Event) -> Params:
        factor = distance(event.hyper["momentum"], event.staleness)
        read, before = (
            state.at({name: slots[block] for name, block in servers.items()})
            for slots in (event.plan.read, event.plan.before)
        )
        return {
            name: jax.tree.map(lambda x, old, b=b: factor[b] * (x - old), read[name], before[name])
            for name, b in servers.items()
        }

    return Rule(inner.init, step)


def work(setup: Setup, network: ModelInfo) -> pipeline.StageWork:
    """The work of backpropagation on the stages."""
    return local.costs(local.Local(variant="backprop"), setup, network)[1]


@dataclass(frozen=True)
class StalePipeline(Gradients, Reads, MicroBatches, name="stale_pipeline"):
    """Pipelines that are never flushed: every stage has parameters of an age of its own.

        x^s_{t+1} = x^s_t - alpha grad_s f(x^1_{t - tau_1}, ..., x^S_{t - tau_S})      s = 1, ..., S

        stash      tau_s = S - s, forward and backward    PipeDream with weight stashing, 1806.03377
        2bw        tau_s = 1 of all stages                PipeDream-2BW, 2006.09503
        no_stash   likewise forward, backward at x_t      PipeDream without stashing
        predict    as stash, of parameters predicted for  SpecTrain, 1809.02839; FTPipe
                   tau_s updates later

    The nodes of the cluster are the stages. This is asynchronous SGD whose blocks have a slot each,
    which the clock decides, forward and backward alike. Each block has an optimizer of its own,
    with a staleness of its own. What a stage computes with is in `never_flushed.py`.

    Here one device computes all stages in turn; `methods/pipeline.py` has them on
    devices of their own.
    """

    pipeline: str = field(
        "stash",
        "Which parameters stages use, 'stash', '2bw', 'no_stash' or 'predict'.",
        one_of=KINDS,
        static=True,
    )

    pieces = ("gradient", "read")
    staged = True
    laws = ("constant",)
    cluster = ("latencies", "bandwidths")

    def gradient(self, problem: Problem) -> Gradient:
        return late(problem)

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        assert servers
        return reading(gradient, update, self.pipeline, slots, servers)

    def servers(self, problem: Problem) -> dict[str, int]:
        """Every block is by itself."""
        return {name: place for place, (name, _) in enumerate(problem.blocks)}

    def parts(self, stages: int) -> int:
        return self.micro_batches if self.pipeline == "2bw" else 1

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """One forward and one backward in turn, without a flush (`clock/pipeline.py`).

        Of 2bw an update is of `micro_batches`, of the others of one batch as a whole.
        """
        setup = setting.setup
        blocks, stages = len(setting.model.problem.blocks), setup.cluster.nodes
        size = {"steps": setup.steps, "batch_size": setup.batch_size}
        own = work(setup, setting.model)
        seconds = pipeline.never_flushed(setup.cluster, self.parts(stages), own, **size)
        return stale_stages(self.pipeline, stages, blocks, seconds)

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        cluster = setup.cluster
        blocks = len(models.make(setup.model, classes=2)) - 1
        said = (
            f"stages of a pipeline, must be from 1 to the model's {blocks} blocks before its last"
        )
        yield Join("cluster.nodes", not 1 <= cluster.nodes <= blocks, said)
        light = self.pipeline == "predict" and setup.optimizer.name != "sgd"
        yield Join("optimizer.name", light, "'predict' is of heavy ball, must be 'sgd'")
        few = self.pipeline == "2bw" and self.micro_batches < cluster.nodes
        said = f"must be at least the {cluster.nodes} stages, or '2bw' is later than by one update"
        yield Join("method.micro_batches", few, said)
        parts = cluster.devices_per_node * self.parts(cluster.nodes)
        said = f"must be a multiple of {parts} (config.cluster.devices_per_node, of '2bw' x config."
        yield Join("batch_size", setup.batch_size % parts, f"{said}method.micro_batches)")

    def report(self, setup: Setup, network: ModelInfo) -> Json:
        """Bytes of an update between stages, activations forward and their gradients back."""
        return {"communicated_bytes": int(2 * work(setup, network).sent.sum())}

    def layout(
        self,
        problem: Problem,
        optimizer: optax.GradientTransformationExtraArgs,
        nodes: int,
        devices: int,
    ) -> "Layout":
        """A stage a device, or several that share its batches."""
        on = mesh(("stage", "data"), (nodes, devices))
        blocks = cuts(nodes, len(problem.blocks))
        return never_flushed(problem, optimizer, self.pipeline, blocks, on, self.parts(nodes))
