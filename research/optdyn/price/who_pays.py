"""Where DiLoCo and top-k pay over synchronous training: one number says it, rho.

    rho = exchange / (c B / n)      an all-reduce, over the seconds in which n workers compute B
                                    examples, c seconds each; B is the gradient noise scale

says how far the batch that synchronous training wants (arXiv 1812.06162) can hide its messages. An
MLP's contest (`analysis/studies/contest.md`) says what a method takes over synchronous training
with its best batch at four rho's. Between them the logarithm of this ratio is a straight line of
log rho, and beyond them it is constant:

    R(method, rho)                              over synchronous training with its best batch
    R(method, rho) / min(1, R(outer momentum))  over the best of that and of outer momentum

B is the mean of tr(Sigma) / |G|^2 over the updates of a synchronous run to the loss in question.
How right this is on networks that nothing was fitted on is question 61 of `analysis/studies`.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from optdyn.clock.network import between_nodes
from optdyn.experiment import Config
from optdyn.price.price import GIGABIT

OUTER = "outer momentum"  # SNOO: `diloco` on one node
# The contest's networks, from the fastest to the slowest: seconds of an all-reduce over those that
# a worker computes for its part of a batch of 64; B is 187 there.
NOISE, BATCH, EXCHANGES = 187.0, 64, (0.2, 2.0, 20 / 3, 20.0)
# Median seconds to a training loss of 0.1, over those of synchronous training with its best batch.
SEEN: Mapping[str, tuple[float, ...]] = {
    OUTER: (0.651, 0.719, 0.948, 1.206),
    "DiLoCo": (0.632, 0.741, 0.592, 0.444),
    "top-k": (1.017, 0.875, 0.578, 0.402),
}
METHODS = tuple(name for name in SEEN if name != OUTER)


def rho(exchange: float, example: float, workers: int, noise_scale: float) -> float:
    """An all-reduce of `exchange` seconds over the computing of the noise scale's examples.

    An example takes a worker `example` seconds.
    """
    return exchange * workers / (example * noise_scale)


KNOWN = tuple(rho(exchange, 1 / BATCH, 1, NOISE) for exchange in EXCHANGES)


def over_best_batch(method: str, rho: float) -> float:
    """R: seconds over those of synchronous training with its best batch."""
    inside = np.clip(rho, KNOWN[0], KNOWN[-1])
    return float(np.exp(np.interp(np.log(inside), np.log(KNOWN), np.log(SEEN[method]))))


def over_best(method: str, rho: float) -> float:
    """Seconds over those of the best of synchronous training and outer momentum on one node."""
    return over_best_batch(method, rho) / min(1.0, over_best_batch(OUTER, rho))


def pays(
    config: Config, size: int, noise_scale: float, bandwidths: Sequence[float]
) -> list[dict[str, float]]:
    """By Gbit/s: rho, and seconds of DiLoCo and top-k over the best synchronous training."""
    cluster, found = config.cluster, list[dict[str, float]]()
    for gigabits in bandwidths:
        exchange = between_nodes(cluster.with_(bandwidth=gigabits * GIGABIT), size)
        there = rho(exchange, cluster.seconds_per_example, cluster.worker_count, noise_scale)
        over = {name: over_best(name, there) for name in METHODS}
        found.append({"gigabits": gigabits, "rho": there, **over})
    return found
