"""A rule, put together of the pieces of its methods and those of plain SGD.

The momentum meter (`implicit_momentum/moments.py`) needs three values of an update, in `SKETCH`
numbers each, which `metered` adds to its info:

    displacement   x_{t+1} - x_t              of this device's update, before nodes meet; where
                                              groups have parameters each, of what is evaluated
    raw step       -g_t                       the gradient that arrived, before the optimizer
    gradient       G_t at x_t                 of a second mini-batch of the same conditional mean
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optdyn import core
from optdyn.base.trees import Array, Tree
from optdyn.core import Batch, Event, Gradient, Info, Params, Rule, Update
from optdyn.methods.kept import (
    NOTHING_KEPT,
    Keeping,
    averaging,
    carrying,
    carrying_gradient,
    meeting,
    starting,
)
from optdyn.methods.messages import AS_ONE_MESSAGE, SIMULATED, sharded
from optdyn.methods.method import MethodStack, Servers
from optdyn.methods.sync import sync
from optdyn.problem.problem import Problem

SKETCH = 2048  # q, or the number of parameters if that is smaller
METERED = ("displacement", "raw_step", "gradient")


def compose(
    methods: MethodStack,
    problem: Problem,
    optimizer: optax.GradientTransformationExtraArgs,
    slots: int,
    axis: str | None,
    accumulation: int = 1,
    real: bool = False,
    meter: bool = False,
    race: bool = False,
    keeping: Keeping = NOTHING_KEPT,
) -> Rule:
    """Returns the rule of one device.

    `axis` is that of devices that share its batch, `real` or simulated; `accumulation`: parts of a
    device's batch, one after the other. With `meter` its step takes a pair of batches. In a `race`
    the batch of an update may be the `Message` of a worker. `keeping` is what it keeps besides.
    """
    gradient, update = pieces(methods, problem, optimizer, accumulation, keeping.carries)
    servers = methods.servers(problem)
    if axis and not methods.reduces_itself:
        gradient = core.averaged_gradient(gradient, axis, real)
    if race:
        gradient = core.gradient_or_message(gradient)

    one = partial(reading, methods, slots=slots, servers=servers)
    rule = one(gradient, update)
    if meter:
        rule = metered(one, gradient, update, methods.shared)
    workers = methods.groups if methods.read and methods.read.has_worker_params else 0
    if keeping.carries:
        rule = carrying(rule, axis, workers)
    if methods.mix:
        collectives = (sharded(axis) if axis else AS_ONE_MESSAGE) if real else SIMULATED
        rule = methods.mix.mix(rule, collectives)
    if methods.mix and keeping.carries and keeping.meets:
        rule = meeting(rule)
    if keeping.carries:
        rule = starting(rule, workers)
    return averaging(rule, keeping.average, keeping.last) if keeping.average else rule


def reading(
    methods: MethodStack,
    gradient: Gradient,
    update: Update,
    slots: int,
    servers: Servers = None,
) -> Rule:
    """Returns the rule of one set of parameters: that of the read method, or plain SGD's."""
    if methods.read:
        return methods.read.read(gradient, update, slots, servers)
    return sync(gradient, update)


def pieces(
    methods: MethodStack,
    problem: Problem,
    optimizer: optax.GradientTransformationExtraArgs,
    accumulation: int = 1,
    carries: bool = False,
) -> tuple[Gradient, Update]:
    def make(problem: Problem) -> Gradient:
        if methods.gradient:
            return methods.gradient.gradient(problem)
        return core.full_gradient(problem.objective, accumulation, problem.carries)

    gradient = carrying_gradient(make, problem) if carries else make(problem)
    update = core.per_block_optimizer if methods.servers(problem) else core.single_optimizer
    return gradient, update(optimizer)


def metered(
    make: Callable[[Gradient, Update], Rule],
    gradient: Gradient,
    update: Update,
    shared: bool = True,
) -> Rule:
    """Returns the rule that `make` makes of these, with `METERED` in its info, (q,) each.

    Its step takes a pair of batches, the update's and a second one. Of the rule's state it uses
    `params`, and `opt_state` if these parameters are `shared` by all groups.
    """

    def grads_with_sketch(params: Params, event: Event, batch: Batch) -> tuple[Tree, Params]:
        loss, grads = gradient(params, event, batch)
        return (loss, sketch(grads, params, SKETCH)), grads

    def update_with_sketch(
        grads: Params, opt_state: Tree, params: Params, *rest: Tree
    ) -> tuple[Params, Tree]:
        after, opt_state = update.apply(grads, opt_state[0], params, *rest)
        moved = jax.tree.map(jnp.subtract, after, params)
        return after, (opt_state, sketch(moved, params, SKETCH))

    rule = make(grads_with_sketch, Update(update.init, update_with_sketch) if shared else update)

    def step(state: Tree, event: Event, batches: Tree) -> tuple[Tree, Info]:
        batch, second = batches
        _, grads = gradient(state.params, event, second)
        independent = sketch(grads, state.params, SKETCH)
        # The step comes after it, and so may change a table of versions in place.
        rate = _after(event.hyper["learning_rate"], independent)
        event = event._replace(hyper={**event.hyper, "learning_rate": rate})
        opened = state._replace(opt_state=(state.opt_state, None)) if shared else state
        after, info = rule.step(opened, event, batch)
        if shared:
            opt_state, moved = after.opt_state
            after = after._replace(opt_state=opt_state)
        else:
            displacement = jax.tree.map(jnp.subtract, after.params, state.params)
            moved = sketch(displacement, state.params, SKETCH)
        loss, arrived = info["loss"]
        values = dict(zip(METERED, (moved, -arrived, independent), strict=True))
        return after, info | {"loss": loss} | values

    return Rule(rule.init, step)


def _after(value: Array, other: jax.Array) -> jax.Array:
    """Returns the float32 `value` itself, as a function of the first number of `other`.

    The bits of a float, as an integer, are below 2^31 - 2 except for some NaNs. XLA would drop a
    barrier before it decides what has to be copied.
    """
    sign = jax.lax.bitcast_convert_type(other.reshape(-1)[0], jnp.int32) < 0
    bits = jax.lax.bitcast_convert_type(jnp.asarray(value, jnp.float32), jnp.int32)
    most = jnp.int32(2**31 - 1) - sign.astype(jnp.int32)
    return jax.lax.bitcast_convert_type(jnp.minimum(bits, most), jnp.float32)


def sketch(tree: Params, like: Params, size: int) -> jax.Array:
    """Returns the count sketch, (min(size, p),) float32; leaves of `like` not in the tree are 0."""
    leaves = jax.tree.leaves_with_path(like)
    values = dict(jax.tree.leaves_with_path(tree))
    q = min(size, sum(leaf.size for _, leaf in leaves))
    total, offset = jnp.zeros(q), 0
    for path, leaf in leaves:
        if path in values:
            number = jnp.arange(leaf.size, dtype=jnp.uint32) + np.uint32(offset % 2**32)
            signed = values[path].reshape(-1).astype(jnp.float32) * _signs(number)
            rows = jnp.pad(signed, (0, -leaf.size % q)).reshape(-1, q)
            total = total + jnp.roll(rows.sum(axis=0), offset % q)
        offset += leaf.size
    return total


def _signs(i: jax.Array) -> jax.Array:
    """Returns +-1 by a hash of the number, the finalizer of MurmurHash3: nothing is stored."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        i = (i ^ (i >> shift)) * np.uint32(factor)
    return 1 - 2 * ((i >> 16 ^ i) & 1).astype(jnp.float32)
