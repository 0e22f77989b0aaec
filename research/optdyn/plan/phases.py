"""The pieces of Omnivore's hardware model, measured on this machine (`launch.profile`).

Hadjis et al., "Omnivore" (arXiv 1606.04487), cut a network in two phases: first the convolutions
(most operations, few parameters), then the fully connected (FC) part.

    T_conv_compute(1)   first phase on a batch: forward, and back from the gradient handed to it
    T_fc                last phase: forward, loss, and back to the activations handed to it
    T_conv_network(1),  the parameters of a phase there and back over the config's network; where
    T_fc_network        there are k devices, an all-reduce among them over k, as it grows with k

Computing includes the gathering of the batch and the optimizer's step. A network that is not cut is
all first phase, with the loss. Activations on their way to a merged server are not counted.
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
from optdyn.problem import problem
from optdyn.problem.data.order import DataBlock, streamed
from optdyn.problem.models import base
from optdyn.problem.problem import Params, Problem
from optdyn.train import program, trainer

ROUNDS = 15
SECONDS = 0.1  # of one timing
BATCHES = 16  # different ones, in turn
COMPUTING = {"conv": "conv_compute", "fc": "fc"}  # keys of config.cluster.pieces, by phase

# (parameters, batch, what the other phase handed over) -> (gradients, what is handed back)
Phase = Callable[[Params, Examples, jax.Array], tuple[Params, jax.Array]]


class Loop(NamedTuple):
    run: Callable[[int], Tree]  # does a thing so many times
    exchanges: int = 1  # how many of the hardware model's that thing stands for


class MeasurementPlan(NamedTuple):
    """What there is to measure of a config."""

    blocks: dict[str, list[str]]  # names, of the phases `conv` and `fc`
    loops: dict[str, Loop]  # of the keys of config.cluster.pieces for which it takes a clock
    known: dict[str, float]  # seconds, of the others


def first_phase(names: Sequence[str], fresh: Sequence[str]) -> int:
    """How many of a model's blocks are the first phase.

    The last phase is `fresh`, the blocks of the merged server; without any, all blocks after the
    last one called conv...; without any of those, there is none. Raises what `cut` raises.
    """
    convolutions = [i for i, name in enumerate(names) if name.startswith("conv")]
    return convolutions[-1] + 1 if convolutions and not fresh else cut(names, fresh)


def phases(whole: Problem, first: int) -> dict[str, Phase]:
    """`conv` of the first blocks and `fc` of the others: put together, the gradient of the loss.

    `conv` hands activations to `fc`, and gets the loss's gradient by them. Where all blocks are
    first ones, `conv` has the loss and hands nothing over.
    """
    pieces = merged(whole, first)

    def conv(params: Params, batch: Examples, cotangent: jax.Array) -> tuple[Params, jax.Array]:
        h, back = pieces.front(params, batch)
        return back(cotangent), h

    def fc(params: Params, batch: Examples, h: jax.Array) -> tuple[Params, jax.Array]:
        return pieces.serve(params, h, batch)[1:]

    def alone(params: Params, batch: Examples, nothing: jax.Array) -> tuple[Params, jax.Array]:
        return jax.grad(whole.loss)(params, batch), nothing

    return {"conv": conv, "fc": fc} if whole.blocks[first:] else {"conv": alone}


def prepare(config: Config) -> MeasurementPlan:
    """The loops of a config's first phase and last, and of their messages.

    Raises what `trainer.prepare` raises, and `ConfigError` if it has no such phases.
    """
    methods = config.methods
    without = "pieces" not in methods.outermost.cluster
    refuse_first(config, [Join("method.name", without, "does not have these pieces")])
    run = trainer.prepare(config)
    whole = run.program.problem
    names = [name for name, _ in whole.blocks]
    first = first_phase(names, methods.get("fresh", ()))
    blocks = {"conv": names[:first], "fc": names[first:]}
    block = _examples(run)
    # Activations as well as their gradient: numbers do not change how long a product takes.
    handed = jnp.ones(())
    if blocks["fc"]:
        batch = jax.eval_shape(whole.batch, block.examples, block.batches(0, 1)[0])
        front = partial(base.apply, whole.blocks[:first])
        h = jax.eval_shape(front, run.params, jax.eval_shape(whole.input, batch))
        handed = jnp.ones(h.shape, h.dtype)

    loops, known = dict[str, Loop](), dict.fromkeys(vars(config.cluster.pieces), 0.0)
    for name, phase in phases(whole, first).items():
        own, network = {block: run.params[block] for block in blocks[name]}, f"{name}_network"
        loops[COMPUTING[name]] = updates(run, phase, own, block, handed)
        if jax.device_count() > 1:
            loops[network] = all_reduces(own)
        known[network] = round_trip(config.cluster, bytes_of(own))
    return MeasurementPlan(blocks, loops, {key: s for key, s in known.items() if key not in loops})


def _examples(run: trainer.Run) -> DataBlock:
    """The first few batches, on this process's own device."""

    def put(of: Callable[[int], Examples]) -> Examples:
        return jax.tree.map(jnp.asarray, of(0))

    feed = streamed(run.data.train, put, 1, run.config.batch_size, BATCHES)
    return feed(0, partial(problem.batches, run.config, run.examples))


def measure(loops: Mapping[str, Loop], rounds: int = ROUNDS) -> dict[str, np.ndarray]:
    """Seconds of one exchange of every loop, (rounds,) each: all are timed once a round, in turn.

    Processes begin each timing together, since what they share, a core or a memory bus, they share
    in training too.
    """
    timers = [_timer(loop) for loop in loops.values()]
    taken = np.array([[once() for once in timers] for _ in range(rounds)])
    return dict(zip(loops, taken.T, strict=True))


def _timer(loop: Loop) -> Callable[[], float]:
    """Seconds of one exchange, from as many repetitions as take `SECONDS`."""

    def once(n: int) -> float:
        multihost_utils.sync_global_devices("timer")
        start = time.perf_counter()
        jax.block_until_ready(loop.run(n))
        return (time.perf_counter() - start) / n

    once(1)  # compiles
    n = 1
    for _ in range(2):  # the first is of one alone, which takes longer to call
        n = from_first(max(int(SECONDS / once(n)), 1))
    return lambda: once(n) / loop.exchanges


def updates(
    run: trainer.Run, phase: Phase, params: Params, block: DataBlock, handed: jax.Array
) -> Loop:
    """A loop of a phase's updates, as the trainer's, but for steps of length 0."""
    config, whole = run.config, run.program.problem
    options, hypers = optimizers.options(config, config.methods.groups), program.hyper_names(config)
    chain = optimizers.chain(config)
    optimizer = optimizers.optimizer(config.optimizer.name, hypers, options, chain)
    hyper = dict.fromkeys(hypers, jnp.float32(0))
    given = block.examples, block.batches(0, block.stop)

    @jax.jit
    def loop(
        params: Params, given: tuple[Examples, Array], handed: jax.Array, hyper: Hyper, n: int
    ) -> Tree:
        examples, indices = given
        event = Event((), hyper, jnp.int32(0))

        def body(i: jax.Array, carry: Tree) -> Tree:
            params, opt_state, _ = carry
            batch = whole.batch(examples, indices[i % len(indices)])
            grads, back = phase(params, batch, handed)
            # What is handed back is carried, or the compiler would leave out the making of it.
            update = single_optimizer(optimizer)
            return *update.apply(grads, opt_state, params, event, params), back

        return jax.lax.fori_loop(0, n, body, (params, optimizer.init(params), handed))

    return Loop(lambda n: loop(params, given, handed, hyper, n))


def all_reduces(params: Params) -> Loop:
    """A loop of means over all k devices, each one message, for k exchanges."""
    mesh = layout.mesh(("data",), (jax.device_count(),))

    def loop(tree: Params, *rest: Tree) -> tuple[Params, Info]:
        def mean(_: jax.Array, tree: Params) -> Params:
            return jax.tree.map(lambda leaf: leaf / mesh.size, all_reduce(tree, "data"))

        return jax.lax.fori_loop(0, rest[-1], mean, tree), {"loss": jnp.zeros(())}

    laid = layout.shard_map(loop, mesh, P(), P())
    held = laid.put_state(params)

    def repeated(n: int) -> Params:
        nonlocal held  # donated
        held, _ = laid.advance(held, {}, {}, np.int32(0), n)
        return held

    return Loop(repeated, mesh.size)


def flags(pieces: Mapping[str, float]) -> list[str]:
    """Command-line flags of a run on a cluster with these pieces."""
    return [f"--config.cluster.pieces.{name}={seconds:.4g}" for name, seconds in pieces.items()]
