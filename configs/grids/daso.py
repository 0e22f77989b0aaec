"""DASO against synchronous SGD on MNIST, at equal epochs, learning rate and momentum.

4 nodes of 4 devices, 40 epochs of 31 updates. The plateaus are such that B and W go through their
cycle several times between warm-up and cool-down. Simulated seconds of the two compare in
`analysis.network`, which gives the synchronous runs DASO's network of two levels.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import quickstart
from research.grid import Point, grid

SEEDS = (0, 1, 2, 3, 4)
EPOCHS = 40


def get_config() -> ConfigDict:
    base = quickstart.get_config()
    base.batch_size = 128
    base.steps = EPOCHS * 31
    base.log_every = 31
    base.checkpoint_every = 310
    base.optimizer.learning_rate = 0.03
    base.optimizer.momentum = 0.9
    base.strategy.groups = 1
    base.strategy.max_batches = 4
    base.strategy.wait = 1
    base.strategy.warmup_epochs = 4
    base.strategy.cooldown_epochs = 4
    base.strategy.patience = 1
    base.strategy.threshold = 0.3
    base.cluster.nodes = 4
    base.cluster.devices_per_node = 4
    base.cluster.service = "lognormal"
    base.cluster.variation = 0.1
    base.cluster.latency = 5e-6
    base.cluster.bandwidth = 25e9 / 8  # 25 Gb/s
    base.cluster.local_latency = 2e-6
    base.cluster.local_bandwidth = 100e9
    return grid(base, points())


def points() -> Iterator[Point]:
    for seed in SEEDS:
        for name in ("sync", "daso"):
            yield {"name": f"{name}-seed{seed}", "strategy.name": name, "seed": seed}
