"""Hardware efficiency of compute groups: Omnivore's closed form, which the queue is held against.

Hadjis et al., "Omnivore" (arXiv 1606.04487), the hardware model. N workers in g groups of k = N / g
share one fully connected (FC) server; `clock/arrivals.py` has T_conv(k), T_fc and the
queue itself.

    HE(g) = max(T_fc, (T_conv(k) + T_fc) / g)        seconds an iteration

The FC server is saturated when T_fc is the maximum. Unmerged it is the server of the FC model that
saturates: HE = max(T_fc_network, (T_conv + T_fc + T_fc_network) / g).

In the closed form no group waits before the server is saturated, and the server is never idle
after. That is exact for constant service and a lower bound for any other: batches meet at the
server at times and leave it idle at others, and the slowest of k workers takes longer than the
mean.
"""

import math
from typing import NamedTuple

import numpy as np

from optdyn.clock.arrivals import conv_seconds, fc_seconds, omnivore_arrivals
from optdyn.clock.cluster import Pieces
from optdyn.clock.timeline import Timeline


class Simulated(NamedTuple):
    seconds_per_iteration: float
    utilization: float  # of the server that the groups queue for, from 0 to 1
    timeline: Timeline  # (iterations,) updates, by the group that leaves the server


def seconds_per_iteration(pieces: Pieces, groups: int, k: int, merged: bool = True) -> float:
    """HE(g) in closed form: seconds from one update to the next, whichever groups they are of."""
    own, served = fc_seconds(pieces, merged)
    return max(served, (conv_seconds(pieces, k) + own + served) / groups)


def saturation(pieces: Pieces, k: int, merged: bool = True) -> int:
    """g*: the smallest number of groups of k workers that saturates the FC server.

    N workers saturate it in g groups when g >= saturation(pieces, N // g).
    """
    own, served = fc_seconds(pieces, merged)
    return math.ceil(1 + (conv_seconds(pieces, k) + own) / served)


def simulate(pieces, groups, k, iterations, law, seed, merged=True):
    """The rate of the first `iterations` updates of `groups` groups of k workers.

    The rate and the utilization are those of the later half, in whole rounds of the groups, so that
    the start does not count: there are at least 2 x groups iterations.
    """
    timeline, services = omnivore_arrivals(
        pieces, merged, groups, k, iterations, law, np.random.default_rng(seed)
    )
    last = iterations // 2 // groups * groups
    window = timeline.seconds[-1] - timeline.seconds[-1 - last]
    # Between two departures the server works on exactly the batches that depart.
    utilization = services[-last:].sum() / window
    return Simulated(float(window / last), float(utilization), timeline)


def random_cluster(seed):
    """Pieces, whether merged, groups and k, on either side of saturation."""
    rng = np.random.default_rng(seed)
    compute, network, fc, fc_network = np.exp(rng.uniform(-3, 1, 4))
    k = int(rng.integers(1, 9))
    pieces, merged = Pieces(k * compute, network / k, fc, fc_network), seed % 2 == 0
    return pieces, merged, int(rng.integers(1, 2 * saturation(pieces, k, merged) + 2)), k
