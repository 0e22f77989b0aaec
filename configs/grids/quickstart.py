"""Asynchrony begets momentum, on MNIST: the curves, then the fit.

16 workers in g groups, with explicit momentum 0.9 whatever g (`fixed`), and with the explicit
momentum that leaves a total of 0.9 beside the implicit 1 - 1/g (`compensated`), below zero at
g = 16. The learning rate keeps alpha / (1 - mu), the long-run step, the same everywhere.
Then replicas of plain SGD with g memoryless workers, for the fit of the implicit momentum.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import quickstart
from research.grid import Point, grid

TOTAL = 0.9  # momentum that suits the synchronous run
LONG_RUN_STEP = 0.3  # alpha / (1 - mu)
SEEDS = (0, 1, 2)
GROUPS = (2, 4, 8, 16)


def get_config() -> ConfigDict:
    base = quickstart.get_config()
    base.steps = 1000
    return grid(base, [*training(), *fits()])


def training() -> Iterator[Point]:
    methods = {"sync": ("sync", 1, TOTAL)}
    for g in GROUPS:
        methods[f"g{g}-fixed"] = ("asynchronous", g, TOTAL)
        methods[f"g{g}-compensated"] = ("asynchronous", g, round(TOTAL - (1 - 1 / g), 4))
    for name, (strategy, groups, momentum) in methods.items():
        for seed in SEEDS:
            yield {
                "name": f"{name}-seed{seed}",
                "strategy.name": strategy,
                "strategy.groups": groups,
                "optimizer.momentum": momentum,
                "optimizer.learning_rate": round(LONG_RUN_STEP * (1 - momentum), 6),
                "seed": seed,
            }


def fits() -> Iterator[Point]:
    """The transient carries the information: a few g updates, and many replicas."""
    for g in GROUPS:
        yield {
            "name": f"fit-g{g}",
            "strategy.groups": g,
            "cluster.nodes": g,
            "optimizer.learning_rate": 0.5,
            "steps": 8 + g,
            "replicas.count": 400,
            "replicas.subspace": 512,
            "batch_size": 128,
            "model.hidden": (32,),
            "data.train_examples": 250,
            "data.replacement": True,
        }
