"""Signals: which end a run, which have it save, and who heeds them."""

import signal
from collections.abc import Mapping
from threading import current_thread, main_thread
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a run saves, and ends
SAVING = (signal.SIGUSR1, signal.SIGUSR2)  # it saves, and goes on; submitit sends the second

Handler = Any  # as `signal.signal` takes and returns it


def take(call: Handler, *numbers: int) -> dict[int, Handler]:
    """Has signals call this; returns what they did before, to be given back by `restore`.

    One of `ENDING` that is ignored stays so, as SIGHUP is under nohup and SIGINT in the background
    of a script; one of `SAVING` that somebody else heeds stays theirs. Python hands signals to the
    main thread only: in another one none is taken.
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
