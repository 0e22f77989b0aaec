"""The pieces of Omnivore's hardware model, measured on this machine (`launch.profile`).

Hadjis et al., "Omnivore" (arXiv 1606.04487), cut a network in two phases: first the convolutions
(most operations, few parameters), then the fully connected (FC) part.

    T_conv_compute(1)   first phase on a batch: forward, and back from the gradient handed to it
    T_fc                last phase: forward, loss, and back to the activations handed to it
    T_conv_network(1),  the parameters of a phase there and back over the config's network; where
    T_fc_network        there are k devices, an all-reduce among them over k, as it grows with k

Computing includes the gathering of the batch and the optimizer's step. Activations on their way to
a merged server are not counted.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec as P

from optdyn import optimizers
from optdyn.base.errors import Join
from optdyn.base.trees import Array, Examples, Hyper, Tree, bytes_of
from optdyn.clock.network import round_trip
from optdyn.core import Event, Info, all_reduce, single_optimizer
from optdyn.devices import layout
from optdyn.devices.first_process import from_first
from optdyn.experiment import Config, refuse_first
from optdyn.methods.sync import cut, merged
from optdyn.problem.data.order import DataBlock, streamed
from optdyn.problem.models import base
from optdyn.problem.problem import Params, Problem, batches
from optdyn.train import program, trainer

ROUNDS = 15
SECONDS = 0.1  # of one timing
BATCHES = 16  # different ones, in turn
COMPUTING = {"conv": "conv_compute", "fc": "fc"}  # keys of config.cluster.pieces, by phase

# (parameters, batch, input of the other phase) -> (gradients, output to the other phase)
Phase = Callable[[Params, Examples, jax.Array], tuple[Params, jax.Array]]


class Loop(NamedTuple):
    run: Callable[[int], Tree]  # so many repetitions
    exchanges: int = 1  # of the hardware model in one repetition


class MeasurementPlan(NamedTuple):
    blocks: dict[str, list[str]]  # names, of the phases `conv` and `fc`
    loops: dict[str, Loop]  # of the keys of config.cluster.pieces that are measured
    known: dict[str, float]  # seconds of the other keys


def first_phase(names: Sequence[str], fresh: Sequence[str]) -> int:
    """Returns the number of a model's blocks in the first phase. Raises as `cut`.

    The last phase is `fresh`, the blocks of the merged server; without any, all blocks after the
    last one called conv...; without any of those, there is none.
    """
    convolutions = [i for i, name in enumerate(names) if name.startswith("conv")]
    return convolutions[-1] + 1 if convolutions and not fresh else cut(names, fresh)


def phases(problem: Problem, first: int) -> dict[str, Phase]:
    """Returns `conv` of the first blocks and `fc` of the others, which make the loss's gradient.

    `conv` passes activations to `fc`, and gets the loss's gradient by them. It has the loss if
    there is no `fc`.
    """
    pieces = merged(problem, first)

    def conv(params: Params, batch: Examples, cotangent: jax.Array) -> tuple[Params, jax.Array]:
        h, back = pieces.front(params, batch)
        return back(cotangent), h

    def fc(params: Params, batch: Examples, h: jax.Array) -> tuple[Params, jax.Array]:
        return pieces.serve(params, h, batch)[1:]

    def uncut(params: Params, batch: Examples, nothing: jax.Array) -> tuple[Params, jax.Array]:
        return jax.grad(problem.loss)(params, batch), nothing

    return {"conv": conv, "fc": fc} if problem.blocks[first:] else {"conv": uncut}


def prepare(config: Config) -> MeasurementPlan:
    """Returns the loops of a config's phases and messages. Raises as `trainer.prepare`."""
    methods = config.methods
    without = "pieces" not in methods.outermost.cluster
    refuse_first(config, [Join("method.name", without, "does not have these pieces")])
    run = trainer.prepare(config)
    problem = run.program.problem
    names = [name for name, _ in problem.blocks]
    first = first_phase(names, methods.get("fresh", ()))
    blocks = {"conv": names[:first], "fc": names[first:]}
    block = _examples(run)
    # Activations as well as their gradient: numbers do not change how long a product takes.
    passed = jnp.ones(())
    if blocks["fc"]:
        batch = jax.eval_shape(problem.batch, block.examples, block.batches(0, 1)[0])
        front = partial(base.apply, problem.blocks[:first])
        h = jax.eval_shape(front, run.params, jax.eval_shape(problem.input, batch))
        passed = jnp.ones(h.shape, h.dtype)

    loops, known = dict[str, Loop](), dict.fromkeys(vars(config.cluster.pieces), 0.0)
    for name, phase in phases(problem, first).items():
        params, network = {block: run.params[block] for block in blocks[name]}, f"{name}_network"
        loops[COMPUTING[name]] = updates(run, phase, params, block, passed)
        if jax.device_count() > 1:
            loops[network] = all_reduces(params)
        known[network] = round_trip(config.cluster, bytes_of(params))
    return MeasurementPlan(blocks, loops, {key: s for key, s in known.items() if key not in loops})


def _examples(run: trainer.Run) -> DataBlock:
    def put(examples_of: Callable[[int], Examples]) -> Examples:
        return jax.tree.map(jnp.asarray, examples_of(0))

    feed = streamed(run.data.train, put, 1, run.config.batch_size, BATCHES)
    return feed(0, partial(batches, run.config, run.examples))


def measure(loops: Mapping[str, Loop], rounds: int = ROUNDS) -> dict[str, np.ndarray]:
    """Returns the seconds of one exchange of each loop, (rounds,); a round times all in turn."""
    timers = [_timer(loop) for loop in loops.values()]
    seconds = np.array([[timer() for timer in timers] for _ in range(rounds)])
    return dict(zip(loops, seconds.T, strict=True))


def _timer(loop: Loop) -> Callable[[], float]:
    """Returns a timer of one exchange, from as many repetitions as take `SECONDS`."""

    def once(n: int) -> float:
        multihost_utils.sync_global_devices("timer")
        start = time.perf_counter()
        jax.block_until_ready(loop.run(n))
        return (time.perf_counter() - start) / n

    once(1)  # compiles
    n = 1
    for _ in range(2):  # a call of one repetition takes longer
        n = from_first(max(int(SECONDS / once(n)), 1))
    return lambda: once(n) / loop.exchanges


def updates(
    run: trainer.Run, phase: Phase, params: Params, block: DataBlock, passed: jax.Array
) -> Loop:
    """Returns a loop of a phase's updates, as the trainer's, but for steps of length 0."""
    config, problem = run.config, run.program.problem
    options, hypers = optimizers.options(config, config.methods.groups), program.hyper_names(config)
    chain = optimizers.chain(config)
    optimizer = optimizers.optimizer(config.optimizer.name, hypers, options, chain)
    hyper = dict.fromkeys(hypers, jnp.float32(0))
    data = block.examples, block.batches(0, block.stop)

    @jax.jit
    def loop(
        params: Params, data: tuple[Examples, Array], passed: jax.Array, hyper: Hyper, n: int
    ) -> Tree:
        examples, indices = data
        event = Event((), hyper, jnp.int32(0))

        def body(i: jax.Array, carry: Tree) -> Tree:
            params, opt_state, _ = carry
            batch = problem.batch(examples, indices[i % len(indices)])
            grads, back = phase(params, batch, passed)
            # The phase's output is carried, or the compiler would not compute it.
            update = single_optimizer(optimizer)
            return *update.apply(grads, opt_state, params, event, params), back

        return jax.lax.fori_loop(0, n, body, (params, optimizer.init(params), passed))

    return Loop(lambda n: loop(params, data, passed, hyper, n))


def all_reduces(params: Params) -> Loop:
    """Returns a loop of means over all k devices, each one message, for k exchanges."""
    mesh = layout.mesh(("data",), (jax.device_count(),))

    def loop(tree: Params, *rest: Tree) -> tuple[Params, Info]:
        def mean(_: jax.Array, tree: Params) -> Params:
            return jax.tree.map(lambda leaf: leaf / mesh.size, all_reduce(tree, "data"))

        return jax.lax.fori_loop(0, rest[-1], mean, tree), {"loss": jnp.zeros(())}

    sharded = layout.shard_map(loop, mesh, P(), P())
    state = sharded.put_state(params)

    def repeat(n: int) -> Params:
        nonlocal state  # donated
        state, _ = sharded.advance(state, {}, {}, np.int32(0), n)
        return state

    return Loop(repeat, mesh.size)


def flags(pieces: Mapping[str, float]) -> list[str]:
    return [f"--config.cluster.pieces.{name}={seconds:.4g}" for name, seconds in pieces.items()]
