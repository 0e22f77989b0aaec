"""The progress line on standard error, and Ctrl-C and other signals while a run goes on."""

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

LIVE_SECONDS = 0.2  # between rewritings of the line on a terminal
PRINTED_SECONDS = 10.0  # between lines printed elsewhere
PATIENCE = 2.0  # seconds after which the line says what takes so long
CLEAR = "\r\x1b[K"


class Watch(NamedTuple):
    """How a run shows its progress, and which signals it obeys between updates."""

    stopped: Callable[[], int]  # the number of the signal that stops it, 0: none
    show: Callable[[int, str], None]  # (updates done, text)
    during: Callable[[str], AbstractContextManager[None]] = lambda what: nullcontext()
    saves: Callable[[], int] = lambda: 0  # how many signals have asked to save and go on


class NotedSignals:
    stopped = 0
    saves = 0


def say(text: str) -> None:
    """Prints a line on standard error in place of the progress line, in the writing process."""
    from optdyn.base.processes import is_writer  # here, for it imports jax

    if is_writer():
        _write(f"{text}\n", is_open=False)


@contextlib.contextmanager
def watch_or_default(
    name: str, total: int, start: int, watch: Watch | None = None
) -> Iterator[Watch]:
    """Yields the watch with saves counted from here; without one, a progress line and signals."""
    if watch:
        before = watch.saves()
        yield watch._replace(saves=lambda: watch.saves() - before)
    else:
        line = Progress(name, total, start)
        with note_signals() as noted:
            yield Watch(lambda: noted.stopped, line.show, line.during, lambda: noted.saves)


@contextlib.contextmanager
def note_signals() -> Iterator[NotedSignals]:
    """Inside, signals that end a run or have it save are only noted (`signals.take`).

    A second SIGINT or SIGTERM acts as it would outside; a closed terminal may send two SIGHUP.
    """
    noted = NotedSignals()

    def stop(number: int, frame: FrameType | None) -> None:
        noted.stopped = noted.stopped or number
        again = number != signal.SIGHUP
        if again:
            signals.restore({key: old for key, old in before.items() if key != signal.SIGHUP})
        say("stopping" + "; once more to stop at once" * again)

    def save(number: int, frame: FrameType | None) -> None:
        noted.saves += 1
        say("saving, and going on")

    before = signals.take(stop, *signals.ENDING)
    saving = signals.take(save, *signals.SAVING)
    try:
        yield noted
    finally:
        signals.restore(before | saving)
        end_line()


def end_line() -> None:
    global _open
    with _lock:
        put("\n" * _open)
        _open = False


class Progress:
    """`name  step 500/1,000  loss 0.12  810 steps/s  0:00:03 left`, on standard error.

    On a terminal the line is rewritten, elsewhere printed every ten seconds and at the end. The
    rate leaves out what precedes the first call of `show`, such as compilation. A total of 0 is
    unknown.
    """

    def __init__(self, name: str, total: int = 0, start: int = 0, unit: str = "step"):
        self._name, self._total, self._unit = name, total, unit
        self._done, self._text = start, ""
        self._first: tuple[int, float] | None = None  # updates and time of the first call
        self._shown = 0.0 if _is_terminal() else time.monotonic()

    def show(self, step: int, text: str = "") -> None:
        now = time.monotonic()
        self._done, self._text = step, text
        self._first = self._first or (step, now)
        live, last = _is_terminal(), 0 < self._total <= step
        if not last and now - self._shown < (LIVE_SECONDS if live else PRINTED_SECONDS):
            return
        self._shown = now
        _show(self._words(now), last)

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Inside, after `PATIENCE` seconds, the line on a terminal ends in `what ...`."""

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
        first, begun = self._first or (self._done, now)
        if self._done > first:
            rate = (self._done - first) / max(now - begun, 1e-9)
            parts += [f"{number(rate)} {self._unit}s/s"]
            if self._done < self._total:
                parts += [f"{clock((self._total - self._done) / rate)} left"]
        return "  ".join(filter(None, parts))


class Sweep:
    """A progress line for many runs, of so many updates: `12/64 points, 1 diverged`."""

    def __init__(self, name: str, points: Mapping[str, int], done: Collection[str]):
        self._points = points
        self._ended, self._diverged = set(done), 0
        self._at = {point: points[point] for point in done}
        self._line = Progress(name, sum(points.values()), unit="update")
        self._lock = Lock()

    @property
    def is_done(self) -> bool:
        return len(self._ended) == len(self._points)

    def show(self, point: str, step: int) -> None:
        """Shows that the point is at that update, but for its last, which `end` shows."""
        with self._lock:
            if step < self._points[point]:
                self._show(point, step)

    def end(self, point: str, status: str) -> None:
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
    """Returns the number with three significant digits and no exponent: 12,300, 0.0451."""
    if value <= 0:
        return "0"
    digits = max(2 - math.floor(math.log10(value)), 0)
    return f"{round(value, 2 - math.floor(math.log10(value))):,.{digits}f}"


def clock(seconds: float) -> str:
    """Returns hours, minutes and seconds: 1:02:03."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


_lock = RLock()  # reentrant, for a signal's handler may interrupt a writer
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
    global _open
    with _lock:
        put(CLEAR * _open + text)
        _open = is_open
