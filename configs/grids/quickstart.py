"""Asynchrony begets momentum, on MNIST: the curves, then the fit.

16 workers in g groups, with explicit momentum 0.9 whatever g (`fixed`), and with the explicit
momentum that leaves a total of 0.9 beside the implicit 1 - 1/g (`compensated`), below zero at
g = 16. The learning rate keeps alpha / (1 - mu), the long-run step, the same everywhere.
Then replicas of plain SGD with g memoryless workers, for the fit of the implicit momentum.
"""

from ml_collections import ConfigDict

from configs import quickstart
from research.grid import grid

TOTAL = 0.9  # momentum that suits the synchronous run
LONG_RUN_STEP = 0.1  # alpha / (1 - mu)
GROUPS = (2, 4, 8, 16)


def get_config() -> ConfigDict:
    base = quickstart.get_config()
    return grid(base, [*training(), *fits(GROUPS)])


def training() -> list[dict]:
    points = [{"name": "sync", "strategy.name": "sync", "strategy.groups": 1, **explicit(TOTAL)}]
    for groups in GROUPS:
        left = round(TOTAL - (1 - 1 / groups), 4)
        for policy, momentum in (("fixed", TOTAL), ("compensated", left)):
            name = f"g{groups}-{policy}"
            points.append({"name": name, "strategy.groups": groups, **explicit(momentum)})
    return points


def explicit(momentum: float) -> dict:
    rate = round(LONG_RUN_STEP * (1 - momentum), 6)
    return {"optimizer.momentum": momentum, "optimizer.learning_rate": rate}


def fits(groups: tuple[int, ...]) -> list[dict]:
    """The transient carries the information: a few g updates, and many replicas."""
    return [
        {
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
        for g in groups
    ]
