"""Where DiLoCo and top-k pay over synchronous training: one number says it, rho.

    rho = exchange / (c B / n)      an all-reduce, over the seconds in which n workers compute B
                                    examples, c seconds each; B is the gradient noise scale

is small where the batch that synchronous training wants (arXiv 1812.06162) hides its messages. An
MLP's contest (`analysis/studies/contest.md`) has the seconds of a method over those of synchronous
training with its best batch, at four rho's. Between these the logarithm of the ratio is linear in
log rho, and beyond them it is constant. B is the mean of tr(Sigma) / |G|^2 over the updates of a
synchronous run to the loss in question. How right this is on networks without a fit is question 61
of `analysis/studies`.
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
    """Returns rho, for an all-reduce of `exchange` seconds and `example` seconds an example."""
    return exchange * workers / (example * noise_scale)


KNOWN = tuple(rho(exchange, 1 / BATCH, 1, NOISE) for exchange in EXCHANGES)


def over_best_batch(method: str, rho: float) -> float:
    """Returns R: seconds over those of synchronous training with its best batch."""
    inside = np.clip(rho, KNOWN[0], KNOWN[-1])
    return float(np.exp(np.interp(np.log(inside), np.log(KNOWN), np.log(SEEN[method]))))


def pays(
    config: Config, size: int, noise_scale: float, bandwidths: Sequence[float]
) -> list[dict[str, float]]:
    """Returns for each Gbit/s rho, and DiLoCo's and top-k's seconds over the best synchronous."""
    cluster, found = config.cluster, list[dict[str, float]]()
    for gigabits in bandwidths:
        exchange = between_nodes(cluster.with_(bandwidth=gigabits * GIGABIT), size)
        ratio = rho(exchange, cluster.seconds_per_example, cluster.worker_count, noise_scale)
        best = min(1.0, over_best_batch(OUTER, ratio))
        over = {name: over_best_batch(name, ratio) / best for name in METHODS}
        found.append({"gigabits": gigabits, "rho": ratio, **over})
    return found
