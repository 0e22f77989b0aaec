"""What a waiting user sees, and how they stop: a progress line, Ctrl-C and other signals.

One line at a time is rewritten on a terminal; whatever else is to be said goes through `say`, which
takes that line away first.
"""

import contextlib
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import Lock, RLock, Timer
from types import FrameType
from typing import NamedTuple

from optdyn.base import signals
from optdyn.base.streams import put

LIVE, PRINTED = 0.2, 10.0  # seconds between lines: rewritten on a terminal, printed elsewhere
PATIENCE = 2.0  # seconds after which the line says what takes so long
CLEAR = "\r\x1b[K"


class Watch(NamedTuple):
    """What a run looks at between updates, and shows how far it is."""

    stopped: Callable[[], int]  # the number of the signal that stops it, 0: none
    show: Callable[[int, str], None]  # (updates done, text)
    during: Callable[[str], AbstractContextManager[None]] = lambda what: nullcontext()
    asked: Callable[[], int] = lambda: 0  # how often it was asked to save and go on


class Come:
    """The signals that came: the number of the first that ends a run, and how many ask to save."""

    stopped = 0
    asked = 0


def say(text: str) -> None:
    """Prints a line on standard error, in place of the progress line, if there is one.

    Of several processes only the one that writes files does.
    """
    from optdyn.base.processes import is_writer  # here, for it imports jax

    if is_writer():
        _write(f"{text}\n", is_open=False)


@contextlib.contextmanager
def watched(name: str, total: int, start: int, watch: Watch | None = None) -> Iterator[Watch]:
    """The watch of a run, or where it has none, signals noted inside and a line of its own.

    How often it was asked to save counts from here on.
    """
    if watch:
        before = watch.asked()
        yield watch._replace(asked=lambda: watch.asked() - before)
    else:
        line = Progress(name, total, start)
        with stoppable() as come:
            yield Watch(lambda: come.stopped, line.show, line.during, lambda: come.asked)


@contextlib.contextmanager
def stoppable() -> Iterator[Come]:
    """Inside, signals that end a run, or have it save, are only noted, those of `signals.take`.

    A second SIGINT or SIGTERM acts as it would outside; a terminal that is closed may send SIGHUP
    more than once, or after another. Afterwards the progress line is ended, so that what follows
    it, such as a traceback, begins a line of its own.
    """
    come = Come()

    def stop(number: int, frame: FrameType | None) -> None:
        come.stopped = come.stopped or number
        again = number != signal.SIGHUP
        if again:
            signals.restore({key: kept for key, kept in before.items() if key != signal.SIGHUP})
        say("stopping" + "; once more to stop at once" * again)

    def save(number: int, frame: FrameType | None) -> None:
        come.asked += 1
        say("saving, and going on")

    before = signals.take(stop, *signals.ENDING)
    asking = signals.take(save, *signals.SAVING)
    try:
        yield come
    finally:
        signals.restore(before | asking)
        end_line()


def end_line() -> None:
    """Lets the progress line stand, if there is one, and goes on below it."""
    global _open
    with _writing:
        put("\n" * _open)
        _open = False


class Progress:
    """`name  step 500/1,000  loss 0.12  810 steps/s  0:00:03 left`, on standard error.

    On a terminal the line is rewritten, and no longer than the terminal is wide; elsewhere it is
    printed every ten seconds and at the end. The rate is that of what was done after the first
    call of `show`: before it everything is compiled. A total of 0 is one that nobody knows.
    """

    def __init__(self, name: str, total: int = 0, start: int = 0, unit: str = "step"):
        self._name, self._total, self._unit = name, total, unit
        self._done, self._text = start, ""
        self._first: tuple[int, float] | None = None  # updates and time of the first call
        self._shown = 0.0 if _is_terminal() else time.monotonic()

    def show(self, step: int, text: str = "") -> None:
        """The run has made `step` updates; the line says so where it is time for another."""
        now = time.monotonic()
        self._done, self._text = step, text
        self._first = self._first or (step, now)
        live, last = _is_terminal(), 0 < self._total <= step
        if not last and now - self._shown < (LIVE if live else PRINTED):
            return
        self._shown = now
        _show(self._words(now), last)

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Inside, if it takes long, the line on a terminal ends in `what ...`."""

        def show() -> None:
            if _is_terminal():
                _show(f"{self._words(time.monotonic())}  {what} ...", False)

        timer = Timer(PATIENCE, show)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _words(self, now: float) -> str:
        total = f"/{self._total:,}" * (self._total > 0)
        parts = [self._name, f"{self._unit} {self._done:,}{total}", self._text]
        since, begun = self._first or (self._done, now)
        if self._done > since:
            rate = (self._done - since) / max(now - begun, 1e-9)
            parts += [f"{number(rate)} {self._unit}s/s"]
            if self._done < self._total:
                parts += [f"{clock((self._total - self._done) / rate)} left"]
        return "  ".join(filter(None, parts))


class Sweep:
    """One line for many runs at a time: `12/64 points, 1 diverged`, and the updates of them all.

    `points` are the updates of each, of which those in `done` are not to be run any more.
    """

    def __init__(self, name: str, points: Mapping[str, int], done: Collection[str]):
        self._points = points
        self._ended, self._diverged = set(done), 0
        self._at = {point: points[point] for point in done}
        self._line = Progress(name, sum(points.values()), unit="update")
        self._lock = Lock()

    @property
    def is_done(self) -> bool:
        """Whether all points have ended."""
        return len(self._ended) == len(self._points)

    def show(self, point: str, step: int) -> None:
        """Says that the point is at that update; `end` tells of the last one."""
        with self._lock:
            if step < self._points[point]:
                self._show(point, step)

    def end(self, point: str, status: str) -> None:
        """Says that the point needs no more updates."""
        with self._lock:
            self._ended.add(point)
            self._diverged += status == "diverged"
            self._show(point, self._points[point])

    def _show(self, point: str, step: int) -> None:
        self._at[point] = step
        text = f"{len(self._ended)}/{len(self._points)} points"
        text += f", {self._diverged} diverged" * (self._diverged > 0)
        self._line.show(sum(self._at.values()), text)


def number(value: float) -> str:
    """Three digits that count, and none of an exponent: 12,300, 0.0451."""
    if value <= 0:
        return "0"
    digits = max(2 - math.floor(math.log10(value)), 0)
    return f"{round(value, 2 - math.floor(math.log10(value))):,.{digits}f}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


_writing = RLock()  # held again by a signal's handler that comes in between
_open = False  # whether the last line of the terminal is the progress line


def _show(text: str, last: bool) -> None:
    if not _is_terminal():
        _write(f"{text}\n", is_open=False)
        return
    columns = 0
    with contextlib.suppress(OSError, ValueError):
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    columns = columns or shutil.get_terminal_size().columns
    _write(text[: columns - 1] + "\n" * last, is_open=not last)


def _is_terminal() -> bool:
    with contextlib.suppress(AttributeError, ValueError):  # there is none, or it is closed
        return sys.stderr.isatty()
    return False


def _write(text: str, is_open: bool) -> None:
    """Writes in place of the progress line, which the text is if it stays open."""
    global _open
    with _writing:
        put(CLEAR * _open + text)
        _open = is_open
