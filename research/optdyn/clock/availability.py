"""The availability of volunteers' computers: a daily load, and nodes that leave and come back."""

from typing import NamedTuple

import numpy as np

from optdyn.base import seeds
from optdyn.clock import network
from optdyn.clock.cluster import Cluster
from optdyn.clock.network import Links
from optdyn.clock.timeline import TimelineError
from optdyn.clock.trace import RecordedTrace

MOST_TURNS = 10_000  # presences of a node between two seconds that are asked for


class Load(NamedTuple):
    amplitude: float
    speed: float  # radians a second
    phase: np.ndarray  # (nodes,) radians

    def __call__(self, now: np.ndarray) -> np.ndarray:
        """Returns the factor on each node's seconds, (nodes,), at the second `now` of each."""
        return 1 + self.amplitude * np.sin(self.speed * now + self.phase)


def cluster_load(cluster: Cluster) -> Load | None:
    """Returns 1 + a sin(2 pi t / day + longitude), a = `cluster.diurnal`; None where that is 0."""
    if not cluster.diurnal:
        return None
    longitude = np.zeros(cluster.nodes)
    if cluster.regions:
        longitude = network.cluster_regions(cluster).longitude[network.region_of_nodes(cluster)]
    return Load(cluster.diurnal, 2 * np.pi / cluster.day, longitude)


class Availability(NamedTuple):
    load: Load | None = None  # phases (groups,)
    presence: float = 0.0  # mean seconds; 0: for ever
    absence: float = 0.0  # mean seconds; 0: back at once
    sending: float = 0.0  # seconds an arrival that the server's link is busy


class Presence:
    """Presences and absences of each node, of exponential lengths, in turns.

    All are there at second 0. `left`, (nodes,), is the second at which a node leaves or has left,
    and `back`, (nodes,), the one at which it comes back after that.
    """

    def __init__(self, rng: np.random.Generator, nodes: int, presence: float, absence: float):
        self._rng, self._presence, self._absence = rng, presence, absence
        self.left = rng.exponential(presence, nodes)
        self.back = self.left + rng.exponential(absence, nodes)

    def at(self, now: float | np.ndarray) -> np.ndarray:
        """Returns which nodes are there at the second `now`, one or (nodes,): (nodes,) bool.

        Seconds of a node may not decrease, but for -inf, at which nothing changes. Raises
        `TimelineError` if a node comes and goes `MOST_TURNS` times between two of them.
        """
        for _ in range(MOST_TURNS):
            due = np.flatnonzero(self.back <= now)
            if not due.size:
                return now < self.left
            self.left[due] = self.back[due] + self._rng.exponential(self._presence, due.size)
            self.back[due] = self.left[due] + self._rng.exponential(self._absence, due.size)
        raise self._too_often()

    def first_to_stay(self, seconds: np.ndarray) -> tuple[int, float]:
        """Returns the first node to stay for its `seconds`, and when. Raises `TimelineError`."""
        numbers = np.arange(len(seconds))
        for _ in range(MOST_TURNS):
            node, start = int(self.back.argmin()), float(self.back.min())
            self.at(np.where(numbers == node, start, -np.inf))
            if start + seconds[node] < self.left[node]:
                return node, start
        raise self._too_often()

    def _too_often(self) -> TimelineError:
        return TimelineError(
            f"config.cluster.presence = {self._presence:g}: must be longer, as nodes come and go "
            f"{MOST_TURNS:,} times from one meeting to the next"
        )


def cluster_presence(cluster: Cluster, seed: int) -> Presence | None:
    if not cluster.presence:
        return None
    rng = seeds.generator(seed, "presence")
    return Presence(rng, cluster.nodes, cluster.presence, cluster.absence)


def reroute_updates(to: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Returns `reroute` at every update, (steps, nodes, k), from `to[t % T]` of (T, nodes, k)."""
    receivers = [reroute(to[t % len(to)], present_t) for t, present_t in enumerate(present)]
    return np.stack(receivers).astype(np.int32)


def reroute(to: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Returns receivers `to`, (nodes, k), where only `present` nodes, (nodes,), take part.

    An absent one is replaced by the one that it would have sent to, and so on, so nodes still
    receive as many messages as they send. A node that is absent, or finds nobody, sends to itself.
    """
    itself = np.arange(len(present))[:, None]
    found = np.where(present[:, None], to, itself)
    for _ in range(len(present)):
        lost = present[:, None] & ~present[found]
        if not lost.any():
            return found
        found = np.where(lost, np.take_along_axis(to, found, axis=0), found)
    return np.where(lost, itself, found)


def stand_ins(present: np.ndarray) -> np.ndarray:
    """Returns each node's number, or the next present one on the circle, (steps, nodes) int32."""
    nodes = present.shape[1]
    twice = np.where(np.tile(present, 2), np.arange(2 * nodes), 2 * nodes)
    following = np.minimum.accumulate(twice[:, ::-1], axis=1)[:, ::-1]
    return (following[:, :nodes] % nodes).astype(np.int32)


def still_present(
    present: np.ndarray,
    now: np.ndarray,
    done: np.ndarray,
    links: Links,
    load: Load | None,
    presence: Presence,
) -> np.ndarray:
    """Returns which nodes take part in the next update, (nodes,), from those `present` in the last.

    A node comes back if it has fetched parameters, over `links`, when the first present node
    begins; its clock `now`, (nodes,), is then set to that second. A node that leaves before its
    `done` seconds, (nodes,), are over takes no part. Raises `TimelineError` if no node ever does.
    """
    numbers = np.arange(len(present))
    for _ in range(MOST_TURNS):
        present = present & (now < presence.left)
        if present.any():
            start, source = now[present].min(), stand_ins(present[None])[0]
            returning = ~present & (presence.back + links(source, numbers) <= start)
        else:
            start, returning = presence.back.min(), numbers == presence.back.argmin()
        now[returning] = start
        present |= returning & presence.at(np.where(returning, start, -np.inf))
        present &= now + done * (load(now) if load else 1.0) < presence.left
        if present.any():
            return present
    raise TimelineError(
        "config.cluster.presence: must be longer, as no node is there for the "
        f"{done.min():.3g} seconds of an update, {MOST_TURNS:,} times one after the other"
    )


def recorded_presence(trace: RecordedTrace, nodes: int) -> np.ndarray:
    """Returns which nodes were there in a recorded run, (steps, nodes). Raises `TimelineError`."""
    stand = trace.integers("stand", (nodes,), 0, nodes - 1)
    present = stand == np.arange(nodes)
    good = present.any(axis=1, keepdims=True) & (stand_ins(present) == stand)
    trace.require("stand", good, "the number of each node that is there, else the next one's")
    return present
