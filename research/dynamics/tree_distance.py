"""How far gradients lie from where they are applied in the tree of updates: R of Birch SGD.

    x_{k+1} = x_k - gamma grad f(z_k)          R = max over k of dist(x_k, z_k)

    iterations to a squared gradient norm of eps  <=  4 (R + 1) L Delta / eps
                                                      + 8 sigma^2 L Delta / eps^2

(arXiv 2505.09218, Theorem 2.4, as others quote it). Every gradient that is applied is an edge from
x_k to x_{k+1}, and z_k, where it was taken, is a point of the tree. Their distance is the number of
edges to their closest common ancestor, from x_k or from z_k, whichever is more. So R is the largest
staleness of asynchronous SGD, less than the bound of Ringmaster, and S - 1 of S gradients of one
version, as of `k_batch_sync` and `k_sync`. Where the gradients of a worker are one gradient of the
whole batch, as of synchronous SGD with `groups` = 1, it is 0.
"""

import numpy as np


def distances(staleness: np.ndarray) -> np.ndarray:
    """(T, K) distances of K gradients an update, from their staleness, (T, K) or (T,), in updates.

    An update's gradients are K edges, each with gamma = alpha / K, in the order of delivery, so the
    j-th of an update, from 0 on, that is tau updates old is j + K tau edges away.
    """
    late = staleness.reshape(len(staleness), -1)
    gradients = late.shape[1]
    return np.asarray(gradients * late + np.arange(gradients))


def between_meetings(met: np.ndarray, nodes: int) -> np.ndarray:
    """(meetings,) largest distances of local SGD; `met`, (T,) bool: do nodes meet after an update?

    Between two meetings every node makes h updates by itself. The branch from one meeting to the
    next has the gradients of one node after another, n h edges. The last node's last gradient was
    taken h - 1 edges from where all began, the common ancestor, and is applied n h - 1 edges from
    it. The paper adds up the gradients of all nodes, so where models are averaged gamma is that of
    a node over n.
    """
    updates = np.diff(np.flatnonzero(met), prepend=-1)
    return nodes * updates - 1 if nodes > 1 else np.zeros_like(updates)
