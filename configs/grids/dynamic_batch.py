"""Shares of the batch that follow the workers' speeds, against equal shares, on MNIST.

Four workers of speeds 1, 1, 2, 4; over the middle third of the run the fastest becomes the slowest.
Every update is that of the whole batch, so the accuracies should agree and only the clock differ.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import quickstart
from research.grid import Point, grid

SEEDS = (0, 1, 2, 3, 4)


def get_config() -> ConfigDict:
    base = quickstart.get_config()
    base.steps = 18 * 62  # epochs of 62 updates
    base.log_every = 62
    base.checkpoint_every = 0
    base.strategy.name = "dynamic_batch"
    base.strategy.groups = 1
    base.cluster.nodes = 4
    base.cluster.speeds = (1.0, 1.0, 2.0, 4.0)
    base.cluster.service = "lognormal"
    base.cluster.variation = 0.1
    base.cluster.disturbances = ((3, 6, 11, 8.0),)  # speed 4 becomes 1/2 in epochs 6..11
    return grid(base, points())


def points() -> Iterator[Point]:
    for seed in SEEDS:
        for name, adapt in (("equal", False), ("adapted", True)):
            yield {"name": f"{name}-seed{seed}", "strategy.adapt": adapt, "seed": seed}
