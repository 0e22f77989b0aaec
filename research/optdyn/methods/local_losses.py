"""Local parallelism (arXiv 2012.03837; the same family as 2010.04116, interlocking).

    h_{j+1} = f_j(theta_j, h_j)                                      j = 0, ..., K-1
    L_ab = loss(head_b(h_b)),   h_b = f_{b-1} o ... o f_a (h_a)      h_a a constant
    grad theta_j = sum over the groups (a, b) with a <= j < b of d L_ab / d theta_j

f_j: the K trunk blocks, all of the model but its last; h_0: the input. Groups of one block are
greedy, one group of all is backpropagation, and with overlapping groups a block learns from heads
further on. head_K is the model's last block; with shared heads every head is.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp

from optdyn.core import Batch, Params
from optdyn.problem.costs import Groups
from optdyn.problem.models import Blocks, base
from optdyn.problem.problem import SEED, Problem

LocalGradients = Callable[[Params, jax.Array, Batch], tuple[Params, jax.Array, jax.Array]]

VARIANTS = ("greedy", "overlapping", "chunked", "backprop")


def groups(variant: str, blocks: int, window: int, chunks: int) -> Groups:
    """Returns the groups over `blocks` trunk blocks. Raises `ValueError`.

    `window` is the size of overlapping groups, `chunks` the number of chunked ones, whose sizes
    differ by at most one block.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r}: one of {', '.join(VARIANTS)}")
    if blocks < 1:
        raise ValueError("local parallelism: needs a model with a block before its last")
    if variant == "overlapping" and not 1 <= window <= blocks:
        raise ValueError(f"window {window}: 1 to {blocks}, the blocks before the last")
    if variant == "chunked" and not 1 <= chunks <= blocks:
        raise ValueError(f"chunks {chunks}: 1 to {blocks}, the blocks before the last")
    if variant == "overlapping":
        return tuple((a, a + window) for a in range(blocks - window + 1))
    parts = {"greedy": blocks, "chunked": chunks, "backprop": 1}[variant]
    return tuple(pairwise(blocks * i // parts for i in range(parts + 1)))


def heads(blocks: Blocks, groups: Groups, shared: bool) -> tuple[str, ...]:
    """Returns the names of the blocks that need an auxiliary head."""
    return () if shared else tuple(blocks[b - 1][0] for _, b in groups if b < len(blocks) - 1)


def gradients(problem: Problem, groups: Groups, shared: bool = False) -> LocalGradients:
    """Returns `(params, h_a of the first group, batch) -> (grads, h_b of the last, its L_ab)`.

    `grads` has the keys of `params` that the groups train.
    """
    names = [name for name, _ in problem.blocks]
    last, module = problem.blocks[-1]

    def loss(params: Params, h: jax.Array, batch: Batch) -> jax.Array:
        outputs = base.apply(((last, module),), {last: params}, h, batch.get(SEED))
        return jnp.mean(problem.losses(outputs, batch))

    def gradient(params: Params, h: jax.Array, batch: Batch) -> tuple:
        grads: Params = {}
        back: dict[int, Callable] = {}  # of block j: from d L / d h_{j+1} to d L / d (theta_j, h_j)

        def add(name: str, term: Params) -> None:
            grads[name] = jax.tree.map(jnp.add, grads[name], term) if name in grads else term

        ahead = groups[0][0]
        for a, b in groups:
            for j in range(ahead, b):  # forward once, however many groups the block is in
                block = partial(base.apply, problem.blocks[j : j + 1], seeds=batch.get(SEED))
                h, back[j] = jax.vjp(block, {names[j]: params[names[j]]}, h)
            ahead = b
            head = last if shared or b == len(names) - 1 else base.head_of(names[b - 1])
            value, (term, delta) = jax.value_and_grad(loss, (0, 1))(params[head], h, batch)
            add(head, term)
            for j in reversed(range(a, b)):  # and no further back: h_a is a constant
                term, delta = back[j](delta)
                add(names[j], term[names[j]])
        return grads, h, value

    return gradient
