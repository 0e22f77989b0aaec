"""Hardware efficiency of compute groups: Omnivore's closed form, and a simulator of its queue.

Hadjis et al., "Omnivore" (arXiv 1606.04487), the hardware model. N workers in g groups of k = N / g
share one fully connected (FC) server. A group computes its convolutions, then queues for it:

    T_conv_compute(k) = T_conv_compute(1) / k    a batch is divided among k workers
    T_conv_network(k) = T_conv_network(1) k      k workers exchange the model with one server
    T_conv(k) = max(T_conv_compute(k), T_conv_network(k))
    HE(g)     = max(T_fc, (T_conv(k) + T_fc) / g)        seconds an iteration
    P_HE(S)   = HE(S) / HE(0)                            S = g - 1, at the same N

The FC server is saturated when T_fc is the maximum. The paper has T_conv_network grow with k;
linear growth is an assumption made here, of one model server with one link.

*Merged*, compute and model of the FC part share the server. *Unmerged*, as the authors' program
lays it out, every group computes its FC part on a machine of its own, and what the groups queue for
is the server of the FC model, T_fc_network a batch: HE = max(T_fc_network, (T_conv + T_fc +
T_fc_network) / g).

The closed form lets no group wait before the server is saturated, and the server never idle after.
That is exact for constant service and a lower bound for any other: batches meet at the server at
times and leave it idle at others, and the slowest of k workers takes longer than the mean one.
"""

import heapq
import math
from typing import NamedTuple

import numpy as np

from research.timeline.base import Timeline, TimelineError, from_arrivals
from research.timeline.service import Law


class Pieces(NamedTuple):
    """Seconds of the parts of an iteration on one batch."""

    t_conv_compute_1: float  # convolutions, forward and backward, on one worker
    t_conv_network_1: float  # exchange of the convolutional model by one worker
    t_fc: float  # fully connected part, forward and backward
    merged: bool = True  # FC compute and FC model on one server
    t_fc_network: float = 0.0  # exchange of the FC model; only if not merged


class Simulated(NamedTuple):
    seconds_per_iteration: float
    utilization: float  # of the server that the groups queue for, from 0 to 1
    timeline: Timeline  # (iterations,) updates, by the group that leaves the server


def t_conv(pieces: Pieces, k: int) -> float:
    """Seconds of the convolutional phase in a group of k workers."""
    return max(pieces.t_conv_compute_1 / k, pieces.t_conv_network_1 * k)


def _fc(pieces: Pieces) -> tuple[float, float]:
    """FC seconds of a batch: on the group's own machine, and on the server that all share."""
    return (0.0, pieces.t_fc) if pieces.merged else (pieces.t_fc, pieces.t_fc_network)


def seconds_per_iteration(pieces: Pieces, groups: int, k: int) -> float:
    """HE(g) in closed form: seconds from one update to the next, whichever groups they are of."""
    own, served = _fc(pieces)
    return max(served, (t_conv(pieces, k) + own + served) / groups)


def penalty(pieces: Pieces, groups: int, workers: int) -> float:
    """P_HE: HE of `workers` in `groups` equal groups over HE of all in one; at most 1."""
    grouped = seconds_per_iteration(pieces, groups, workers // groups)
    return grouped / seconds_per_iteration(pieces, 1, workers)


def saturation(pieces: Pieces, k: int) -> float:
    """g*: the smallest number of groups of k workers that saturates the FC server.

    A whole number, or infinity if the server takes no time. N workers saturate it in g groups when
    g >= saturation(pieces, N // g).
    """
    own, served = _fc(pieces)
    if not served:
        return math.inf
    groups = 1 + (t_conv(pieces, k) + own) / served
    # A tie saturates, though rounding may have put the quotient just above the whole number.
    return math.ceil(groups * (1 - 1e-12))


def simulate(
    pieces: Pieces, groups: int, k: int, iterations: int, law: Law, rng: np.random.Generator
) -> Simulated:
    """The first `iterations` updates of `groups` groups of k workers, event by event.

    All groups start at second 0. The mean of every worker's phase, T_conv(k), and of every FC
    service is multiplied by a draw from `law`, and a group waits for the slowest of its workers,
    then in order of arrival for the server. It reads the parameters as it leaves the server: the
    staleness is that of the convolutional model (a merged FC model has none).

    The rate and the utilization are those of the later half, in whole rounds of the groups, so that
    the start does not count. Longer runs of the same generator state begin with shorter ones.
    Raises `TimelineError` if that half has no whole round.
    """
    if iterations < 2 * groups:
        raise TimelineError(
            f"iterations = {iterations}: must be at least 2 x groups = {2 * groups}, "
            "to leave out the start"
        )
    own, served = _fc(pieces)
    conv_stream, own_stream, server_stream = rng.spawn(3)
    phases = groups + iterations  # one at the start of each group, one after every update
    alone = law(conv_stream, (phases, k)).max(axis=1) * t_conv(pieces, k)
    alone += law(own_stream, (phases,)) * own
    services = law(server_stream, (iterations,)) * served

    queue = list(zip(alone[:groups].tolist(), range(groups), strict=True))
    heapq.heapify(queue)
    worker, seconds = np.empty(iterations, np.int32), np.empty(iterations)
    free = 0.0  # second at which the server has dealt with all who came before
    events = zip(services.tolist(), alone[groups:].tolist(), strict=True)
    for t, (service, phase) in enumerate(events):
        arrival, group = queue[0]
        free = max(free, arrival) + service
        worker[t], seconds[t] = group, free
        heapq.heapreplace(queue, (free + phase, group))

    last = iterations // 2 // groups * groups
    window = seconds[-1] - seconds[-1 - last]
    # Between two departures the server works on exactly the batches that depart.
    utilization = services[-last:].sum() / window
    timeline = from_arrivals(worker, seconds, groups)
    return Simulated(float(window / last), float(utilization), timeline)
