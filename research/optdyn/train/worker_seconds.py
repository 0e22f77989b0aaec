"""How fast each real worker is: the seconds of its own part of an update, without communication."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from optdyn.base.trees import Array, Examples, Params, Tree
from optdyn.core import Event, State
from optdyn.methods.dynamic_batch import Part
from optdyn.problem.problem import Problem

Measure = Callable[..., np.ndarray]


def measure(problem: Problem, part: Part, mesh: Mesh) -> Measure:
    """`(state, examples, events, indices, n) ->` (workers,) seconds an update, on all processes.

    The mean over the first `n` events at the state's parameters. Processes begin together, since
    what they share, a core or a memory bus, they share in training too; devices of one process
    follow one another.
    """

    @jax.jit
    def loop(
        params: Params,
        examples: Examples,
        events: Event,
        indices: jax.Array,
        n: jax.Array,
        worker: jax.Array,
    ) -> Tree:
        def body(i: jax.Array, sums: Tree) -> Tree:
            event = jax.tree.map(lambda leaf: leaf[i], events)
            batch = problem.batch(examples, indices[i])
            return jax.tree.map(jnp.add, sums, part(params, event, batch, worker))

        nothing = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
        return jax.lax.fori_loop(0, n, body, nothing)

    def run(state: State, examples: Examples, events: Event, indices: Array, n: int) -> np.ndarray:
        seconds, parts = np.zeros(mesh.size), np.split(indices, mesh.size, axis=1)
        for worker, device in enumerate(mesh.devices.flat):
            if device.process_index != jax.process_index():
                continue
            whole = _on(device, (state.params, examples))
            rest = jax.device_put((events, parts[worker]), device)
            jax.block_until_ready(loop(*whole, *rest, 0, worker))  # compiles, and all is there
            multihost_utils.sync_global_devices("measure")
            begun = time.perf_counter()
            jax.block_until_ready(loop(*whole, *rest, n, worker))
            seconds[worker] = (time.perf_counter() - begun) / n
        if jax.process_count() == 1:
            return seconds
        return np.asarray(multihost_utils.process_allgather(seconds)).sum(axis=0)

    return run


def _on(device: jax.Device, tree: Tree) -> Tree:
    """A device's own copies of arrays that all devices hold."""

    def own(leaf: jax.Array) -> jax.Array:
        return next(shard.data for shard in leaf.addressable_shards if shard.device == device)

    return jax.tree.map(own, tree)
