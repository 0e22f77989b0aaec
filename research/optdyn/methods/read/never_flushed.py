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

from collections.abc import Callable, Sequence
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

from optdyn.base.trees import Array, Params, Tree
from optdyn.core import Event, Info
from optdyn.core.snapshots import SnapshotState
from optdyn.devices import layout
from optdyn.devices.layout import Layout
from optdyn.methods import sync
from optdyn.methods.gradient.stacked import Form, Forms, Stacked, merge, ravel, stack, unravel
from optdyn.methods.gradient.stages import Stage, in_micro_batches, sent_by, update
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
        read = has.versions[event.choice.read[first]]
        seen, new = _seen(kind, has.versions, read, event, first), has.versions[has.newest]
        which = jnp.where(works, jnp.where(forward, stage, count + stage), 2 * count)
        given = seen, new, received[i % count], has.message, examples, numbers[t, m]
        grads, message, loss = lax.switch(which, programs, *given)

        total = has.total + grads / micro_batches
        ends = works & ~forward & (m == micro_batches - 1)
        mean = lax.pmean(total, "data") if lax.axis_size("data") > 1 else total
        which = jnp.where(ends, stage, count)
        params, opt_state = lax.switch(which, updates, new, has.opt_state, mean, event, read)
        slot = event.choice.write[first]
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
    return read + far * (read - versions[event.choice.before[first]])


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
