"""Backprop through stages in micro-batches (GPipe, arXiv 1811.06965).

    stage j takes micro-batch m at tick m + j, forward            M + S - 1 ticks
    the same ticks in reverse, backward                           L = 1/M sum_m L_m

The backward pipeline is the derivative of the forward one: that of a transfer to the next stage is
the transfer back. As in the paper, a stage keeps of each micro-batch what it received, and computes
the rest again on the way back.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from optdyn.base.trees import Array, Examples, Tree


def gradient(
    programs: Sequence[Callable[..., tuple[Array, Array]]],
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """`fn(params, h, examples, own) -> (loss, its gradient in params)`, along an axis `stage`.

    `programs[j](params, h, examples, own) -> (h, loss)` is what stage j does with the examples that
    `own` numbers: h is what stage j - 1 sent, and then what is sent to j + 1; the loss is zero but
    in the last stage. `own` is (M, B / M). `h` gives the shape that travels. Each stage is given
    the gradient in the parameters that it holds itself, and its own loss.
    """
    count = len(programs)
    forward = [(j, j + 1) for j in range(count - 1)]

    def idle(params: jax.Array, h: jax.Array, *_: Tree) -> tuple[jax.Array, jax.Array]:
        return h, jnp.float32(0)

    def total(params: jax.Array, h: jax.Array, examples: Examples, own: jax.Array) -> jax.Array:
        stage, micro_batches = lax.axis_index("stage"), len(own)

        @partial(jax.checkpoint, prevent_cse=False)  # a loop's body and its derivative are apart
        def work(params: jax.Array, h: jax.Array, tick: jax.Array) -> tuple[jax.Array, jax.Array]:
            m = tick - stage
            which = jnp.where((m >= 0) & (m < micro_batches), stage, count)
            at = jnp.clip(m, 0, micro_batches - 1)
            return lax.switch(which, [*programs, idle], params, h, examples, own[at])

        def step(h: jax.Array, tick: jax.Array) -> tuple[jax.Array, jax.Array]:
            h, loss = work(params, h, tick)
            return lax.ppermute(h, "stage", forward), loss

        _, losses = lax.scan(step, h, jnp.arange(micro_batches + count - 1))
        return jnp.sum(losses) / micro_batches

    return jax.value_and_grad(total)
