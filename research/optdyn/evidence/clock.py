"""Seconds of real programs by the wall clock, side by side in turn, on so many cores.

A machine is never the same twice, so only ratios of what runs in turn count. A device here is a
process that is bound to its cores before the first program, so that it has as many threads.
"""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from optdyn.evidence.study import affinity


class TimedCall(NamedTuple):
    """What is timed: `function(*arguments)`, which returns seconds, in a process of so many cores.

    The function is one of a module, and keeps what it has compiled.
    """

    cores: int
    function: Callable[..., float]
    arguments: tuple[Any, ...]


class Timed(NamedTuple):
    seconds: list[list[float]]  # (settings, rounds)
    load: tuple[float, float]  # of the machine before and after: processes that want to run


def in_turn(rounds: Sequence[Sequence[TimedCall]]) -> Timed:
    """Every setting of a round once, in random order; all rounds have as many.

    Those of the first round are called once before, uncounted, to compile.
    """
    before = os.getloadavg()[0]
    with ExitStack() as stack:
        counts = sorted({setting.cores for each in rounds for setting in each})
        held = {n: stack.enter_context(_bound(n)) for n in counts}

        def once(setting: TimedCall) -> float:
            return held[setting.cores].submit(setting.function, *setting.arguments).result()

        for setting in rounds[0]:
            once(setting)
        order = np.random.default_rng(0)
        taken = np.zeros((len(rounds[0]), len(rounds)))
        for i, settings in enumerate(rounds):
            for k in order.permutation(len(settings)):
                taken[k, i] = once(settings[k])
    return Timed(taken.tolist(), (before, os.getloadavg()[0]))


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns in a process of its own, on all cores."""
    with _bound(len(affinity())) as held:
        return held.submit(function, *arguments).result()


def _bound(cores: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, _bind, (tuple(affinity()[:cores]),))


def _bind(cores: tuple[int, ...]) -> None:
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, cores)
