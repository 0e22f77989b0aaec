"""Blocks on devices of their own, along a mesh axis `stage` (arXiv 2012.03837).

    stage j runs update t at tick t + j            n updates of S stages: n + S - 1 ticks

Losses are local, so only activations travel, forward to the next stage at the end of a tick.
Backprop goes through all stages in micro-batches (`_backprop`). Along the axis `data` each stage
has copies that share a batch.

One program runs on all devices. So parameters and messages of a stage are vectors, padded to the
longest of all stages (`Stacked`), and `lax.switch` selects the stage's program, or an idle one in
the ticks that fill and drain the pipeline. Collectives are outside the switch, where all meet them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from optdyn.base.trees import Array, Examples, Tree
from optdyn.core import Event, Info, per_block_optimizer
from optdyn.devices import layout
from optdyn.devices.layout import Layout
from optdyn.methods.local_losses import gradients, heads
from optdyn.methods.sync import SyncState
from optdyn.problem.costs import Groups
from optdyn.problem.models import Blocks, base
from optdyn.problem.problem import SEED, Problem

Tick = tuple[Array, Array, Array]  # a stage's gradient, its message, its loss


class Form(NamedTuple):
    """Structure and shapes with which a vector becomes a pytree again."""

    tree: jax.tree_util.PyTreeDef
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    @property
    def size(self) -> int:
        return sum(leaf.size for leaf in self.leaves)


class Forms(NamedTuple):
    params: Form
    opt_state: Form


@partial(
    jax.tree_util.register_dataclass, data_fields=("params", "opt_state"), meta_fields=("forms",)
)
@dataclass(frozen=True)
class Stacked:
    """A `SyncState` in parts: row j is part j as a float32 vector, padded with zeros.

    Integers such as adam's count become floats: exact below 2^24.
    """

    params: Array  # (S, P)
    opt_state: Array  # (S, Q)
    forms: tuple[Forms, ...]


class Stage(NamedTuple):
    blocks: Blocks  # of the trunk; the last stage also has the model's last block
    groups: Groups  # the trunk's groups that lie in it
    names: tuple[str, ...]  # keys of its part of `SyncState.params`
    first: int  # number of its first block


def stages(
    problem: Problem,
    optimizer: optax.GradientTransformationExtraArgs,
    groups: Groups,
    mesh: Mesh,
    micro_batches: int = 1,
) -> Layout:
    """Returns the loop over events on a mesh of the axes `stage` and `data`.

    It takes and returns the state of `local(problem, optimizer, groups)`, and makes the same
    updates: a call of `advance` ends with the pipeline drained. `micro_batches` is for backprop,
    whose groups are ((0, K),). Normalization over a batch sees that of its device, or its
    micro-batch. Messages of 16-bit types are rounded, where XLA on one device may have kept
    float32. Raises ValueError if the trunk cannot be shared among the stages.
    """
    trunk, count = len(problem.blocks) - 1, mesh.shape["stage"]
    backprop = tuple(groups) == ((0, trunk),)
    if micro_batches > 1 and not backprop:
        raise ValueError(f"{micro_batches} micro-batches: must be 1 without backprop on stages")
    whole = backprop and count * micro_batches > 1
    parts = _share(problem.blocks, groups, count, whole)
    tick = (_backprop, 0) if whole else (_local, 1)
    advance = partial(_advance, problem, optimizer, parts, *tick, micro_batches)
    laid = layout.shard_map(advance, mesh, P("stage"), P(None, "data"))

    def put_state(state: SyncState) -> Stacked:
        return laid.put_state(stack([part.names for part in parts], state))

    return laid._replace(put_state=put_state, get=lambda state: merge(laid.get(state)))


def _share(blocks: Blocks, groups: Groups, count: int, whole: bool) -> tuple[Stage, ...]:
    trunk = len(blocks) - 1
    if trunk % count:
        raise ValueError(f"{trunk} trunk blocks do not divide evenly over {count} stages")
    per_stage = trunk // count
    for a, b in () if whole else groups:
        if a // per_stage != (b - 1) // per_stage:
            raise ValueError(
                f"group ({a}, {b}) of blocks crosses the end of stage {a // per_stage} at block "
                f"{(a // per_stage + 1) * per_stage}: greedy, or chunks that end where stages end, "
                "would not"
            )
    parts = []
    for start in range(0, trunk, per_stage):
        stop = start + per_stage
        stage_groups = tuple((a, b) for a, b in groups if start <= a < stop)
        stage_blocks = blocks[start:stop] + (blocks[-1:] if stop == trunk else ())
        names = [name for name, _ in stage_blocks]
        names += [base.head_of(name) for name in heads(blocks, stage_groups, False)]
        parts.append(Stage(stage_blocks, stage_groups, tuple(names), start))
    return tuple(parts)


def _advance(
    problem: Problem,
    optimizer: optax.GradientTransformationExtraArgs,
    parts: Sequence[Stage],
    gradient: Callable[..., Callable[..., Tick]],
    lag: int,  # ticks by which each stage runs after the one before
    micro_batches: int,
    state: Stacked,
    examples: Examples,
    events: Event,
    indices: jax.Array,
    n: jax.Array,
) -> tuple[Stacked, Info]:
    """Runs the loop on one device: (1, P) and (1, Q) of the state, its part of the indices."""
    chunk, stage, count = len(indices), lax.axis_index("stage"), len(parts)
    numbers = in_micro_batches(indices, micro_batches)
    sent, h = sent_by(problem, parts, state.forms, examples, numbers[0, 0])
    grads_of = gradient(problem, parts, state.forms, sent)
    updates: list[Callable[..., tuple[Array, Array]]] = [
        *(partial(update, optimizer, forms) for forms in state.forms),
        lambda params, opt_state, *_: (params, opt_state),
    ]

    def body(tick: jax.Array, carry: tuple[Tree, ...]) -> tuple[Tree, ...]:
        params, opt_state, h, losses = carry
        t = tick - lag * stage
        at = jnp.clip(t, 0, chunk - 1)
        program = jnp.where((t >= 0) & (t < n), stage, count)
        grads, h, loss = grads_of(program, params, h, examples, numbers[at])
        if lax.axis_size("data") > 1:
            grads = lax.pmean(grads, "data")
        event = jax.tree.map(lambda leaf: leaf[at], events)
        params, opt_state = lax.switch(program, updates, params, opt_state, grads, event, params)
        return params, opt_state, h, losses.at[at].add(loss)

    carry = (state.params[0], state.opt_state[0], h, jnp.zeros(chunk, jnp.float32))
    ticks = n + lag * (count - 1)
    params, opt_state, _, losses = lax.fori_loop(0, ticks, body, carry)
    after = Stacked(params[None], opt_state[None], state.forms)
    return after, {"loss": lax.psum(losses, "stage")}  # zero but in the last stage


def in_micro_batches(indices: jax.Array, count: int) -> jax.Array:
    """Returns (chunk, M, B / M, ...) of (chunk, B, ...). Raises ValueError if M divides not B."""
    chunk, size = indices.shape[:2]
    if size % count:
        raise ValueError(f"{size} examples a device: must be a multiple of {count} micro-batches")
    return indices.reshape(chunk, count, -1, *indices.shape[2:])


def update(
    optimizer: optax.GradientTransformationExtraArgs,
    forms: Forms,
    params: jax.Array,
    opt_state: jax.Array,
    grads: jax.Array,
    event: Event,
    read: jax.Array,
) -> tuple[Array, Array]:
    """Returns a stage's vectors after its update of a gradient that was taken at `read`."""
    x, grad, read_params = (unravel(forms.params, flat) for flat in (params, grads, read))
    state = unravel(forms.opt_state, opt_state)
    after = SyncState(*per_block_optimizer(optimizer).apply(grad, state, x, event, read_params))
    return ravel(after.params, len(params)), ravel(after.opt_state, len(opt_state))


def _local(
    problem: Problem, parts: Sequence[Stage], forms: Sequence[Forms], sent: Sequence[Form]
) -> Callable[..., Tick]:
    last = len(parts) - 1

    def program(
        j: int, params: jax.Array, h: jax.Array, examples: Examples, numbers: jax.Array
    ) -> Tick:
        batch = problem.batch(examples, numbers[0])
        x = unravel(sent[j - 1], h) if j else problem.input(batch)
        gradient = gradients(problem, parts[j].groups)
        grads, x, loss = gradient(unravel(forms[j].params, params), x, batch)
        if j < last:
            return ravel(grads, len(params)), ravel(x, len(h), h.dtype), jnp.zeros_like(loss)
        return ravel(grads, len(params)), h, loss

    def idle(params: jax.Array, h: jax.Array, *_: Tree) -> Tick:
        return jnp.zeros_like(params), h, jnp.float32(0)

    stages = range(len(parts))
    programs: list[Callable[..., Tick]] = [*(partial(program, j) for j in stages), idle]

    def tick(which: jax.Array, *arguments: Tree) -> Tick:
        grads, h, loss = lax.switch(which, programs, *arguments)
        return grads, lax.ppermute(h, "stage", [(j, j + 1) for j in range(last)]), loss

    return tick


def _backprop(
    problem: Problem, parts: Sequence[Stage], forms: Sequence[Forms], sent: Sequence[Form]
) -> Callable[..., Tick]:
    """Returns a tick: a batch goes through all stages and back (GPipe, arXiv 1811.06965).

        stage j takes micro-batch m at tick m + j, forward            M + S - 1 ticks
        the same ticks in reverse, backward                           L = 1/M sum_m L_m

    The backward pipeline is the derivative of the forward one. A stage stores what it received of
    each micro-batch, and computes the rest again in the backward pass.
    """
    count = len(parts)

    def program(
        j: int, params: jax.Array, h: jax.Array, examples: Examples, numbers: jax.Array
    ) -> tuple[Array, Array]:
        batch = problem.batch(examples, numbers)
        x = unravel(sent[j - 1], h) if j else problem.input(batch)
        x = base.apply(parts[j].blocks, unravel(forms[j].params, params), x, batch.get(SEED))
        if j < count - 1:
            return ravel(x, len(h), h.dtype), jnp.float32(0)
        return h, jnp.mean(problem.losses(x, batch))

    def idle(params: jax.Array, h: jax.Array, *_: Tree) -> tuple[jax.Array, jax.Array]:
        return h, jnp.float32(0)

    programs: list[Callable[..., tuple[Array, Array]]] = [
        *(partial(program, j) for j in range(count)),
        idle,
    ]

    def total(params: jax.Array, h: jax.Array, examples: Examples, numbers: jax.Array) -> jax.Array:
        stage, micro_batches = lax.axis_index("stage"), len(numbers)

        @partial(jax.checkpoint, prevent_cse=False)  # a loop and its derivative are two programs
        def work(params: jax.Array, h: jax.Array, tick: jax.Array) -> tuple[jax.Array, jax.Array]:
            m = tick - stage
            which = jnp.where((m >= 0) & (m < micro_batches), stage, count)
            at = jnp.clip(m, 0, micro_batches - 1)
            return lax.switch(which, programs, params, h, examples, numbers[at])

        def step(h: jax.Array, tick: jax.Array) -> tuple[jax.Array, jax.Array]:
            h, loss = work(params, h, tick)
            return lax.ppermute(h, "stage", [(j, j + 1) for j in range(count - 1)]), loss

        _, losses = lax.scan(step, h, jnp.arange(micro_batches + count - 1))
        return jnp.sum(losses) / micro_batches

    gradient = jax.value_and_grad(total)

    def tick(
        _: Tree, params: jax.Array, h: jax.Array, examples: Examples, numbers: jax.Array
    ) -> Tick:
        loss, grads = gradient(params, h, examples, numbers)
        return grads, h, loss

    return tick


def sent_by(
    problem: Problem,
    parts: Sequence[Stage],
    all_forms: Sequence[Forms],
    examples: Examples,
    numbers: jax.Array,
) -> tuple[list[Form], jax.Array]:
    """Returns the forms of the stages' messages, but the last's, and zeros for the longest."""
    x: jax.ShapeDtypeStruct = jax.eval_shape(
        lambda: problem.input(problem.batch(examples, numbers))
    )
    sent = []
    for part, forms in zip(parts[:-1], all_forms[:-1], strict=True):
        params = jax.tree.unflatten(forms.params.tree, forms.params.leaves)
        x = jax.eval_shape(partial(base.apply, part.blocks), params, x)
        sent.append(form_of(x))
    dtype = jnp.result_type(jnp.bfloat16, *(leaf.dtype for form in sent for leaf in form.leaves))
    return sent, jnp.zeros(max((form.size for form in sent), default=0), dtype)


def stack(names: Sequence[Sequence[str]], state: SyncState) -> Stacked:
    """Returns the state as NumPy rows; row j holds the keys `names[j]`."""
    host = jax.device_get(state)
    parts = [SyncState(*({name: tree[name] for name in keys} for tree in host)) for keys in names]
    forms = tuple(Forms(*map(form_of, part)) for part in parts)

    def rows(trees: Sequence[Tree]) -> np.ndarray:
        length = max(form_of(tree).size for tree in trees)
        return np.stack([ravel(tree, length) for tree in trees])

    params, opt_state = map(rows, zip(*parts, strict=True))
    return Stacked(params, opt_state, forms)


def merge(stacked: Stacked) -> SyncState:
    whole = SyncState({}, {})
    rows = zip(stacked.forms, stacked.params, stacked.opt_state, strict=True)
    for forms, params, opt_state in rows:
        whole.params.update(unravel(forms.params, params))
        whole.opt_state.update(unravel(forms.opt_state, opt_state))
    return whole


def form_of(tree: Tree) -> Form:
    leaves, treedef = jax.tree.flatten(tree)
    return Form(treedef, tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves))


def ravel(tree: Tree, length: int, dtype: DTypeLike = jnp.float32) -> Array:
    """Returns the numbers of the tree with zeros after them, (length,); NumPy's if all are."""
    leaves = jax.tree.leaves(tree)
    numpy: ModuleType = jnp if any(isinstance(leaf, jax.Array) for leaf in leaves) else np
    flat = [leaf.reshape(-1).astype(dtype) for leaf in leaves]
    return numpy.concatenate([*flat, numpy.zeros(length - sum(map(len, flat)), dtype)])


def unravel(form: Form, flat: Array) -> Tree:
    """Returns the tree that `flat` begins with, of NumPy arrays if `flat` is one."""
    numpy: ModuleType = jnp if isinstance(flat, jax.Array) else np
    # A split's transpose is one concatenation; that of slices would be a sum of padded vectors.
    parts = numpy.split(flat, np.cumsum([leaf.size for leaf in form.leaves]))
    leaves = [
        part.reshape(leaf.shape).astype(leaf.dtype)
        for part, leaf in zip(parts, form.leaves, strict=False)  # the rest is padding
    ]
    return jax.tree.unflatten(form.tree, leaves)
