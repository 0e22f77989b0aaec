"""Asynchronous arrivals: each group works by itself and delivers when its slowest worker is done.

Groups never wait for one another, so each is a renewal process of its own and the order of
arrivals is the merge of their arrival times.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from research.timeline.base import Timeline, from_arrivals
from research.timeline.service import Law

BLOCK = 1 << 16  # services of a group that are added up on their own
SPARE = 16  # services drawn beyond what a group is likely to need


def drawn(steps: int, groups: int) -> int:
    """Services that each of so many groups draws at a time, for `steps` arrivals of all of them."""
    return min(BLOCK, steps, 2 * -(-steps // groups) + SPARE)


def services(
    seed: int, law: Law, mean_seconds: np.ndarray, steps: int, group: int
) -> Iterator[float]:
    """Seconds of a group's services one after the other, each of its slowest worker.

    Arguments as those of `arrivals`, whose draws these are.
    """
    rng, n = np.random.default_rng((seed, group)), drawn(steps, len(mean_seconds))
    while True:
        draws = law(rng, (n, mean_seconds.shape[1])) * mean_seconds[group]
        yield from draws.max(axis=1).tolist()


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
    begun, since = np.zeros(groups), np.zeros(groups)  # a block's start, and seconds since then

    def extend(group: int) -> None:
        done, cycle = len(times[group]) - 1, cycles[group]
        if done % BLOCK == 0:
            begun[group], since[group] = times[group][-1], 0.0
        number = np.arange(done, done + min(max(drawn(steps, groups), done), BLOCK - done % BLOCK))
        draws = law(streams[group], (len(number), cycle.shape[1]))
        longest = (draws * cycle[number % len(cycle)]).max(axis=1)
        sums = np.cumsum(np.append(since[group], longest))[1:]
        times[group], since[group] = np.append(times[group], begun[group] + sums), sums[-1]

    short = list(range(groups))
    while True:
        for group in short:
            extend(group)
        # Only up to the horizon that every group has reached is the merge known.
        ends = np.array([group[-1] for group in times])
        counts = [np.searchsorted(group, ends.min(), side="right") - 1 for group in times]
        if sum(counts) >= steps:
            break
        short = np.flatnonzero(ends <= 1.5 * ends.min()).tolist()

    seconds = np.concatenate([group[1 : 1 + n] for group, n in zip(times, counts, strict=True)])
    worker = np.repeat(np.arange(groups, dtype=np.int32), counts)
    # Stable: simultaneous arrivals (constant service) keep the order of the groups.
    first = np.argsort(seconds, kind="stable")[:steps]
    return from_arrivals(worker[first], seconds[first], groups)
