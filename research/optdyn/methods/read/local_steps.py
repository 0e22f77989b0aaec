"""Local steps of a worker with parameters of its own, in a simulated run and in a race.

    w <- w - gamma grad f(w)      by an optimizer of its own

In a race a worker takes all steps up to its next exchange by itself, and sends where it is then.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
from jax import lax

from optdyn.base.errors import Join
from optdyn.base.trees import Hyper, Tree
from optdyn.core import Array, Batch, Event, Gradient, Params, Update
from optdyn.methods.read import groups
from optdyn.methods.setup import Setup


class LocalResult(NamedTuple):
    """The message of a race's worker that has taken local steps."""

    loss: jax.Array  # of each, or of the last
    params: Params
    opt_state: Tree
    before: Tree = ()  # where the last step began, for methods that ask for it


def local_step(gradient: Gradient, update: Update) -> Callable[..., LocalResult]:
    """(w_i, state of its optimizer, event, batch) -> after a local step.

    Or, in place of the batch, what the worker says that has taken it by itself.
    """

    def step(params: Params, opt_state: Tree, event: Event, batch: Tree) -> LocalResult:
        if isinstance(batch, LocalResult):
            return batch
        loss, grads = gradient(params, event, batch)
        return LocalResult(loss, *update.apply(grads, opt_state, params, event, params), params)

    return step


def local_steps(
    gradient: Gradient, update: Update, before: bool = False
) -> Callable[..., LocalResult]:
    """A race's worker: it takes one local step for each of the batches that it is given.

    With `before` its message also has the parameters before the last step: as much again to send.
    """
    step = local_step(gradient, update)

    def work(given: Tree, hyper: Hyper, batch: Callable[..., Batch], chosen: Array) -> LocalResult:
        def one(own: Tree, numbers: Tree) -> tuple[Tree, jax.Array]:
            after = step(*own[:2], Event((), hyper), batch(numbers))
            return tuple(after[1:]), after.loss

        params, opt_state = given
        after, losses = lax.scan(one, (params, opt_state, params), chosen)
        return LocalResult(losses, *(after if before else after[:2]))

    return work


def races(setup: Setup) -> Iterator[Join]:
    """Local steps do not depend on what their worker cannot know."""
    yield from groups.races("", setup)
    key, optimizer = "cluster.service.name", setup.optimizer
    changing = optimizer.schedule != "constant" or optimizer.warmup_steps
    said = "config.optimizer.schedule must be 'constant', without warmup_steps, for workers that "
    yield Join(key, changing, f"{said}take local steps do not know the number of an update")
    stale = "staleness_rate" in optimizer.chain
    yield Join(key, stale, "config.optimizer.chain: local steps know no staleness")
    said = "config.probes.momentum must be False, of local steps unseen"
    yield Join(key, setup.probes.momentum, said)
