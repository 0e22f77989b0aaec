"""Hardware efficiency of compute groups: Omnivore's closed form.

Hadjis et al., "Omnivore" (arXiv 1606.04487), the hardware model. N workers in g groups of k = N / g
share one fully connected (FC) server; `clock/arrivals.py` has T_conv(k), T_fc and the queue itself,
which tests/clock has by hand.

    HE(g) = max(T_fc, (T_conv(k) + T_fc) / g)        seconds an iteration

Unmerged it is the server of the FC model that saturates:
HE = max(T_fc_network, (T_conv + T_fc + T_fc_network) / g). That is exact for constant service and a
lower bound for any other, by which batches meet at the server at times and leave it idle at others.
"""

from optdyn.clock.arrivals import conv_seconds, fc_seconds
from optdyn.clock.cluster import Pieces


def seconds_per_iteration(pieces: Pieces, groups: int, k: int, merged: bool = True) -> float:
    """Returns HE(g): seconds from one update to the next, whichever groups they are of."""
    computed, served = fc_seconds(pieces, merged)
    return max(served, (conv_seconds(pieces, k) + computed + served) / groups)
