"""What volunteers do that machines of one's own don't: they follow the hour, and come and go.

`Load` makes nodes slower by the hour of their longitude. `Presence` has their absences, of
exponential lengths (`config.cluster.presence`). In gossip among nodes that come and go, what would
have been sent to one that is away is passed on (`reroute`), and after the update it has what the
next node on the circle has that was there (`stand_ins`).
"""

from typing import NamedTuple

import numpy as np

from optdyn.base import seeds
from optdyn.clock import network
from optdyn.clock.cluster import Cluster
from optdyn.clock.network import Links
from optdyn.clock.timeline import TimelineError
from optdyn.clock.trace import RecordedTrace

MOST_TURNS = 10_000  # of a node, from one second that is asked for to the next


class Load(NamedTuple):
    amplitude: float
    speed: float  # radians a second
    phase: np.ndarray  # (nodes,) radians

    def __call__(self, now: np.ndarray) -> np.ndarray:
        """(nodes,) factors, at the second of each node."""
        return 1 + self.amplitude * np.sin(self.speed * now + self.phase)


def cluster_load(cluster: Cluster) -> Load | None:
    """How much longer nodes take at a second; None where all hours are alike.

    1 + a sin(2 pi t / day + longitude), a = `cluster.diurnal`: computers that are also used.
    """
    if not cluster.diurnal:
        return None
    longitude = np.zeros(cluster.nodes)
    if cluster.regions:
        longitude = network.cluster_regions(cluster).longitude[network.region_of_nodes(cluster)]
    return Load(cluster.diurnal, 2 * np.pi / cluster.day, longitude)


class Availability(NamedTuple):
    load: Load | None = None  # phases (groups,)
    presence: float = 0.0  # mean seconds; 0: for ever
    absence: float = 0.0  # likewise; 0: back at once
    sending: float = 0.0  # of the server's link, an arrival


class Presence:
    """Presences and absences of each node, of exponential lengths, in turns.

    All are there at second 0. `left` is when a node leaves, or has left, and `back` when it comes
    back after that, (nodes,) seconds.
    """

    def __init__(self, rng: np.random.Generator, nodes: int, presence: float, absence: float):
        self._rng, self._presence, self._absence = rng, presence, absence
        self.left = rng.exponential(presence, nodes)
        self.back = self.left + rng.exponential(absence, nodes)

    def at(self, now: float | np.ndarray) -> np.ndarray:
        """(nodes,) bool, who is there at that second, or each at its own, (nodes,).

        It is no earlier than any that a node was asked for, or -inf, at which nobody comes or goes.

        Raises `TimelineError` where they come and go far more often than is asked for.
        """
        for _ in range(MOST_TURNS):
            again = np.flatnonzero(self.back <= now)
            if not again.size:
                return now < self.left
            self.left[again] = self.back[again] + self._rng.exponential(self._presence, again.size)
            self.back[again] = self.left[again] + self._rng.exponential(self._absence, again.size)
        raise self._too_often()

    def first_to_stay(self, seconds: np.ndarray) -> tuple[int, float]:
        """The first to be back that then stays for its `seconds`, (nodes,), and when it is back.

        Raises `TimelineError` where nobody does in a large number of turns.
        """
        every = np.arange(len(seconds))
        for _ in range(MOST_TURNS):
            one, start = int(self.back.argmin()), float(self.back.min())
            self.at(np.where(every == one, start, -np.inf))
            if start + seconds[one] < self.left[one]:
                return one, start
        raise self._too_often()

    def _too_often(self) -> TimelineError:
        return TimelineError(
            f"config.cluster.presence = {self._presence:g}: must be longer, nodes come and go "
            f"{MOST_TURNS:,} times from one meeting to the next"
        )


def cluster_presence(cluster: Cluster, seed: int) -> Presence | None:
    """The presences of the nodes; None where nobody ever leaves."""
    if not cluster.presence:
        return None
    rng = seeds.generator(seed, "presence")
    return Presence(rng, cluster.nodes, cluster.presence, cluster.absence)


def reroute_updates(to: np.ndarray, there: np.ndarray) -> np.ndarray:
    """(steps, nodes, k) whom each sends to where only those `there`, (steps, nodes), take part."""
    turns = [reroute(to[t % len(to)], here) for t, here in enumerate(there)]
    return np.stack(turns).astype(np.int32)


def reroute(peers: np.ndarray, here: np.ndarray) -> np.ndarray:
    """(nodes, k) whom each sends to where only those `here`, (nodes,), take part.

    In place of who is away it is the one whom that one would have sent to, and so on. So where all
    are sent as much as they send, that stays so. Who is away, or finds nobody, sends to itself.
    """
    itself = np.arange(len(here))[:, None]
    found = np.where(here[:, None], peers, itself)
    for _ in range(len(here)):
        lost = here[:, None] & ~here[found]
        if not lost.any():
            return found
        found = np.where(lost, np.take_along_axis(peers, found, axis=0), found)
    return np.where(lost, itself, found)


def stand_ins(there: np.ndarray) -> np.ndarray:
    """(steps, nodes) int32: itself, or of who is not `there` the next on the circle who is."""
    nodes = there.shape[1]
    twice = np.where(np.tile(there, 2), np.arange(2 * nodes), 2 * nodes)
    following = np.minimum.accumulate(twice[:, ::-1], axis=1)[:, ::-1]
    return (following[:, :nodes] % nodes).astype(np.int32)


def still_present(
    here: np.ndarray,
    now: np.ndarray,
    done: np.ndarray,
    links: Links,
    load: Load | None,
    presence: Presence,
) -> np.ndarray:
    """The nodes in the next update, given those in the last; sets `now` of those that are back."""
    every = np.arange(len(here))
    for _ in range(MOST_TURNS):
        here = here & (now < presence.left)
        if here.any():
            start, source = now[here].min(), stand_ins(here[None])[0]
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
        f"{MOST_TURNS:,} times one after the other; must be longer"
    )


def recorded_presence(trace: RecordedTrace, nodes: int) -> np.ndarray:
    """(steps, nodes) bool, who was there in a run that a trace holds. Raises `TimelineError`."""
    stand = trace.whole("stand", (nodes,), 0, nodes - 1)
    there = stand == np.arange(nodes)
    good = there.any(axis=1, keepdims=True) & (stand_ins(there) == stand)
    trace.require("stand", good, "its own number of each node that is there, and the next one's")
    return there
