"""Asynchronous arrivals: each group works by itself and delivers when its slowest worker is done.

Groups never wait for one another, so each is a renewal process of its own and the order of
arrivals is the merge of their arrival times.
"""

from collections.abc import Sequence

import numpy as np

from research.timeline.base import Timeline, from_arrivals
from research.timeline.service import Law

BLOCK = 1 << 16  # services drawn at a time, a group


def arrivals(
    seed: int, law: Law, mean_seconds: np.ndarray | Sequence[np.ndarray], steps: int
) -> Timeline:
    """The first `steps` arrivals of `groups` groups of `k` workers.

    `mean_seconds`, (groups, k): mean service time of each worker, communication included. Where the
    services of a group are not alike it is (n, k) of each group, n services that take turns. Every
    group draws from a stream of its own, so a longer run begins with the shorter one.
    """
    cycles = [np.atleast_2d(own) for own in mean_seconds]
    groups = len(cycles)
    streams = [np.random.default_rng((seed, group)) for group in range(groups)]
    times: list[np.ndarray] = [np.zeros(1)] * groups

    def extend(group: int) -> None:
        number, cycle = np.arange(min(BLOCK, steps)) + len(times[group]) - 1, cycles[group]
        draws = law(streams[group], (len(number), cycle.shape[1]))
        services = (draws * cycle[number % len(cycle)]).max(axis=1)
        times[group] = np.concatenate([times[group], times[group][-1] + np.cumsum(services)])

    while True:
        # Only up to the horizon that every group has reached is the merge known.
        horizon = min(group[-1] for group in times)
        counts = [np.searchsorted(group, horizon, side="right") - 1 for group in times]
        if sum(counts) >= steps:
            break
        extend(int(np.argmin([group[-1] for group in times])))

    seconds = np.concatenate([group[1 : 1 + n] for group, n in zip(times, counts, strict=True)])
    worker = np.repeat(np.arange(groups, dtype=np.int32), counts)
    # Stable: simultaneous arrivals (constant service) keep the order of the groups.
    first = np.argsort(seconds, kind="stable")[:steps]
    return from_arrivals(worker[first], seconds[first], groups)
