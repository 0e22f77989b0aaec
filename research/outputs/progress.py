"""What a waiting user sees, and how they stop: a progress line, Ctrl-C and SIGTERM."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from threading import Lock
from types import FrameType
from typing import NamedTuple


class Watch(NamedTuple):
    """What a run looks at between updates, and shows how far it is."""

    stopped: Callable[[], int]  # the number of the signal that stops it, 0: none
    show: Callable[[int, str], None]  # (updates done, text)


def say(text: str) -> None:
    """Prints a line on standard error; of several processes the one that writes files does."""
    from research.parallel.processes import is_writer  # imports jax, which this file needs not

    if is_writer():
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def watched(name: str, total: int, start: int, watch: Watch | None = None) -> Iterator[Watch]:
    """The watch of a run, or where it has none, signals noted inside and a line of its own."""
    if watch:
        yield watch
    else:
        with stoppable() as stopped:
            yield Watch(stopped, Progress(name, total, start).show)


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], int]]:
    """Inside, the first SIGINT or SIGTERM is only noted: `stopped()` is its number, else 0.

    A second one acts as it would outside.
    """
    caught = 0
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal caught
        caught = number
        restore()
        print("\nstopping; once more to stop at once", file=sys.stderr)

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: caught
    finally:
        restore()


class Progress:
    """`name  step 500/1000  loss 0.12  810 steps/s  0:03 left`, on standard error.

    On a terminal the line is rewritten; elsewhere it is printed every ten seconds and at the end.
    """

    def __init__(self, name: str, total: int, start: int = 0, unit: str = "step"):
        self._name, self._total, self._start, self._unit = name, total, start, unit
        self._begun = time.monotonic()
        self._shown = self._begun if not sys.stderr.isatty() else 0.0

    def show(self, step: int, text: str = "") -> None:
        now = time.monotonic()
        live, done = sys.stderr.isatty(), step >= self._total
        if not done and now - self._shown < (0.2 if live else 10.0):
            return
        self._shown = now
        rate = (step - self._start) / max(now - self._begun, 1e-9)
        left = int((self._total - step) / rate) if rate else 0
        line = f"{self._name}  {self._unit} {step}/{self._total}  {text}"
        line += f"  {rate:.3g} {self._unit}s/s  {left // 60}:{left % 60:02d} left"
        end = "" if live and not done else "\n"
        print(("\r\x1b[K" if live else "") + line, end=end, file=sys.stderr, flush=True)


class Sweep:
    """One line for many runs at a time: `12/64 points, 1 diverged`, and the updates of them all.

    `points` are the updates of each, of which those in `done` are not to be run any more.
    """

    def __init__(self, name: str, points: Mapping[str, int], done: Collection[str]):
        self._name, self._points = name, points
        self._ended, self._diverged = set(done), 0
        self._at = {point: points[point] for point in done}
        self._line: Progress | None = None
        self._lock = Lock()

    @property
    def is_done(self) -> bool:
        """Whether all points have ended."""
        return len(self._ended) == len(self._points)

    def show(self, point: str, step: int) -> None:
        """That the point is at that update; of the last one `end` tells."""
        with self._lock:
            if step < self._points[point]:
                self._show(point, step)

    def end(self, point: str, status: str) -> None:
        """That the point needs no more updates."""
        with self._lock:
            self._ended.add(point)
            self._diverged += status == "diverged"
            self._show(point, self._points[point])

    def _show(self, point: str, step: int) -> None:
        self._at[point] = step
        text = f"{len(self._ended)}/{len(self._points)} points"
        text += f", {self._diverged} diverged" * (self._diverged > 0)
        updates = sum(self._at.values())
        if self._line is None:  # what was compiled before says nothing of the time left
            self._line = Progress(self._name, sum(self._points.values()), updates, unit="update")
        self._line.show(updates, text)
