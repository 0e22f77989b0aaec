"""Who sends to whom where nodes gossip, how fast that spreads, and whom a node waits for.

    ring          node j sends to j + 1 and j - 1
    exponential   to j + 1, j + 2, j + 4, ...
    one_peer      to one of these, in turns
    complete      to all
    random        pairs exchange, drawn anew at every update (of an odd number one is left alone)
    push          to one node, drawn anew at every update, whoever else sends to that

A node divides what it has into equal parts, one for itself and one for each message,

    P_ij = 1/k if j sends to i, of k messages with the one to itself

so the columns of P sum to 1. In all graphs but `push` the rows do, too. Nodes are numbered around
a circle.
"""

from typing import NamedTuple

import numpy as np

from optdyn.clock.attendance import Links, lasting, passed_on
from optdyn.clock.base import undelayed
from optdyn.clock.habits import Load, Presence

GRAPHS = ("ring", "exponential", "one_peer", "complete", "random", "push")
DRAWN = ("random", "push")
CONSTANT = ("ring", "exponential", "complete")


def graph(name: str, nodes: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """(T, nodes, k) int32: whom each node sends to, itself first, in the order of its messages.

    Update t is row t mod T. T is 1, the period of `one_peer`, or of what is drawn the number of
    `steps`, of which more begin with those of fewer.
    """
    every = np.arange(nodes)
    if name == "random":
        order = rng.permuted(np.tile(every, (steps, 1)), axis=1)
        one, other = order[:, : nodes // 2], order[:, nodes - nodes // 2 :]
        to = np.tile(every, (steps, 1))
        np.put_along_axis(to, one, other, 1)
        np.put_along_axis(to, other, one, 1)
    elif name == "push":
        to = (every + rng.integers(1, max(nodes, 2), (steps, nodes))) % nodes
    else:
        to = (every[:, None] + np.array(_shifts(name, nodes))[:, None]) % nodes
        return to.astype(np.int32)
    return np.stack([np.broadcast_to(every, to.shape), to], axis=-1, dtype=np.int32)


def _shifts(name: str, nodes: int) -> list[list[int]]:
    """How much further on the circle a node sends, of each turn."""
    powers = [2**i for i in range((nodes - 1).bit_length())]
    if name == "one_peer":
        return [[0, shift] for shift in powers] or [[0]]
    once = {"ring": [0, 1, -1], "exponential": [0, *powers], "complete": range(nodes)}[name]
    return [list(dict.fromkeys(shift % nodes for shift in once))]


def each_update(to: np.ndarray, steps: int) -> np.ndarray:
    """(steps, nodes, k), of a graph that stays the same without copies."""
    if len(to) == 1:
        return np.broadcast_to(to, (steps, *to.shape[1:]))
    return to[np.arange(steps) % len(to)]


def senders(to: np.ndarray) -> np.ndarray:
    """(T, nodes, k) int32: who sends to each node, of graphs in which all are sent k messages.

    Those are all but `push`.
    """
    order = np.argsort(to.reshape(len(to), -1), axis=1, kind="stable")
    return (order // to.shape[2]).reshape(to.shape).astype(np.int32)


def weights(to: np.ndarray, steps: int) -> np.ndarray:
    """(steps, nodes) float64 weights w of push-sum before every update: w_0 = 1, w <- P w."""
    w = np.ones((steps, to.shape[1]))
    for t in range(steps - 1):
        parts = np.broadcast_to(w[t, :, None] / to.shape[2], to.shape[1:])
        w[t + 1] = np.bincount(to[t % len(to)].ravel(), parts.ravel(), to.shape[1])
    return w


def report(name: str, nodes: int) -> dict[str, float]:
    """How fast nodes come to agree: the spectral gap, and the updates that it is of."""
    period = 1 if name in DRAWN else len(graph(name, nodes, 1, np.random.default_rng(0)))
    return {"spectral_gap": spectral_gap(name, nodes), "graph_period": period}


def spectral_gap(name: str, nodes: int) -> float:
    """1 - |Q y| / |y|, at the least over all y of sum 0; Q is the product of a period's P.

    For circulant Q that is 1 - |lambda_2|. Of graphs that are drawn 1 - (E |P y|^2 / |y|^2)^(1/2).
    """
    if nodes == 1:
        return 1.0
    n = float(nodes)
    if name == "random":  # E P'P = E P: pairs take their mean, which is a projection
        square = 1 / 2 if nodes % 2 else (n - 2) / (2 * (n - 1))
        return 1 - square**0.5
    if name == "push":  # 1/2 on the diagonal of E P'P, and elsewhere what is taken off
        return 1 - (1 / 2 - 1 / (2 * (n - 1)) - (n - 2) / (4 * (n - 1) ** 2)) ** 0.5
    sizes = np.ones(nodes)
    for shifts in _shifts(name, nodes):  # the eigenvalues of a circulant are a Fourier transform
        sizes *= np.abs(np.fft.fft(np.bincount(shifts, minlength=nodes) / len(shifts)))
    return float(1 - sizes[1:].max())


class Gossiped(NamedTuple):
    seconds: np.ndarray  # (steps,) at which the last node of an update has its parameters
    to: np.ndarray  # (T, nodes, k) whom each sent to; where nodes come and go T is all steps
    there: np.ndarray  # (steps, nodes) bool, whether a node was in it


def arrivals(
    to: np.ndarray,
    ready: np.ndarray,
    done: np.ndarray,
    links: Links,
    handed_on: float,
    early: bool,
    load: Load | None = None,
    presence: Presence | None = None,
) -> Gossiped:
    """When every update ends, and among whom it was.

    `ready`, `done`: (steps, nodes) seconds of a
    node's own update until its first message may leave and until its end, times the `load` at the
    second at which it begins; `links`: seconds of a message from the one node to the other. A node
    sends its messages one after the other, and begins the next update when it has its own and those
    that are sent to it, which takes the seconds `handed_on` inside it. With `early` it sends what
    it had before the update, so that messages travel beside the computing.

    Who leaves before the end of its own update is not in it, and `passed_on` is what would have
    been sent to it. Who is back is in the first update that all who are there begin later, when it
    has fetched what the next of them has. Where all have left, the first to be back makes the
    update alone. Raises `TimelineError` where nobody stays for as long as an update takes.
    """
    steps, nodes = ready.shape
    every = np.arange(nodes)
    cost = np.where(to == every[:, None], 0.0, links(every[:, None], to))
    travel = cost.cumsum(axis=2)
    now, free, seconds = np.zeros(nodes), np.zeros(nodes), np.zeros(steps)
    who, here = np.ones((steps, nodes), bool), np.ones(nodes, bool)
    used = np.empty((steps, *to.shape[1:]), np.int32) if presence else to
    for t in range(steps):
        peers, took = to[t % len(to)], travel[t % len(to)]
        if presence:
            here = who[t] = lasting(here, now, done[t], links, load, presence)
            peers = used[t] = passed_on(peers, here)
            among = links(every[:, None], peers)
            took = np.where(peers == every[:, None], 0.0, among).cumsum(axis=1)
        factor, before = load(now) if load else 1.0, (now, free)
        leave = np.maximum(free, now if early else now + ready[t] * factor)
        free = leave + took[:, -1]
        now = now + done[t] * factor
        there = leave[:, None] + took
        if not early:  # its last layer leaves last
            there = np.maximum(there, now[:, None])
        sent = peers != every[:, None]
        np.maximum.at(now, peers[sent], there[sent])
        now = now + handed_on
        if presence:
            now, free = (np.where(here, *each) for each in zip((now, free), before, strict=True))
        seconds[t] = now[here].max()
    return Gossiped(undelayed(seconds), used, who)
