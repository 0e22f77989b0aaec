"""Asynchronous and heavy-ball SGD on a quadratic, simulated in NumPy, for the estimators."""

import numpy as np


def simulate(
    rng, replicas, steps, groups, alpha, *, noise=0.0, mu=0.0, size=8, service="exponential"
):
    """Displacements and gradients (R, T, q) of f = sum_c h_c x_c^2 / 2, all workers at x_0 = 1.

    Memoryless service makes the arriving worker uniform among the groups, constant service makes
    it the next in turn.
    """
    h = np.geomspace(0.1, 1, size)
    rows = np.arange(replicas)
    x, v = np.ones((replicas, size)), np.zeros((replicas, size))
    read_params = np.ones((groups, replicas, size))
    d, gradients = np.empty((2, replicas, steps, size))
    for t in range(steps):
        worker = rng.integers(groups, size=replicas) if service == "exponential" else t % groups
        gradients[:, t] = h * x
        stale = h * read_params[worker, rows] + noise * rng.standard_normal(x.shape)
        v = mu * v - alpha * stale
        x = x + v
        read_params[worker, rows] = x
        d[:, t] = v
    return d, gradients


def heavy_ball(rng, replicas, steps, rate, mu, noise, size, first=None):
    """Synchronous displacements with momentum mu; `first`: learning rate of the first update."""
    h = np.geomspace(0.1, 1, size)
    x, d = np.ones((replicas, size)), np.empty((replicas, steps, size))
    for t in range(steps):
        gradient = h * x + noise * rng.standard_normal(x.shape)
        d[:, t] = mu * d[:, t - 1] - rate * gradient if t else -(first or rate) * gradient
        x = x + d[:, t]
    return d


def expectation(steps, groups, alpha, mu, size=8, replicas=4):
    """E d_t and E G_t of memoryless asynchronous SGD, exact: P(tau_t = k) summed, no sampling."""
    h = np.geomspace(0.1, 1, size)
    x, d = np.ones((steps + 1, size)), np.zeros((steps, size))
    for t in range(steps):
        p = (1 / groups) * (1 - 1 / groups) ** np.arange(t + 1)
        p[t] = (1 - 1 / groups) ** t  # a worker that arrives for the first time read x_0
        d[t] = mu * (d[t - 1] if t else 0) - alpha * h * (p @ x[t::-1])
        x[t + 1] = x[t] + d[t]
    copies = (replicas, steps, size)
    return np.broadcast_to(d, copies), np.broadcast_to(h * x[:-1], copies)


def deviation(value, interval, truth):
    """Distance from the truth in standard errors, read off a 95 % interval."""
    return abs(value - truth) / ((interval[1] - interval[0]) / 3.92)


def config(groups=4, *, mu=0.0, alpha=0.3, name="asynchronous", service="exponential", **cluster):
    shape = {"service": {"name": service}, "nodes": groups, "devices_per_node": 1}
    return {
        "method": {"name": name} if name in ("sync", "daso") else {"name": name, "groups": groups},
        "optimizer": {"name": "sgd", "learning_rate": alpha, "momentum": mu},
        "cluster": shape | cluster,
    }
