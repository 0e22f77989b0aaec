"""Runs that share a compiled program, advanced together.

Each in a thread of its own (`cli/sweep.py`), or P of them as one program over an axis of runs:

    (x^1, ..., x^P)_{t+1} = vmap(step)((x^1, ..., x^P)_t, their events, their batches)

It is the same update rule, and logs, checkpoints and summaries are the trainer's own. But its sums
may be in another order: an update rounds differently, by some 1e-7 of a parameter, and what
training makes of that grows. In threads every float is that of `trainer.train`.
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
from optdyn.problem.problem import Examples
from optdyn.train import loop, trainer
from optdyn.train.loop import Chunk
from optdyn.train.program import CHUNK, Program
from optdyn.train.run import Run

LANES = 64  # runs of one program, at most
SECONDS, ROUNDS = 0.3, 3  # of updates that are timed, and how often; the fastest counts
COMPARED = 16  # updates after which the parameters of both ways are compared
TINY = 1e-30
# Fields that are arguments of the program, or none of its business.
TRACED: Mapping[str, Sequence[str]] = {
    "model": ("noise",),
    "data": ("replacement", "dirichlet"),
    "optimizer": (
        *("learning_rate", "momentum", "schedule", "schedule_options"),
        *("warmup_steps", "decay_steps", "decay_rate"),
    ),
}
UNHEEDED = ("code", "seed", "steps", "log_every", "checkpoint_every", "init_from")


class Lane(NamedTuple):
    """The state of one run among several."""

    states: State  # leaves (P, ...)
    number: int


class Rates(NamedTuple):
    """Updates a second of all runs at a time, and how far apart their parameters are then."""

    threads: float
    vmap: float
    difference: float  # over the largest parameter of its array
    updates: int  # after so many


def compilation(config: Config) -> Hashable:
    """Equal for configs that one compilation serves (seldom unequal for others that it would).

    Where shares divide the batch it takes one compilation for each value of `Run.columns`.
    """
    usual = Config()
    plain = {name: getattr(usual, name) for name in (*UNHEEDED, "cluster", "tune")}
    for part, names in TRACED.items():
        here = getattr(config, part)
        usual_of = type(here)()
        values = {n: getattr(usual_of, n) for n in names if n in here.field_table()}
        plain[part] = here.with_(**values)
    devices = () if config.methods.simple else config.methods.devices(config)
    ring = config.cluster.service.name == "geometric"  # of past versions, longer than one a group
    return config.with_(plain), devices, ring


def is_batched(config: Config) -> bool:
    """Whether the run can be a lane: of one device, and whole before its first update."""
    timeline_depends_on_log = (
        config.methods.timeline_depends_on_log(config)
        or config.data.streaming
        or config.probes.momentum
    )
    return is_one_program(config) and not timeline_depends_on_log


def is_one_program(config: Config) -> bool:
    """Whether the loop over updates is one compiled program of one device."""
    on_host = config.methods.get("snapshots", "") == "host"
    return not (config.parallel.api or config.replicas.count or on_host)


@lookup.files_read_once()
def train(
    runs: Sequence[Run], workdirs: Sequence[Path], lanes: int, watches: Sequence[Watch]
) -> list[Json]:
    """The runs, `lanes` of one program at most, as `trainer.train` would; returns their summaries.

    Lanes beyond the runs repeat some, so that floats do not depend on how many runs there are. A
    lane whose run has ended goes on unheeded until all have.
    """
    advance, program = _joint(runs[0])
    trainings = [
        trainer.training(run._replace(program=program), workdir, watch)
        for run, workdir, watch in zip(_alike(runs), workdirs, watches, strict=True)
    ]
    with contextlib.ExitStack() as stack:
        for training in trainings:
            stack.enter_context(contextlib.closing(training))
        said = [loop.proceed(training) for training in trainings]
        chunks = {i: chunk for i, chunk in enumerate(said) if isinstance(chunk, Chunk)}
        of_lane = [i for _ in range(lanes) for i in chunks][:lanes]
        lane_of = {i: lane for lane, i in enumerate(chunks)}
        if chunks:
            states = _joined([chunks[i].state for i in of_lane])
            examples = _examples(runs[0], [chunks[i].examples for i in of_lane])
        length = 1
        while chunks:
            begun, n = time.monotonic(), min(length, *(chunk.n for chunk in chunks.values()))
            events = {i: chunk.events(n) for i, chunk in chunks.items()}
            spare = next(iter(events.values()))
            inputs = _stack([events.get(i, spare) for i in of_lane])
            states, infos = advance(states, examples, *inputs, n)
            every = {name: np.asarray(leaf)[:, :n] for name, leaf in infos.items()}
            length = loop.next_length(length, n, time.monotonic() - begun)
            for i, chunk in chunks.items():
                chunk.state = Lane(states, lane_of[i])
                chunk.infos = {name: leaf[lane_of[i]] for name, leaf in every.items()}
                said[i] = loop.proceed(trainings[i])
            chunks = {i: chunk for i, chunk in enumerate(said) if isinstance(chunk, Chunk)}
    return [summary for summary in said if not isinstance(summary, Chunk)]


def lanes_of(runs: Sequence[Run], most: int, budget: float) -> int:
    """How many of the runs at a time, in even shares, if they may need `budget` bytes together."""
    fitting = int(budget // max(memory(runs[0]), 1))
    lanes = min(len(runs), most, max(fitting, 1))
    lanes = -(-len(runs) // -(-len(runs) // lanes))
    advance, _ = _joint(runs[0])
    while lanes > 1 and _bytes(advance, *_first(runs, lanes, 0)) > budget:
        lanes = -(-lanes // 2)
    return lanes


def memory(run: Run) -> int:
    """Bytes that one run needs besides the examples, by XLA's analysis, where it is one program."""
    sets = shared_data.put_on_devices(run.data, run.program.layout.put_examples, run.config)
    evaluation = _bytes(run.program.evaluate, run.params, sets.test_evaluated[0])
    return _bytes(run.program.advance, *loop.first(run, 0)) + evaluation


class MemoryBudget:
    """Memory that threads take parts of: each waits until its bytes fit, or nobody else has any."""

    def __init__(self, size: float):
        self._size, self._taken, self._changed = size, 0.0, Condition()

    @contextlib.contextmanager
    def take(self, size: float) -> Iterator[None]:
        """Inside, `size` bytes are taken."""
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
    """Times the first updates of some of the runs both ways; the runs stay as they are."""
    few, program = runs[:threads], runs[0].program
    joint, _ = _joint(runs[0])
    most = 2 ** (min(CHUNK, *(run.config.steps for run in runs)).bit_length() - 1)

    def in_threads(updates: int) -> tuple[float, State]:
        n = min(updates, most)
        each = [loop.first(run, n) for run in few]
        begun = time.monotonic()
        ended = list(pool.map(lambda first: _after(program.advance, first, updates // n), each))
        return time.monotonic() - begun, ended[0]

    def as_lanes(updates: int) -> tuple[float, State]:
        n = min(updates, most)
        first = _first(runs, lanes, n)
        begun = time.monotonic()
        ended = _after(joint, first, updates // n)
        return time.monotonic() - begun, _whole(Lane(ended, 0))

    ways = (in_threads, as_lanes)
    with ThreadPoolExecutor(len(few)) as pool:
        updates = min(COMPARED, most)
        alone, lane = (way(updates)[1].params for way in ways)  # and compiles
        enough = [_enough(way) for way in ways]
        rounds = [[way(n)[0] for way, n in zip(ways, enough, strict=True)] for _ in range(ROUNDS)]
    each, joined = (np.array(enough) * (len(few), lanes) / np.min(rounds, axis=0)).tolist()
    return Rates(each, joined, _difference(alone, lane), updates)


def _enough(way: Callable[[int], tuple[float, State]]) -> int:
    """Updates that take SECONDS, a power of two."""
    updates = 1
    while way(updates)[0] < SECONDS:
        updates *= 2
    return updates


def _after(advance: Advance, first: tuple[Tree, ...], times: int) -> State:
    """The state after the same updates so many times over."""
    state, *rest = first
    for _ in range(times):
        state, infos = advance(state, *rest)
        np.asarray(infos["loss"])
    return state


def _difference(one: Tree, other: Tree) -> float:
    """The largest, over the largest parameter of its array."""

    def relative(a: jax.Array, b: jax.Array) -> float:
        return float(jnp.max(jnp.abs(a - b)) / jnp.maximum(jnp.max(jnp.abs(a)), TINY))

    return max(jax.tree.leaves(jax.tree.map(relative, one, other)))


def _joint(run: Run) -> tuple[Advance, Program]:
    """`advance` of several runs like this one, and the program of each."""
    return _vmapped(run.program, shared_data.is_drawn(run.config))


@lru_cache(maxsize=4)
def _vmapped(program: Program, drawn: bool) -> tuple[Advance, Program]:
    axes = (0, 0 if drawn else None, 0, 0, None)
    advance = jax.jit(jax.vmap(program.advance, axes), donate_argnums=0)
    layout = program.layout._replace(put_state=lambda state: state, get=_whole)
    return advance, replace(program, layout=layout)


def _whole(state: Tree) -> State:
    """The state of a lane, or of a run before it is one."""
    return _row(state.states, state.number) if isinstance(state, Lane) else state


@jax.jit
def _row(states: State, number: int) -> State:
    return jax.tree.map(lambda leaf: leaf[number], states)


@jax.jit
def _joined(states: Sequence[State]) -> State:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def _stack(events: Sequence[Tree]) -> Tree:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *events)


def _first(runs: Sequence[Run], lanes: int, n: int) -> tuple[Tree, ...]:
    """Arguments of `advance` for the first n updates of so many lanes."""
    each = [loop.first(run, n) for run in itertools.islice(itertools.cycle(_alike(runs)), lanes)]
    states, examples, *inputs, _ = zip(*each, strict=True)
    return _joined(states), _examples(runs[0], examples), *map(_stack, inputs), n


def _alike(runs: Sequence[Run]) -> list[Run]:
    """The runs with room for the largest share of all, so that their batches have one shape."""
    columns = max(run.columns for run in runs)
    return [run._replace(columns=columns) for run in runs]


def _examples(run: Run, each: Sequence[Examples]) -> Examples:
    """The examples of all lanes, (lanes, N, ...) if they are not the same."""
    return _joined(each) if shared_data.is_drawn(run.config) else each[0]


def _bytes(function: Tree, *arguments: Tree) -> int:
    """What a jitted function needs for its results and besides, by XLA's analysis."""
    found = function.lower(*arguments).compile().memory_analysis()
    return found.output_size_in_bytes + found.temp_size_in_bytes if found else 0
