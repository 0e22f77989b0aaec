"""What a waiting user sees, and how they stop: a progress line, Ctrl-C and SIGTERM."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType


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
