"""Independent geometric staleness: the theory's own law, with no queue behind it.

    P(tau = k) = (1 - p) p^k,   p = 1 - 1/g        (arXiv 1605.09774)

Update t reads version max(t - tau, 0) from a ring of past versions.
"""

import numpy as np

from optdyn.clock.base import Arrival, Timeline

TAIL = 1e-6  # probability of the staleness that the ring cuts off (and redraws)


def ring_size(groups: int) -> int:
    """Versions kept: a power of two beyond which the law has less than `TAIL` left."""
    if groups == 1:
        return 1
    longest = np.log(TAIL) / np.log1p(-1 / groups)
    return int(2 ** np.ceil(np.log2(longest)))


def geometric(
    rng: np.random.Generator, groups: int, mean_seconds: float, shape: tuple[int, ...]
) -> Timeline:
    """Timeline of `shape` (..., steps), seconds between updates exponential with the given mean."""
    slots = ring_size(groups)
    law, clock = rng.spawn(2)  # two streams, so that a longer run begins with the shorter one
    # Inverse of the distribution function, cut at the ring's length.
    u = law.random(shape) * (1 - (1 - 1 / groups) ** slots if groups > 1 else 1)
    tau = np.floor(np.log1p(-u) / np.log1p(-1 / groups)) if groups > 1 else np.zeros(shape)
    t = np.arange(shape[-1])
    staleness = np.minimum(tau, t).astype(np.int32)
    seconds = np.cumsum(clock.exponential(mean_seconds, shape), axis=-1)
    write = np.broadcast_to((t + 1) % slots, shape).astype(np.int32)
    read = ((t - staleness) % slots).astype(np.int32)
    worker = np.zeros(shape, np.int32)
    return Timeline(worker, staleness, seconds, slots, Arrival(worker, read, write))
