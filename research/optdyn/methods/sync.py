"""Synchronous SGD, the limit of all methods, and the gradient of a merged server.

A merged server (arXiv 1606.04487) takes the gradient in two places:

    group    h = front(x, batch)                                  sends its activations
    server   l = back(y, h);   dl/dy,   dl/dh                     keeps dl/dy, answers dl/dh
    group    dl/dx = dl/dh dh/dx                                  sends it

x are the parameters of a model's first blocks and y those of its last, the `fresh` ones, which the
server both keeps and computes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from optdyn.base.errors import ConfigError
from optdyn.base.trees import Tree
from optdyn.clock.arrivals import compute_groups
from optdyn.clock.timeline import Timeline
from optdyn.core import Batch, Event, Gradient, Info, Rule, Update
from optdyn.methods.method import ClockInputs, MergedServer, MethodStack
from optdyn.problem.models import base
from optdyn.problem.problem import SEED, Params, Problem


class SyncState(NamedTuple):
    params: Params  # x_t
    opt_state: optax.OptState

    def moved_to(self, params: Params) -> "SyncState":
        return self._replace(params=params)


def sync(gradient: Gradient, update: Update) -> Rule[SyncState]:
    """Returns the rule with one copy of the parameters; slots of events are ignored."""

    def init(params: Params) -> SyncState:
        return SyncState(params, update.init(params))

    def step(state: SyncState, event: Event, batch: Batch) -> tuple[SyncState, Info]:
        x = state.params
        loss, grads = gradient(x, event, batch)
        return SyncState(*update.apply(grads, state.opt_state, x, event, x)), {"loss": loss}

    return Rule(init, step)


@dataclass(frozen=True)
class Sync(MergedServer, name="sync"):
    """Synchronous SGD: every gradient is taken at the parameters it is applied to.

    x_{t+1} = x_t - alpha grad f(x_t)
    """

    cluster = ("pieces", "split", "overlap", "speeds", "latencies", "bandwidths")

    def clock(self, inputs: ClockInputs, methods: MethodStack) -> Timeline:
        setup = inputs.setup
        return compute_groups(
            setup.cluster,
            groups=1,
            steps=setup.steps,
            batch_size=setup.batch_size,
            update_bytes=inputs.update_bytes,
            seed=setup.seed,
            replicas=inputs.replicas,
            merged=bool(self.fresh),
        )


Back = Callable[[jax.Array], Params]  # dl/dh -> dl/dx; a pytree, which programs may return
LAST = "a merged server must have the last of the blocks {}, and not all"


class Merged(NamedTuple):
    front: Callable[..., tuple[jax.Array, Back]]  # (x, batch) -> h, and the way back
    serve: Callable[..., tuple[jax.Array, Params, jax.Array]]  # (y, h, batch) -> l, dl/dy, dl/dh


def merged(problem: Problem, first: int) -> Merged:
    """Returns the gradient of the batch's loss in two pieces, cut after the `first` blocks."""
    blocks, dense = problem.blocks[:first], problem.blocks[first:]

    def front(x: Params, batch: Tree) -> tuple[jax.Array, Back]:
        def outputs(params: Params) -> jax.Array:
            return base.apply(blocks, params, problem.input(batch), batch.get(SEED))

        h, pull = jax.vjp(outputs, x)
        return h, jax.tree_util.Partial(_first, pull)

    def serve(y: Params, h: jax.Array, batch: Tree) -> tuple[jax.Array, Params, jax.Array]:
        def loss(y: Params, h: jax.Array) -> jax.Array:
            outputs = base.apply(dense, y, h, batch.get(SEED))
            return jnp.mean(problem.losses(outputs, batch))

        value, (grads, slope) = jax.value_and_grad(loss, (0, 1))(y, h)
        return value, grads, slope

    return Merged(front, serve)


def _first(pull: Callable[[jax.Array], tuple[Params]], slope: jax.Array) -> Params:
    return pull(slope)[0]


def before(names: Sequence[str], fresh: Sequence[str]) -> int:
    """Returns how many blocks come before the fresh ones; 0 if these are not the last blocks."""
    first = max(len(names) - len(set(fresh)), 0)
    return first if set(names[first:]) == set(fresh) else 0


def cut(names: Sequence[str], fresh: Sequence[str]) -> int:
    """Returns the same. Raises `ConfigError` if fresh blocks are not the last ones, or are all."""
    if not (first := before(names, fresh)):
        reason = LAST.format(", ".join(names))
        raise ConfigError(f"config.method.fresh = {tuple(fresh)!r}: {reason}")
    return first
