"""The seconds that each real worker computes for an update, without communication."""

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


def measure(problem: Problem, part: Part, mesh: Mesh) -> Callable[..., np.ndarray]:
    """Returns `(state, examples, events, indices, n) -> (workers,)`, seconds an update.

    They are the mean over the first `n` events at the state's parameters, the same on all
    processes, which begin together, as they share cores in training too.
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

        nothing: Tree = jnp.float32(0), {}  # a loss, and no state
        zeros = nothing, jax.tree.map(jnp.zeros_like, params)
        return jax.lax.fori_loop(0, n, body, zeros)

    def run(state: State, examples: Examples, events: Event, indices: Array, n: int) -> np.ndarray:
        seconds, parts = np.zeros(mesh.size), np.split(indices, mesh.size, axis=1)
        for worker, device in enumerate(mesh.devices.flat):
            if device.process_index != jax.process_index():
                continue
            copies = _on(device, (state.params, examples))
            rest = jax.device_put((events, parts[worker]), device)
            jax.block_until_ready(loop(*copies, *rest, 0, worker))  # compiles
            multihost_utils.sync_global_devices("measure")
            started = time.perf_counter()
            jax.block_until_ready(loop(*copies, *rest, n, worker))
            seconds[worker] = (time.perf_counter() - started) / n
        if jax.process_count() == 1:
            return seconds
        return np.asarray(multihost_utils.process_allgather(seconds)).sum(axis=0)

    return run


def _on(device: jax.Device, tree: Tree) -> Tree:
    def local(leaf: jax.Array) -> jax.Array:
        return next(shard.data for shard in leaf.addressable_shards if shard.device == device)

    return jax.tree.map(local, tree)
