"""The updates of methods to a loss: `optdyn sweep --config=grids/which[:TABLE] --workdir=WORKDIR`.

`optdyn price --penalty=WORKDIR` multiplies them by seconds.

    sgd, adam   8 workers with SGD and momentum, or with Adam
    both        the two in one workdir; `--where=optimizer.name=adam` selects one

A worker has 8 examples for its part of an update, and synchronous training also larger batches.
Rates, momenta and outer numbers are tuned for all arms; ranges were chosen with seed 100, which is
not here.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import optdyn as od
from optdyn.base.errors import config_variant
from optdyn.train.grid import Point

NOTE = """\
How many updates do nodes that meet seldom, and workers that do not wait, take to a training loss,
over tuned synchronous training? A perceptron with 32 hidden units, 4,000 images, 8 workers."""
SEEDS = tuple(range(5))
HIGH, LOW = (0.6, 0.8, 0.9, 0.95), (-0.3, 0.0, 0.3)  # momenta of waiting and other workers
AVERAGED = ((1.0, 0.0),)  # outer rate and momentum of plain averaging
LARGE = (0.8, 1.6, 3.2, 6.4)  # long-run steps of synchronous SGD
FAST, MIDDLE = (0.008, 0.016, 0.032, 0.064), (0.004, 0.008, 0.016, 0.032)  # rates of Adam
SYNC: Point = {"method.name": "sync"}
ADAM_OUTER = ((1.0, 0.5), (0.7, 0.5), (0.7, 0.8))


class TunedMethod(NamedTuple):
    method: Point
    batch: int
    updates: int
    momenta: Sequence[float]
    steps: Sequence[float]  # long-run, alpha / (1 - mu)
    rates: Sequence[float]  # of Adam
    outer: Sequence[tuple[float, float]] = AVERAGED  # with SGD
    adam_outer: Sequence[tuple[float, float]] = AVERAGED


def _meeting(name: str, period: int) -> Point:
    return {"method.name": name, "method.period": period}


ARMS = {
    "sync-64": TunedMethod(SYNC, 64, 200, HIGH, (0.4, 0.8, 1.6, 3.2), FAST),
    "sync-256": TunedMethod(SYNC, 256, 100, HIGH, LARGE, FAST),
    "sync-1024": TunedMethod(SYNC, 1024, 80, HIGH, LARGE, FAST),
    "averaging-8": TunedMethod(
        _meeting("model_averaging", 8), 64, 300, HIGH, (0.2, 0.4, 0.8, 1.6), (0.008, 0.016, 0.032)
    ),
    "averaging-32": TunedMethod(
        _meeting("model_averaging", 32), 64, 450, HIGH, (0.1, 0.2, 0.4, 0.8), (0.008, 0.016, 0.032)
    ),
    "diloco-8": TunedMethod(
        _meeting("diloco", 8),
        64,
        250,
        (0.0, 0.6),
        (0.1, 0.2, 0.4),
        MIDDLE,
        ((0.7, 0.8), (0.7, 0.9), (1.0, 0.5), (1.0, 0.8)),
        ADAM_OUTER,
    ),
    "diloco-32": TunedMethod(
        _meeting("diloco", 32),
        64,
        350,
        (0.6, 0.9),
        (0.2, 0.4, 0.8),
        MIDDLE,
        ((1.0, 0.3), (1.0, 0.5), (1.0, 0.8), (0.7, 0.5)),
        ADAM_OUTER,
    ),
    "asynchronous": TunedMethod(
        {"method.name": "asynchronous", "method.groups": 8},
        8,
        1600,
        LOW,
        (0.05, 0.1, 0.2),
        (0.001, 0.002, 0.004, 0.008),
    ),
}


def get_config(table: str = "both") -> od.Grid:
    base = od.config("quickstart").with_(
        model=od.MLP(hidden=(32,)),
        data=od.MNIST5k(train_evaluated=1000, test_evaluated=10),
        method=od.Sync(),
        cluster=od.Cluster(nodes=8, service=od.LogNormal(0.3)),
        checkpoint_every=0,
    )
    return od.Grid(base, config_variant(TABLES, table)(), NOTE)


def sgd() -> Iterator[Point]:
    for name, arm in ARMS.items():
        for mu, step, outer in itertools.product(arm.momenta, arm.steps, arm.outer):
            setting = {"optimizer.momentum": mu, "optimizer.learning_rate": step * (1 - mu)}
            yield from _seeds(f"{name}-sgd-{mu}-{step}", arm, setting, outer)


def adam() -> Iterator[Point]:
    for name, arm in ARMS.items():
        for rate, outer in itertools.product(arm.rates, arm.adam_outer):
            setting = {"optimizer.name": "adam", "optimizer.learning_rate": rate}
            yield from _seeds(f"{name}-adam-{rate}", arm, setting, outer)


def both() -> Iterator[Point]:
    return itertools.chain(sgd(), adam())


def _seeds(
    name: str, arm: TunedMethod, setting: Point, outer: tuple[float, float]
) -> Iterator[Point]:
    rate, momentum = outer
    if arm.method["method.name"] == "diloco":
        name = f"{name}-{rate}-{momentum}"
        setting = {**setting, "method.outer_learning_rate": rate, "method.outer_momentum": momentum}
    for seed in SEEDS:
        yield {
            "name": f"{name}-seed{seed}",
            **arm.method,
            "batch_size": arm.batch,
            "steps": arm.updates,
            "log_every": max(arm.updates // 40, 2 if arm.batch > 256 else 5),
            **setting,
            "seed": seed,
        }


TABLES = {"sgd": sgd, "adam": adam, "both": both}
