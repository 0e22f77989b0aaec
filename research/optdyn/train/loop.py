"""The one loop over a run's updates, and the hooks that are called after each chunk of them.

    x_{t+1} = rule.step(x_t, event_t, batch_t)          t = start, start + 1, ...

`updates` plans chunks of updates and computes none. Whoever asks for a chunk computes it, and sets
its `state` and `infos`, before asking for the next: on the run's own devices (`Chunk.compute`), as
one program with other runs (`batched_runs.py`), or by real workers (`race/race.py`). Hooks log,
save and stop.
"""

import contextlib
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base.trees import Json, Params, Tree
from optdyn.core import Event, State
from optdyn.devices.first_process import from_first
from optdyn.implicit_momentum.readings import Windows
from optdyn.problem.data.order import DataBlock, Feed
from optdyn.train.program import CHUNK
from optdyn.train.run import Run, batches_of, events_of, extend_timeline, feed_of

T = TypeVar("T")
METERED_CHUNK = 64  # updates of a window handed to the device at a time: they return large arrays


@dataclass(eq=False)
class Chunk:
    """Up to `n` updates in a row; who computes some of them sets `state` and `infos`."""

    run: Run  # its timeline may grow as rows are logged
    start: int  # updates that the state has had before
    n: int  # 0: only compile
    next_stop: int  # the next stop, at this chunk's end or after it
    state: Tree  # on the program's devices, in its layout
    examples: Tree  # in the same layout: `Examples`, and a pair of them for the momentum meter
    inputs: Callable[[int], tuple[Event, Tree]]  # n -> events and batches of n updates, padded
    requested: float  # when it was asked for, by `time.monotonic`
    metered: bool = False  # whether `infos` have what the momentum meter needs
    infos: Mapping[str, np.ndarray] = field(default_factory=dict)  # of the updates done, (m,)
    row: Json | None = None  # at a log point: its row of the log, as far as hooks have filled it
    status: str = ""  # the run ends after this chunk with it; '': the run goes on
    save: bool = False  # whether a signal asks for a checkpoint after it

    @property
    def step(self) -> int:
        """Returns the number of updates that `state` has had."""
        return self.start + len(self.infos.get("loss", ()))

    @property
    def finite_step(self) -> int:
        """Returns the number of updates before the first whose loss is not finite."""
        losses = self.infos.get("loss", np.zeros(0))
        return self.start + int(np.append(np.isfinite(losses), False).argmin())

    @cached_property
    def full_state(self) -> State:
        """Returns the state after the updates, as one device would have it."""
        return self.run.program.layout.get(self.state)

    @property
    def params(self) -> Params:
        """Returns the parameters after the updates, a tree of arrays."""
        return self.full_state.params

    def compute(self, most: int = CHUNK) -> None:
        """Computes the first `most` of the updates on the run's own devices."""
        program, n = self.run.program, min(self.n, most)
        layout = program.metered if self.metered else program.layout
        assert layout
        self.state, infos = layout.advance(self.state, self.examples, *self.inputs(n), n)
        self.infos = {name: np.asarray(leaf)[:n] for name, leaf in infos.items()}


def updates(
    run: Run,
    state: State,
    step: int,
    stops: Sequence[int],
    log: list[Json] | None = None,
    windows: Windows | None = None,
    feed: Feed | None = None,
) -> Iterator[Chunk]:
    """Yields the run's updates from `step` to the last of the `stops`; no chunk crosses a stop.

    The first chunk is empty, so that its program is compiled; one more follows at least. The state
    is donated. Where the timeline depends on the rows of the `log`, which the caller appends, a
    chunk ends where they determine it no further. Updates in `windows`, the spans that the momentum
    meter measures, get a second batch.
    """
    feed, second_feed = feed or feed_of(run), feed_of(run)

    def next_chunk(state: State, step: int, needed: int) -> Chunk:
        nonlocal run
        run = run if log is None else extend_timeline(run, needed, log)
        stop = min(stops[bisect_right(stops, step, hi=len(stops) - 1)], len(run.timeline.seconds))
        requested, block = time.monotonic(), feed(needed, batches_of(run))
        end = min(stop, block.stop, step + CHUNK, windows.until(step) if windows else stop)
        inputs = partial(events_of, run, step, block)
        chunk = Chunk(run, step, end - step, stop, state, block.examples, inputs, requested)
        if windows and windows.has(step):
            _add_second_batch(chunk, block, second_feed(needed, batches_of(run, independent=True)))
        return chunk

    # The timeline of update `step` may depend on the row that is logged after this empty chunk, so
    # no more of it is needed yet than update `step - 1` had.
    chunk = next_chunk(state, step, max(step - 1, 0))
    del state  # a state may fill the memory
    chunk.n = 0
    yield chunk
    while True:
        chunk = next_chunk(chunk.state, chunk.step, chunk.step)
        yield chunk
        if chunk.step == stops[-1]:
            return


def _add_second_batch(chunk: Chunk, block: DataBlock, other: DataBlock) -> None:
    def inputs(n: int) -> tuple[Event, tuple[np.ndarray, np.ndarray]]:
        event, indices = events_of(chunk.run, chunk.start, block, n, METERED_CHUNK)
        return event, (indices, events_of(chunk.run, chunk.start, other, n, METERED_CHUNK)[1])

    chunk.metered, chunk.inputs, chunk.examples = True, inputs, (block.examples, other.examples)
    chunk.n = min(chunk.n, other.stop - chunk.start, METERED_CHUNK)


class Hook:
    """Acts after each chunk of a run's updates. A subclass overrides the methods that it needs."""

    def chunk(self, chunk: Chunk) -> None:
        """Called before the first update, with an empty chunk, and after the updates of each chunk.

        At a log point `chunk.row` is a dict, and what is put into it is logged; elsewhere it is
        None. `chunk.params` are the parameters after `chunk.step` updates; the next chunk
        overwrites them, so copy what is to be kept. `chunk.infos["loss"]` has the updates' losses.
        A `chunk.status` that is set ends the run there, with that status.
        """

    def end(self, chunk: Chunk, summary: Json) -> None:
        """Called once after the last chunk; what is put into the summary is kept with the run."""


Training = Generator[Chunk, None, T]  # yields chunks to be computed, and returns the run's result


def with_hooks(
    chunks: Iterator[Chunk], hooks: Sequence[Hook], log: Sequence[Json]
) -> Training[Chunk]:
    """Yields the chunks, calls the hooks after each, and returns the last chunk.

    The run ends after a chunk whose status a hook has set, or whose loss is not finite, or when no
    chunk is left. One of the hooks appends each row to the log.
    """
    for i, chunk in enumerate(chunks):
        yield chunk
        if i:
            at_log_point = chunk.step == chunk.next_stop
        else:  # before the first update
            at_log_point = not log or chunk.step % chunk.run.config.log_every == 0
        if chunk.finite_step < chunk.step:
            chunk.status = "diverged"
        elif at_log_point:
            already_logged = log and log[-1]["step"] == chunk.step  # before the run was resumed
            chunk.row = None if already_logged else {}
        for hook in hooks:
            hook.chunk(chunk)
        if chunk.status:
            break
    return chunk


def run_to_end(training: Training[T], length: int = 1) -> T:
    """Computes all chunks on the run's own devices, and returns the run's result.

    The first call of the program makes at most `length` updates, each later one about a second's.
    """
    with contextlib.closing(training):
        while True:
            try:
                chunk = next(training)
            except StopIteration as ended:
                return ended.value
            most, called = from_first(length), time.monotonic()
            chunk.compute(most)
            length = next_length(length, chunk.step - chunk.start, time.monotonic() - called)


def next_or_result(training: Training[T]) -> Chunk | T:
    """Returns the next chunk to be computed, or the run's result where none is left."""
    try:
        return next(training)
    except StopIteration as ended:
        return ended.value


def next_length(length: int, n: int, seconds: float) -> int:
    """Returns how many updates take a second, as n took `seconds`: 1 to min(2 `length`, CHUNK).

    After none, when the program was only compiled, it is `length` still.
    """
    if n == 0:
        return length
    return int(np.clip(n / max(seconds, 1e-9), 1, min(2 * length, CHUNK)))


def initial_state(run: Run) -> State:
    """Returns the state that the run starts from, on its devices, made of a copy of its params."""
    return run.program.layout.put_state(run.program.init(jax.tree.map(jnp.copy, run.start)))


def advance_arguments(run: Run, n: int) -> tuple[Tree, ...]:
    """Returns the arguments of `Program.advance` for the first n updates of the run."""
    chunk = next(updates(run, initial_state(run), 0, [n]))
    return chunk.state, chunk.examples, *chunk.inputs(n), n
