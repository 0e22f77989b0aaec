"""Asynchronous and heavy-ball SGD on a quadratic, simulated in NumPy, for the meter."""

import numpy as np


def simulate(rng, replicas, steps, groups, *, alpha=0.5, noise=0.3, nu=0.0, size=60, in_turn=False):
    """Steps over alpha and gradients (R, T, q) of f = sum_c h_c x_c^2 / 2, all workers at x_0 = 1.

    Memoryless service makes the arriving worker uniform among the groups, constant service makes
    it the next in turn. Gradients have noise of their own.
    """
    h = np.geomspace(0.1, 1, size)
    rows = np.arange(replicas)
    x, v = np.ones((replicas, size)), np.zeros((replicas, size))
    read_params = np.ones((groups, replicas, size))
    steps_of, gradients = np.empty((2, replicas, steps, size))
    for t in range(steps):
        worker = t % groups if in_turn else rng.integers(groups, size=replicas)
        gradients[:, t] = h * x + noise * rng.standard_normal(x.shape)
        stale = h * read_params[worker, rows] + noise * rng.standard_normal(x.shape)
        v = nu * v - stale
        x = x + alpha * v
        read_params[worker, rows] = x
        steps_of[:, t] = v
    return steps_of, gradients
