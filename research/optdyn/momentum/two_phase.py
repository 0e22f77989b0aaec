"""A meeting as one update: on a quadratic SlowMo and DiLoCo are momentum in another bowl.

On f(x) = 1/2 h x^2 a node makes H updates of SGD with rate alpha from theta, so that the D of what
it sends, and the outer step with rate a and momentum mu, are, in the mean over batches,

    D = theta - x_H = (1 - (1 - alpha h)^H) theta = k theta

    SlowMo   theta'' - theta' = mu (theta' - theta) - a k theta'                      heavy ball
    DiLoCo   theta'' - theta' = mu (theta' - theta) - a (1 + mu) k theta' + a mu k theta
                                                                                      Nesterov

for any number of nodes. k is the *effective curvature*. The larger H is, the nearer k is to 1 in
all but the flattest directions, so that the new bowl is rounder than the old one.

Derived here. "High dimensional theory of two-phase optimizers" (arXiv 2603.26954) calls DiLoCo on
one node LA, with momentum SLA, and speaks of such a transformed spectrum; we read its abstract.
"""

import numpy as np

Array = np.ndarray


def effective_curvature(curvature: Array, learning_rate: float, period: int) -> Array:
    """k of every direction: h, (dimension,), of updates at `learning_rate`, H = `period`."""
    return 1 - (1 - learning_rate * np.asarray(curvature, float)) ** period


def after(
    k: Array, rate: float, momentum: float, nesterov: bool, theta: Array, before: Array
) -> Array:
    """theta after a meeting, from those after the two before it, in the mean over batches."""
    step = momentum * (theta - before) - rate * k * theta
    return theta + step - rate * momentum * k * (theta - before) * nesterov
