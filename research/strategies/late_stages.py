"""The rule of pipelines that are never flushed (`stale_pipeline.py`): what a stage computes with.

Every block is read at a slot of its own (`asynchronous.py`), forward and backward alike. Without
stashing the derivatives are those of the newest parameters, at the activations of the old ones:

    h_{j+1} = stop(f_j(old, h_j)) + f_j(new, h_j) - stop(f_j(new, h_j))

Predicted parameters are where heavy ball of momentum mu would be if all gradients in between were
0, from a displacement and not from the velocity, as x_{t-1} - x_t is gamma v:

    x_t - (mu - mu^{tau+1}) / (1 - mu) (x_{t-1} - x_t)          tau updates on

Here one device computes all stages in turn; `research/parallel/never_flushed.py` has them on
devices of their own.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from optdyn.models import Blocks, base
from optdyn.problem import Problem
from optdyn.strategies.asynchronous import asynchronous
from optdyn.strategies.base import Batch, Event, Gradient, Info, Params, Strategy, Update, whole
from optdyn.strategies.method import Keys
from optdyn.strategies.snapshots import State


def through(blocks: Blocks, new: Params, old: Params, h: jax.Array) -> jax.Array:
    """What the blocks make of h with the `old` parameters, with the derivatives of the `new`."""
    for block in blocks:
        now, then = (base.apply((block,), x, h) for x in (new, old))
        h = lax.stop_gradient(then) + (now - lax.stop_gradient(now))
    return h


def distance(momentum: Any, staleness: Any) -> jax.Array:
    """How many of its last displacements heavy ball goes on in so many updates."""
    return (momentum - momentum ** (jnp.asarray(staleness) + 1)) / (1 - momentum)


def gradient_of(problem: Problem, keys: Keys) -> Gradient:
    """At what was read; by `reading`, with the derivatives of the `newest`, or further `ahead`."""
    of = whole(problem.loss)

    def late(new: Params, old: Params, batch: Batch) -> jax.Array:
        outputs = through(problem.blocks, new, old, problem.input(batch))
        return jnp.mean(problem.losses(outputs, batch))

    def gradient(params: Params, event: Event, batch: Batch) -> tuple[jax.Array, Params]:
        newest, further = event.choice.newest, event.choice.ahead
        if newest is not None:
            return jax.value_and_grad(late)(newest, params, batch)
        if further is not None:
            params = jax.tree.map(jnp.add, params, further)
        return of(params, event, batch)

    return gradient


def reading(
    gradient: Gradient, update: Update, keys: Keys, slots: int, servers: Mapping[str, int]
) -> Strategy:
    """The strategy of `asynchronous.py`, a server a block; `event.choice` is of `Stages`."""
    inner = asynchronous(gradient, update, slots, servers=servers)

    def step(state: State, event: Event, batch: Batch) -> tuple[State, Info]:
        choice = event.choice
        if keys["pipeline"] == "no_stash":
            choice = choice._replace(newest=state.params)
        if keys["pipeline"] == "predict":
            choice = choice._replace(ahead=ahead(state, event))
        return inner.step(state, event._replace(choice=choice), batch)

    def ahead(state: State, event: Event) -> Params:
        factor = distance(event.hyper["momentum"], event.staleness)
        read, before = (
            state.at({name: slots[block] for name, block in servers.items()})
            for slots in (event.choice.read, event.choice.before)
        )
        return {
            name: jax.tree.map(lambda x, old, b=b: factor[b] * (x - old), read[name], before[name])
            for name, b in servers.items()
        }

    return Strategy(inner.init, step)
