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

from optdyn.clock.arrivals import IterationSeconds, omnivore_arrivals, t_conv, t_fc
from optdyn.clock.timeline import Timeline


class Simulated(NamedTuple):
    seconds_per_iteration: float
    utilization: float  # of the server that the groups queue for, from 0 to 1
    timeline: Timeline  # (iterations,) updates, by the group that leaves the server


def seconds_per_iteration(pieces: IterationSeconds, groups: int, k: int) -> float:
    """HE(g) in closed form: seconds from one update to the next, whichever groups they are of."""
    own, served = t_fc(pieces)
    return max(served, (t_conv(pieces, k) + own + served) / groups)


def saturation(pieces: IterationSeconds, k: int) -> int:
    """g*: the smallest number of groups of k workers that saturates the FC server.

    N workers saturate it in g groups when g >= saturation(pieces, N // g).
    """
    own, served = t_fc(pieces)
    return math.ceil(1 + (t_conv(pieces, k) + own) / served)


def simulate(pieces, groups, k, iterations, law, seed):
    """The rate of the first `iterations` updates of `groups` groups of k workers.

    The rate and the utilization are those of the later half, in whole rounds of the groups, so that
    the start does not count: there are at least 2 x groups iterations.
    """
    timeline, services = omnivore_arrivals(
        pieces, groups, k, iterations, law, np.random.default_rng(seed)
    )
    last = iterations // 2 // groups * groups
    window = timeline.seconds[-1] - timeline.seconds[-1 - last]
    # Between two departures the server works on exactly the batches that depart.
    utilization = services[-last:].sum() / window
    return Simulated(float(window / last), float(utilization), timeline)


def random_cluster(seed):
    """Pieces, groups and k, on either side of saturation, every other one unmerged."""
    rng = np.random.default_rng(seed)
    compute, network, fc, fc_network = np.exp(rng.uniform(-3, 1, 4))
    k = int(rng.integers(1, 9))
    pieces = IterationSeconds(
        k * compute, network / k, fc, merged=seed % 2 == 0, t_fc_network=fc_network
    )
    return pieces, int(rng.integers(1, 2 * saturation(pieces, k) + 2)), k
