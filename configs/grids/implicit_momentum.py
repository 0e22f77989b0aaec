"""Replicas whose implicit momentum is read: one table a question.

`--config=configs/grids/implicit_momentum.py:TABLE` with TABLE one of

    quadratic    noiseless quadratic, g = 2, ..., 32 memoryless workers, against 1 - 1/g
    calibration  synchronous MLP and CNN with a known explicit momentum: is it recovered?
    mlp, cnn     g = 4, 8, 16 memoryless workers, plain SGD on MNIST, against 1 - 1/g
    two_lags     with explicit momentum: (1 - mu L)(1 - (1 - 1/g) L)
    laws         g = 4 and other service laws than memoryless: how far from one term?

`optdyn momentum DIR --terms=2` reads explicit momentum, too, of calibration and two_lags.
The transient has the information: windows are a few g updates long, and batches are drawn
independently, as in theory.
"""

from collections.abc import Iterator, Mapping

import optdyn as od
from optdyn.base.errors import config_variant
from optdyn.train.grid import Point

QUADRATIC = {"model.name": "quadratic", "batch_size": 1, "replicas.block": 1000}
MLP = {"model.name": "mlp", "model.hidden": (32,)}
CNN = {"model.name": "cnn", "model.channels": (4, 8), "model.hidden": (32,)}
LAWS: dict[str, Point] = {
    "constant": {"cluster.service.name": "constant"},
    "lognormal0.3": {"cluster.service.name": "lognormal", "cluster.service.variation": 0.3},
    "lognormal1": {"cluster.service.name": "lognormal", "cluster.service.variation": 1.0},
    "exponential": {"cluster.service.name": "exponential"},
}


def get_config(table: str = "mlp") -> od.Grid:
    base = od.config("quickstart").with_(
        data=od.MNIST5k(train_examples=250, replacement=True),
        batch_size=128,
        replicas=od.Replicas(subspace=512),
    )
    return od.Grid(base, config_variant(TABLES, table)())


def quadratic() -> Iterator[Point]:
    for g in (2, 4, 8, 16, 32):
        yield {
            "name": f"g{g}",
            **QUADRATIC,
            **asynchronous(g),
            "model.dimension": 8,
            "optimizer.learning_rate": 0.5,
            "steps": 8 + g,
            "replicas.count": 12000,
        }


def calibration() -> Iterator[Point]:
    for model in (MLP, CNN):
        for momentum in (0.3, 0.6, 0.9):
            yield {
                "name": f"{model['model.name']}-{momentum}",
                **model,
                "method.name": "sync",
                "cluster.nodes": 1,
                "optimizer.learning_rate": 0.1,
                "optimizer.momentum": momentum,
                "steps": 8,
                "replicas.count": 800 if momentum < 0.5 else 400,
            }


def mlp() -> Iterator[Point]:
    return transients(MLP, 0.5, {4: 600, 8: 600, 16: 800})


def cnn() -> Iterator[Point]:
    return transients(CNN, 0.2, {4: 400, 8: 400, 16: 500})


def transients(model: Point, rate: float, replicas: Mapping[int, int]) -> Iterator[Point]:
    for g, count in replicas.items():
        yield {
            "name": f"g{g}",
            **model,
            **asynchronous(g),
            "optimizer.learning_rate": rate,
            "steps": 8 + g,
            "replicas.count": count,
        }


def two_lags() -> Iterator[Point]:
    for g in (4, 16):
        for momentum in (0.5, -0.3):
            yield {
                "name": f"g{g}-explicit{momentum}",
                **MLP,
                **asynchronous(g),
                "optimizer.learning_rate": 0.3,
                "optimizer.momentum": momentum,
                "steps": 8,
                "replicas.count": 2000,
            }


def laws() -> Iterator[Point]:
    for name, law in LAWS.items():
        yield {
            "name": name,
            **QUADRATIC,
            **asynchronous(4),
            **law,
            "model.dimension": 32,
            "model.condition": 1000.0,
            "optimizer.learning_rate": 0.3,
            "steps": 40,
            "replicas.count": 4000,
        }


def asynchronous(groups: int) -> Point:
    """Returns keys of one memoryless worker a group; larger groups wait for their slowest."""
    return {
        "method.name": "asynchronous",
        "method.groups": groups,
        "cluster.nodes": groups,
        "cluster.service.name": "exponential",
    }


TABLES = {table.__name__: table for table in (quadratic, calibration, mlp, cnn, two_lags, laws)}
