"""The gradient of a merged server (arXiv 1606.04487), taken in two places.

    group    h = front(x, batch)                                  sends its activations
    server   l = back(y, h);   dl/dy,   dl/dh                     keeps dl/dy, answers dl/dh
    group    dl/dx = dl/dh dh/dx                                  sends it

x are the parameters of a model's first blocks and y those of its last, the `fresh` ones, which the
server both keeps and computes.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from optdyn.base.errors import ConfigError
from optdyn.base.trees import Tree
from optdyn.problem.models import base
from optdyn.problem.problem import Params, Problem

Back = Callable[[jax.Array], Params]  # dl/dh -> dl/dx; a pytree, which programs may return
LAST = "of a real server they must be the last of the blocks {}, and not all"


class Merged(NamedTuple):
    front: Callable[..., tuple[jax.Array, Back]]  # (x, batch) -> h, and the way back
    serve: Callable[..., tuple[jax.Array, Params, jax.Array]]  # (y, h, batch) -> l, dl/dy, dl/dh


def merged(problem: Problem, first: int) -> Merged:
    """Cut after the `first` blocks; both pieces together make the gradient of the batch's loss."""
    blocks, dense = problem.blocks[:first], problem.blocks[first:]

    def front(x: Params, batch: Tree) -> tuple[jax.Array, Back]:
        h, pull = jax.vjp(lambda own: base.apply(blocks, own, problem.input(batch)), x)
        return h, jax.tree_util.Partial(_first, pull)

    def serve(y: Params, h: jax.Array, batch: Tree) -> tuple[jax.Array, Params, jax.Array]:
        def loss(y: Params, h: jax.Array) -> jax.Array:
            return jnp.mean(problem.losses(base.apply(dense, y, h), batch))

        value, (grads, slope) = jax.value_and_grad(loss, (0, 1))(y, h)
        return value, grads, slope

    return Merged(front, serve)


def _first(pull: Callable[[jax.Array], tuple[Params]], slope: jax.Array) -> Params:
    return pull(slope)[0]


def before(names: Sequence[str], fresh: Sequence[str]) -> int:
    """How many of a model's blocks come before the fresh ones, its last; 0 if these are others."""
    first = max(len(names) - len(set(fresh)), 0)
    return first if set(names[first:]) == set(fresh) else 0


def cut(names: Sequence[str], fresh: Sequence[str]) -> int:
    """The same. Raises `ConfigError` if the fresh blocks are not the last ones, or are all."""
    if not (first := before(names, fresh)):
        said = LAST.format(", ".join(names))
        raise ConfigError(f"config.method.fresh = {tuple(fresh)!r}: {said}")
    return first
