"""The one loop over a run's updates, of which the trainer and every study is a consumer.

    x_{t+1} = step(x_t, event_t, batch_t)          t = step, step + 1, ...

`drive` yields chunks of updates that are still to be made: on the run's own devices (`Chunk.make`),
with other runs as one program (`batched_runs.py`), or by real workers (`race/race.py`). Whoever
iterates has them made, and logs, saves or stops between them.
"""

import contextlib
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base.trees import Json, Tree
from optdyn.core import Event, State
from optdyn.devices.first_process import agreed
from optdyn.problem.data.feed import Feed
from optdyn.train.meter import Windows
from optdyn.train.program import CHUNK
from optdyn.train.run import Run, batches_of, events_of, extended, feed_of

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
    metered: bool  # whether updates say what the momentum meter needs
    begun: float  # when it was asked for, by `time.monotonic`
    infos: Mapping[str, np.ndarray] = field(default_factory=dict)  # of each update made, (m,)

    @property
    def step(self) -> int:
        """Updates that `state` has had."""
        return self.start + len(self.infos.get("loss", ()))

    def make(self, most: int = CHUNK) -> None:
        """Makes the first `most` of the updates on the run's own devices."""
        program, n = self.run.program, min(self.n, most)
        layout = program.metered if self.metered else program.layout
        assert layout
        self.state, infos = layout.advance(self.state, self.examples, *self.events(n), n)
        self.infos = {name: np.asarray(leaf)[:n] for name, leaf in infos.items()}


def drive(
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
    donated. The `log`, to which whoever iterates may append, decides timeline and momentum. Where
    the log does not decide the timeline yet, a chunk ends too. Updates in `windows` are metered.
    `feed` is where examples come from; by default one is made for these updates.
    """
    feed, second = feed or feed_of(run), feed_of(run)

    def cut(state: State, step: int, held: int) -> Chunk:
        """The chunk of updates from `step` on. The batch of update `held` must be decided."""
        nonlocal run
        run = run if log is None else extended(run, held, log)
        until = min(stops[bisect_right(stops, step, hi=len(stops) - 1)], len(run.timeline.seconds))
        begun, block = time.monotonic(), feed(held, batches_of(run))
        events: Callable[[int], tuple[Event, Tree]] = partial(events_of, run, step, block)
        examples: Tree = block.examples
        end = min(until, block.stop, step + CHUNK)
        if windows:
            end = min(end, windows.until(step))
        if metered := windows is not None and windows.has(step):
            other = second(held, batches_of(run, independent=True))
            examples, end = (examples, other.examples), min(end, other.stop, step + METERED_CHUNK)

            def events(n: int) -> tuple[Event, Tree]:
                event, indices = events_of(run, step, block, n, METERED_CHUNK)
                return event, (indices, events_of(run, step, other, n, METERED_CHUNK)[1])

        return Chunk(run, step, end - step, until, state, examples, events, metered, begun)

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


Training = Generator[Chunk, None, Json]  # asks for updates, and returns the summary


def run_to_end(training: Training) -> Json:
    """The summary of a run after all its updates, made on its own devices."""
    length = 1
    with contextlib.closing(training):
        while isinstance(chunk := proceed(training), Chunk):
            most, called = agreed(length), time.monotonic()
            chunk.make(most)
            length = next_length(length, chunk.step - chunk.start, time.monotonic() - called)
    return chunk


def proceed(training: Training) -> Chunk | Json:
    """What the run asks for after the chunk before has been made, or its summary."""
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
    chunk = next(drive(run, initial(run), 0, [n]))
    return chunk.state, chunk.examples, *chunk.events(n), n
