"""Who takes part in an update of gossip where nodes come and go (`config.cluster.presence`).

What would have been sent to a node that is away is passed on to others, and after the update it
has what the next node on the circle has that was there.
"""

from collections.abc import Callable

import numpy as np

from optdyn.clock.base import TimelineError
from optdyn.clock.habits import TURNS, Load, Presence
from optdyn.clock.trace import Held

Links = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (from, to) -> seconds, of broadcast nodes


def among(to: np.ndarray, there: np.ndarray) -> np.ndarray:
    """(steps, nodes, k) whom each sends to where only those `there`, (steps, nodes), take part."""
    every = [passed_on(to[t % len(to)], here) for t, here in enumerate(there)]
    return np.stack(every).astype(np.int32)


def passed_on(peers: np.ndarray, here: np.ndarray) -> np.ndarray:
    """(nodes, k) whom each sends to where only those `here`, (nodes,), take part.

    In place of who is away it is the one whom that one would have sent to, and so on. So where all
    are sent as much as they send, that stays so. Who is away, or finds nobody, sends to itself.
    """
    every, nodes = np.arange(len(here))[:, None], len(here)
    found = np.where(here[:, None], peers, every)
    for _ in range(nodes):
        lost = here[:, None] & ~here[found]
        if not lost.any():
            return found
        found = np.where(lost, np.take_along_axis(peers, found, axis=0), found)
    return np.where(lost, every, found)


def stands(there: np.ndarray) -> np.ndarray:
    """(steps, nodes) int32: itself, or of who is not `there` the next on the circle who is."""
    nodes = there.shape[1]
    twice = np.where(np.tile(there, 2), np.arange(2 * nodes), 2 * nodes)
    following = np.minimum.accumulate(twice[:, ::-1], axis=1)[:, ::-1]
    return (following[:, :nodes] % nodes).astype(np.int32)


def lasting(
    here: np.ndarray,
    now: np.ndarray,
    done: np.ndarray,
    links: Links,
    load: Load | None,
    presence: Presence,
) -> np.ndarray:
    """The nodes in the next update, given those in the last; sets `now` of those that are back."""
    every = np.arange(len(here))
    for _ in range(TURNS):
        here = here & (now < presence.left)
        if here.any():
            start, source = now[here].min(), stands(here[None])[0]
            come = ~here & (presence.back + links(source, every) <= start)
        else:
            start, come = presence.back.min(), every == presence.back.argmin()
        now[come] = start
        here |= come & presence.at(np.where(come, start, -np.inf))
        here &= now + done * (load(now) if load else 1.0) < presence.left
        if here.any():
            return here
    raise TimelineError(
        f"config.cluster.presence: no node is there for the {done.min():.3g} seconds of an update, "
        f"{TURNS:,} times one after the other; must be longer"
    )


def recorded(held: Held, nodes: int) -> np.ndarray:
    """(steps, nodes) bool, who was there in a run that a trace holds. Raises `TimelineError`."""
    stand = held.whole("stand", (nodes,), 0, nodes - 1)
    there = stand == np.arange(nodes)
    good = there.any(axis=1, keepdims=True) & (stands(there) == stand)
    held.require("stand", good, "its own number of each node that is there, and the next one's")
    return there
