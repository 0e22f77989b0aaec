"""The largest step at which delayed SGD on a quadratic is stable, for the arrivals of a cluster.

    x_{t+1} = x_t - a x_{r(t)}          a = alpha lambda, of the direction with curvature lambda

The limit a* is the a at which E x_t^2 over replicas of the arrivals neither grows nor falls. It is
2 without staleness, and 2 sin(pi / (4 tau + 2)) with the constant staleness tau.
"""

import numpy as np

from optdyn.clock.timeline import Timeline

STEPS = np.geomspace(2.0**-9, 2.0, 161)  # values of a, in ratios of 1.044


def limit(arrivals: Timeline) -> float:
    """Returns a*, from arrivals (replicas, steps); infinite where nothing is stale."""
    if not arrivals.staleness.any():
        return np.inf
    replicas, updates = arrivals.worker.shape
    replica = np.arange(replicas)
    x = np.ones((replicas, len(STEPS)))
    slots = np.ones((arrivals.slots, *x.shape))
    sizes = np.zeros((2, len(STEPS)))  # sums of E x^2 over the second and the last quarter
    slots_of = zip(arrivals.plan.read.T, arrivals.plan.write.T, strict=True)
    for t, (read, write) in enumerate(slots_of):
        x = x - STEPS * slots[read, replica]
        slots[write, replica] = x
        quarter = 4 * t // updates
        if quarter in (1, 3):
            sizes[quarter // 2] += np.mean(x**2, axis=0)
    growing = sizes[1] > sizes[0]
    return float(STEPS[np.argmax(growing)]) if growing.any() else float(STEPS[-1])
