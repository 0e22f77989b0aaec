"""The one loop over a run's updates, and the hooks that are told of them.

    x_{t+1} = step(x_t, event_t, batch_t)          t = step, step + 1, ...

`updates` yields chunks of updates that are still to be made: on the run's own devices
(`Chunk.make`), with other runs as one program (`batched_runs.py`), or by real workers
(`race/race.py`). Whoever iterates has them made. What else a run does, it does by hooks.
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
from optdyn.momentum.readings import Windows
from optdyn.problem.data.order import DataBlock, Feed
from optdyn.train.program import CHUNK
from optdyn.train.run import Run, batches_of, events_of, extended, feed_of

T = TypeVar("T")
METERED_CHUNK = 64  # updates of a window handed to the device at a time: each says much


@dataclass(eq=False)
class Chunk:
    """Up to `n` updates in a row; who makes them sets `state` and `infos` to what comes of them."""

    run: Run  # with as much of its timeline as was decided
    start: int  # updates that the state has had before
    n: int  # 0: only compile
    until: int  # the stop that is next
    state: Tree  # on the program's devices, as its layout has it
    examples: Tree  # likewise: `Examples`, and a pair of them for the momentum meter
    events: Callable[[int], tuple[Event, Tree]]  # the first so many, as `advance` takes them
    begun: float  # when it was asked for, by `time.monotonic`
    metered: bool = False  # whether updates say what the momentum meter needs
    infos: Mapping[str, np.ndarray] = field(default_factory=dict)  # of each update made, (m,)
    row: Json | None = None  # at a log point: what is logged there, as far as hooks have said
    status: str = ""  # with what the run ends after it; '': it goes on
    save: bool = False  # whether a signal asks for a checkpoint after it

    @property
    def step(self) -> int:
        """Updates that `state` has had."""
        return self.start + len(self.infos.get("loss", ()))

    @property
    def good(self) -> int:
        """Updates before the first whose loss is not finite; `step` if all are."""
        losses = self.infos.get("loss", np.zeros(0))
        return self.start + int(np.append(np.isfinite(losses), False).argmin())

    @cached_property
    def whole(self) -> State:
        """The state as one device would hold it, after the updates were made."""
        return self.run.program.layout.get(self.state)

    @property
    def params(self) -> Params:
        """The parameters after the updates, a tree of arrays."""
        return self.whole.params

    def make(self, most: int = CHUNK) -> None:
        """Makes the first `most` of the updates on the run's own devices."""
        program, n = self.run.program, min(self.n, most)
        layout = program.metered if self.metered else program.layout
        assert layout
        self.state, infos = layout.advance(self.state, self.examples, *self.events(n), n)
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
    """The run's updates from `step` to the last of the `stops`, in chunks; one ends at each stop.

    The first chunk is empty, so that all is compiled with it; at least one follows. The state is
    donated. Whoever iterates appends to the `log`, by which timeline and momentum are decided; a
    chunk ends where the timeline does so far. Updates in `windows` are metered, examples of `feed`.
    """
    feed, second = feed or feed_of(run), feed_of(run)

    def cut(state: State, step: int, held: int) -> Chunk:
        """The chunk of updates from `step` on. The batch of update `held` must be decided."""
        nonlocal run
        run = run if log is None else extended(run, held, log)
        until = min(stops[bisect_right(stops, step, hi=len(stops) - 1)], len(run.timeline.seconds))
        begun, block = time.monotonic(), feed(held, batches_of(run))
        end = min(until, block.stop, step + CHUNK, windows.until(step) if windows else until)
        events = partial(events_of, run, step, block)
        chunk = Chunk(run, step, end - step, until, state, block.examples, events, begun)
        if windows and windows.has(step):
            _meter(chunk, block, second(held, batches_of(run, independent=True)))
        return chunk

    # The batch of the last update that was made is decided, wherever the run goes on.
    chunk = cut(state, step, max(step - 1, 0))
    del state  # a state may fill the memory
    chunk.n = 0
    yield chunk
    while True:
        chunk = cut(chunk.state, chunk.step, chunk.step)
        yield chunk
        if chunk.step == stops[-1]:
            return


def _meter(chunk: Chunk, block: DataBlock, other: DataBlock) -> None:
    """Gives a second batch, of the `other` block, to each update of a chunk, and to fewer."""

    def events(n: int) -> tuple[Event, tuple[np.ndarray, np.ndarray]]:
        event, indices = events_of(chunk.run, chunk.start, block, n, METERED_CHUNK)
        return event, (indices, events_of(chunk.run, chunk.start, other, n, METERED_CHUNK)[1])

    chunk.metered, chunk.events, chunk.examples = True, events, (block.examples, other.examples)
    chunk.n = min(chunk.n, other.stop - chunk.start, METERED_CHUNK)


class Hook:
    """What a run does besides its updates. A hook of one's own overrides what it needs."""

    def chunk(self, chunk: Chunk) -> None:
        """Called before the first update, with an empty chunk, and after the updates of each chunk.

        At a log point `chunk.row` is a dict, and what is put into it is logged; elsewhere it is
        None. `chunk.params` are the parameters after `chunk.step` updates, which the next updates
        take the place of: copy what is to be kept. `chunk.infos["loss"]` has the updates' losses. A
        `chunk.status` that is set ends the run there, with it.
        """

    def end(self, chunk: Chunk, summary: Json) -> None:
        """Called once after the last chunk; what is put into the summary is kept with the run."""


Training = Generator[Chunk, None, T]  # asks for updates, and returns what comes of the run


def hooked(chunks: Iterator[Chunk], hooks: Sequence[Hook], log: Sequence[Json]) -> Training[Chunk]:
    """Has the chunks made, tells the hooks of each, and returns the last.

    It ends where a hook, or a loss that is not finite, sets a chunk's status. One of the hooks
    appends each row to the log.
    """
    for i, chunk in enumerate(chunks):
        yield chunk
        begins = not i and (not log or chunk.step % chunk.run.config.log_every == 0)
        if chunk.good < chunk.step:
            chunk.status = "diverged"
        elif begins or (i and chunk.step == chunk.until):
            is_logged = log and log[-1]["step"] == chunk.step  # by the run that is resumed
            chunk.row = None if is_logged else {}
        for hook in hooks:
            hook.chunk(chunk)
        if chunk.status:
            break
    return chunk


def run_to_end(training: Training[T], length: int = 1) -> T:
    """What comes of a run after all its updates, made on its own devices, at first so many."""
    with contextlib.closing(training):
        while True:
            try:
                chunk = next(training)
            except StopIteration as ended:
                return ended.value
            most, called = from_first(length), time.monotonic()
            chunk.make(most)
            length = next_length(length, chunk.step - chunk.start, time.monotonic() - called)


def proceed(training: Training[T]) -> Chunk | T:
    """What the run asks for after the chunk before has been made, or what comes of it."""
    try:
        return next(training)
    except StopIteration as ended:
        return ended.value


def next_length(length: int, n: int, seconds: float) -> int:
    """How many updates follow n that took so long: a second of them, at most twice `length`."""
    return int(np.clip(n / max(seconds, 1e-9), 1, min(2 * length, CHUNK)))


def initial(run: Run) -> State:
    """The state that the run starts from, on its devices; the run stays as it is."""
    return run.program.layout.put_state(run.program.init(jax.tree.map(jnp.copy, run.params)))


def first(run: Run, n: int) -> tuple[Tree, ...]:
    """Arguments of `advance` for the first n updates of the run, which stays as it is."""
    chunk = next(updates(run, initial(run), 0, [n]))
    return chunk.state, chunk.examples, *chunk.events(n), n
