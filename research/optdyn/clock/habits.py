"""What volunteers do that machines of one's own don't: they follow the hour, and come and go."""

from typing import NamedTuple

import numpy as np

from optdyn.base import seeds
from optdyn.clock import regions
from optdyn.clock.base import TimelineError
from optdyn.clock.cluster import Cluster

TURNS = 10_000  # of a node, from one second that is asked for to the next


class Load(NamedTuple):
    amplitude: float
    speed: float  # radians a second
    phase: np.ndarray  # (nodes,) radians

    def __call__(self, now: np.ndarray) -> np.ndarray:
        """(nodes,) factors, at the second of each node."""
        return 1 + self.amplitude * np.sin(self.speed * now + self.phase)


def load(cluster: Cluster) -> Load | None:
    """How much longer nodes take at a second; None where all hours are alike.

    1 + a sin(2 pi t / day + longitude), a = `cluster.diurnal`: computers that are also used.
    """
    if not cluster.diurnal:
        return None
    longitude = np.zeros(cluster.nodes)
    if cluster.regions:
        longitude = regions.of_cluster(cluster).longitude[regions.of_workers(cluster)]
    return Load(cluster.diurnal, 2 * np.pi / cluster.day, longitude)


class Habits(NamedTuple):
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
        for _ in range(TURNS):
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
        for _ in range(TURNS):
            one, start = int(self.back.argmin()), float(self.back.min())
            self.at(np.where(every == one, start, -np.inf))
            if start + seconds[one] < self.left[one]:
                return one, start
        raise self._too_often()

    def _too_often(self) -> TimelineError:
        return TimelineError(
            f"config.cluster.presence = {self._presence:g}: nodes come and go {TURNS:,} times from "
            "one meeting to the next, and must be there for longer"
        )


def presence(cluster: Cluster, seed: int) -> Presence | None:
    """The presences of the nodes; None where nobody ever leaves."""
    if not cluster.presence:
        return None
    rng = seeds.generator(seed, "presence")
    return Presence(rng, cluster.nodes, cluster.presence, cluster.absence)
