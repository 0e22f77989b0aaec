"""Random clusters of the hardware model, for its tests and its benchmark."""

import numpy as np

from optdyn.timeline.server import Pieces
from optdyn.tuning.hardware import saturation


def random_cluster(seed):
    """Pieces, groups and k, on either side of saturation, every other one unmerged."""
    rng = np.random.default_rng(seed)
    compute, network, fc, fc_network = np.exp(rng.uniform(-3, 1, 4))
    k = int(rng.integers(1, 9))
    pieces = Pieces(k * compute, network / k, fc, merged=seed % 2 == 0, t_fc_network=fc_network)
    return pieces, int(rng.integers(1, 2 * int(saturation(pieces, k)) + 2)), k
