"""A rule, put together of the pieces of its methods; what none replaces is plain SGD's."""

from collections.abc import Mapping
from functools import partial

import optax

from optdyn import core
from optdyn.core import Gradient, Rule, Update
from optdyn.methods.metered import metered
from optdyn.methods.method import Methods
from optdyn.methods.sync import sync
from optdyn.problem.problem import Problem


def compose(
    methods: Methods,
    problem: Problem,
    optimizer: optax.GradientTransformationExtraArgs,
    slots: int,
    axis: str | None,
    parts: int = 1,
    real: bool = False,
    meter: bool = False,
    race: bool = False,
) -> Rule:
    """The rule of one device, put together of the methods' pieces and plain SGD's.

    `axis`: the devices that share its batch, if there are others, `real` or simulated. `parts`: of
    its part of the batch, one after the other. With `meter` its step takes a pair of batches and
    says what the momentum meter asks for. In a `race` the batch of an update may be the `Message`
    of a worker.
    """
    gradient, update = pieces(methods, problem, optimizer, parts)
    servers = methods.servers(problem)
    if axis and not methods.reduces_itself:
        gradient = core.averaged(gradient, axis, real)
    if race:
        gradient = core.received(gradient)

    one = partial(reading, methods, slots=slots, servers=servers)
    rule = one(gradient, update)
    if meter:
        rule = metered(one, gradient, update, methods.shared)
    if methods.mix:
        rule = methods.mix.mix(rule, (axis or "") if real else None)
    return rule


def reading(
    methods: Methods,
    gradient: Gradient,
    update: Update,
    slots: int,
    servers: Mapping[str, int] | None = None,
) -> Rule:
    """The rule of whoever shares one set of parameters: the methods' piece, or plain SGD's."""
    if methods.read:
        return methods.read.read(gradient, update, slots, servers)
    return sync(gradient, update)


def pieces(
    methods: Methods,
    problem: Problem,
    optimizer: optax.GradientTransformationExtraArgs,
    parts: int = 1,
) -> tuple[Gradient, Update]:
    """The gradient of one device's part of the batch as the methods take it, and the update."""
    own = methods.gradient
    gradient = own.gradient(problem) if own else core.whole(problem.loss, parts)
    update = core.by_block if methods.servers(problem) else core.together
    return gradient, update(optimizer)
