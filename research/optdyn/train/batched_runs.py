"""Runs that share a compiled program: each in a thread (`cli/sweep.py`), or P as one program.

    (x^1, ..., x^P)_{t+1} = vmap(step)((x^1, ..., x^P)_t, their events, their batches)

As one program sums may be in another order, so updates round differently, by some 1e-7 of a
parameter, which training amplifies. In threads every float is that of `trainer.train`.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Condition
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base import lookup
from optdyn.base.progress import Watch
from optdyn.base.trees import Json, Tree
from optdyn.core import State
from optdyn.devices.layout import Advance
from optdyn.experiment import Config
from optdyn.problem import shared_data
from optdyn.problem.models import OwnModel
from optdyn.problem.problem import Examples
from optdyn.train import loop, program, trainer
from optdyn.train.loop import Chunk
from optdyn.train.program import CHUNK, Program
from optdyn.train.run import Run

LANES = 64  # most runs of one program
SECONDS, ROUNDS = 0.3, 3  # of timed updates; repetitions, of which the fastest counts
COMPARED = 16  # updates after which the parameters in threads and in lanes are compared
TINY = 1e-30
# Keys that are arguments of the program (TRACED), or that it does not depend on (UNUSED).
TRACED: Mapping[str, Sequence[str]] = {
    "model": ("noise",),
    "data": ("replacement", "dirichlet"),
    "evaluation": ("decay", "batches"),
    "optimizer": (
        *("learning_rate", "momentum", "schedule", "schedule_options"),
        *("warmup_steps", "decay_steps", "decay_rate"),
    ),
}
UNUSED = ("code", "seed", "steps", "log_every", "checkpoint_every", "init_from")


class Lane(NamedTuple):
    states: State  # of all P runs of the program, leaves (P, ...)
    number: int


class Rates(NamedTuple):
    """Updates a second of all runs together, and the difference of their parameters."""

    threads: float
    vmap: float
    difference: float  # the largest after `updates`, over the largest parameter of its array
    updates: int


def compilation(config: Config) -> Hashable:
    """Returns a key, equal for configs that one compilation (one a `Run.padded_share`) serves."""
    defaults = Config()
    plain = {name: getattr(defaults, name) for name in (*UNUSED, "cluster", "tune")}
    for part, names in TRACED.items():
        value = getattr(config, part)
        default = type(value)()
        plain[part] = value.with_(
            **{name: getattr(default, name) for name in names if name in value.field_table()}
        )
    devices = () if config.methods.simple else config.methods.devices(config)
    ring = config.cluster.service.name == "geometric"  # of past versions, longer than one a group
    parts = program.workers_of(config) if isinstance(config.model, OwnModel) else 0  # of a norm
    return config.with_(plain), devices, ring, parts


def is_batched(config: Config) -> bool:
    """Returns whether the run can be a lane: one device, timeline drawn before the first update."""
    methods, data = config.methods, config.data
    follows_log = methods.timeline_depends_on_log(config) or config.probes.momentum
    return is_one_program(config) and not (follows_log or data.streaming)


def is_one_program(config: Config) -> bool:
    """Returns whether the loop over updates is one compiled program of one device."""
    on_host = config.methods.get("snapshots", "") == "host"
    return not (config.parallel.api or config.replicas.count or on_host)


@lookup.files_read_once()
def train(
    runs: Sequence[Run], workdirs: Sequence[Path], lanes: int, watches: Sequence[Watch]
) -> list[Json]:
    """Trains the runs, at most `lanes` in one program, as `trainer.train`; returns the summaries.

    Lanes beyond the runs repeat some, so that floats do not depend on how many runs there are.
    """
    advance, program = _joint(runs[0])
    trainings = [
        trainer.training(run._replace(program=program), workdir, watch)
        for run, workdir, watch in zip(_same_share(runs), workdirs, watches, strict=True)
    ]
    with contextlib.ExitStack() as stack:
        for training in trainings:
            stack.enter_context(contextlib.closing(training))
        latest = [loop.next_or_result(training) for training in trainings]
        chunks = {i: chunk for i, chunk in enumerate(latest) if isinstance(chunk, Chunk)}
        run_of_lane = [i for _ in range(lanes) for i in chunks][:lanes]
        lane_of_run = {i: lane for lane, i in enumerate(chunks)}
        if chunks:
            states = _stack([chunks[i].state for i in run_of_lane])
            examples = _examples(runs[0], [chunks[i].examples for i in run_of_lane])
        length = 1
        while chunks:
            started, n = time.monotonic(), min(length, *(chunk.n for chunk in chunks.values()))
            inputs = {i: chunk.inputs(n) for i, chunk in chunks.items()}
            spare = next(iter(inputs.values()))
            of_lanes = _stack_numpy([inputs.get(i, spare) for i in run_of_lane])
            states, infos = advance(states, examples, *of_lanes, n)
            logged = {name: np.asarray(leaf)[:, :n] for name, leaf in infos.items()}
            length = loop.next_length(length, n, time.monotonic() - started)
            for i, chunk in chunks.items():
                chunk.state = Lane(states, lane_of_run[i])
                chunk.infos = {name: leaf[lane_of_run[i]] for name, leaf in logged.items()}
                latest[i] = loop.next_or_result(trainings[i])
            chunks = {i: chunk for i, chunk in enumerate(latest) if isinstance(chunk, Chunk)}
    return [summary for summary in latest if not isinstance(summary, Chunk)]


def lanes_of(runs: Sequence[Run], most: int, budget: float) -> int:
    """Returns how many runs are trained at a time, in even shares, within `budget` bytes."""
    fitting = int(budget // max(memory(runs[0]), 1))
    lanes = min(len(runs), most, max(fitting, 1))
    lanes = -(-len(runs) // -(-len(runs) // lanes))
    advance, _ = _joint(runs[0])
    while lanes > 1 and _bytes(advance, *_advance_arguments(runs, lanes, 0)) > budget:
        lanes = -(-lanes // 2)
    return lanes


def memory(run: Run) -> int:
    """Returns the bytes that a run needs besides the examples, by XLA's analysis of its program."""
    sets = shared_data.put_on_devices(run.data, run.program.layout.put_examples, run.config)
    variables = jax.eval_shape(run.variables, run.params, run.state)
    evaluation = _bytes(run.program.evaluate, variables, sets.test_evaluated[0])
    return _bytes(run.program.advance, *loop.advance_arguments(run, 0)) + evaluation


class MemoryBudget:
    """Memory that threads share: each waits until its bytes fit, or until no other has any."""

    def __init__(self, size: float):
        self._size, self._taken, self._changed = size, 0.0, Condition()

    @contextlib.contextmanager
    def take(self, size: float) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._size)
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify_all()


def measure(runs: Sequence[Run], lanes: int, threads: int) -> Rates:
    """Times the first updates of some of the runs in threads and in lanes; the runs stay as is."""
    sample, program = runs[:threads], runs[0].program
    joint, _ = _joint(runs[0])
    most = 2 ** (min(CHUNK, *(run.config.steps for run in runs)).bit_length() - 1)

    def in_threads(updates: int) -> tuple[float, State]:
        n = min(updates, most)
        arguments = [loop.advance_arguments(run, n) for run in sample]
        started = time.monotonic()
        states = list(pool.map(lambda one: _repeat(program.advance, one, updates // n), arguments))
        return time.monotonic() - started, states[0]

    def in_lanes(updates: int) -> tuple[float, State]:
        n = min(updates, most)
        arguments = _advance_arguments(runs, lanes, n)
        started = time.monotonic()
        states = _repeat(joint, arguments, updates // n)
        return time.monotonic() - started, _state_of(Lane(states, 0))

    ways = (in_threads, in_lanes)
    with ThreadPoolExecutor(len(sample)) as pool:
        updates = min(COMPARED, most)
        params = [way(updates)[1].params for way in ways]  # compiles, too
        counts = [_timed_updates(way) for way in ways]
        rounds = [[way(n)[0] for way, n in zip(ways, counts, strict=True)] for _ in range(ROUNDS)]
    threaded, joined = (np.array(counts) * (len(sample), lanes) / np.min(rounds, axis=0)).tolist()
    return Rates(threaded, joined, _difference(*params), updates)


def _timed_updates(way: Callable[[int], tuple[float, State]]) -> int:
    updates = 1
    while way(updates)[0] < SECONDS:
        updates *= 2
    return updates


def _repeat(advance: Advance, arguments: tuple[Tree, ...], times: int) -> State:
    state, *rest = arguments
    for _ in range(times):
        state, infos = advance(state, *rest)
        np.asarray(infos["loss"])
    return state


def _difference(one: Tree, other: Tree) -> float:
    differences = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), one, other)
    scales = jax.tree.map(lambda a: jnp.maximum(jnp.max(jnp.abs(a)), TINY), one)
    return float(max(jax.tree.leaves(jax.tree.map(jnp.divide, differences, scales))))


def _joint(run: Run) -> tuple[Advance, Program]:
    return _vmapped(run.program, shared_data.is_drawn(run.config))


@lru_cache(maxsize=4)
def _vmapped(program: Program, drawn: bool) -> tuple[Advance, Program]:
    axes = (0, 0 if drawn else None, 0, 0, None)
    advance = jax.jit(jax.vmap(program.advance, axes), donate_argnums=0)
    layout = program.layout._replace(put_state=lambda state: state, get=_state_of)
    return advance, replace(program, layout=layout)


def _state_of(state: Tree) -> State:
    return _row(state.states, state.number) if isinstance(state, Lane) else state


@jax.jit
def _row(states: State, number: int) -> State:
    return jax.tree.map(lambda leaf: leaf[number], states)


@jax.jit
def _stack(trees: Sequence[Tree]) -> Tree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _stack_numpy(trees: Sequence[Tree]) -> Tree:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _advance_arguments(runs: Sequence[Run], lanes: int, n: int) -> tuple[Tree, ...]:
    of_lanes = itertools.islice(itertools.cycle(_same_share(runs)), lanes)
    arguments = [loop.advance_arguments(run, n) for run in of_lanes]
    states, examples, *inputs, _ = zip(*arguments, strict=True)
    return _stack(states), _examples(runs[0], examples), *map(_stack_numpy, inputs), n


def _same_share(runs: Sequence[Run]) -> list[Run]:
    """Returns the runs with room for the largest share of all: batches have one shape."""
    largest = max(run.padded_share for run in runs)
    return [run._replace(padded_share=largest) for run in runs]


def _examples(run: Run, sets: Sequence[Examples]) -> Examples:
    return _stack(sets) if shared_data.is_drawn(run.config) else sets[0]


def _bytes(function: Tree, *arguments: Tree) -> int:
    found = function.lower(*arguments).compile().memory_analysis()
    return found.output_size_in_bytes + found.temp_size_in_bytes if found else 0
