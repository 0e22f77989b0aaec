"""Signals that end a run or have it save, and their handlers."""

import signal
from collections.abc import Mapping
from threading import current_thread, main_thread
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a run saves, and ends
SAVING = (signal.SIGUSR1, signal.SIGUSR2)  # it saves, and goes on; submitit sends the second

Handler = Any  # as `signal.signal` takes and returns it


def take(call: Handler, *numbers: int) -> dict[int, Handler]:
    """Sets the handler of signals; returns the handlers before, for `restore`.

    Ignored signals of `ENDING` stay so, as under nohup, and signals of `SAVING` keep a handler that
    they have. Outside the main thread nothing is set.
    """
    if current_thread() is not main_thread():
        return {}
    before = dict[int, Handler]()
    for number in numbers:
        handler = signal.getsignal(number)
        if number in SAVING:
            is_free = handler in (signal.SIG_DFL, signal.SIG_IGN)
        else:
            is_free = handler not in (signal.SIG_IGN, None)  # None: it is not Python's
        if is_free:
            before[number] = signal.signal(number, call)
    return before


def restore(before: Mapping[int, Handler]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
