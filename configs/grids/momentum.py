"""Does tuning the momentum undo what asynchrony costs? `--config=configs/grids/momentum.py:TABLE`

    mlp, cnn     1, 4 and 16 groups of 16 workers on MNIST, momentum x learning rate x seeds
    closed_loop  the MLP with 16 groups: momentum held by the loop of YellowFin, and fixed

`python -m launch.efficiency --workdir=DIR --target=0.25` tells what a run of g groups
takes at momentum 0.9 and at the best, each with its best learning rate. Momenta go below zero:
the more groups, the more momentum they bring themselves (arXiv 1605.09774). Learning rates are
given as long-run steps alpha / (1 - mu), since the best of those depends little on mu.
"""

from collections.abc import Iterator, Sequence

import optdyn as od
from optdyn.base.errors import entry
from optdyn.train.grid import Point

TOTAL = 0.9  # momentum that is kept where none is tuned
MOMENTA = (-0.3, 0.0, 0.3, 0.6, TOTAL)
SEEDS = (0, 1, 2, 3, 4)
STEPS = {1: 300, 4: 600, 16: 1300}  # in which the good settings pass a training loss of 0.25
MODELS: dict[str, Point] = {
    "mlp": {"model.name": "mlp", "model.hidden": (64,)},
    "cnn": {"model.name": "cnn", "model.channels": (4, 8), "model.hidden": (32,)},
}
LONG_RUN_STEPS = {  # alpha / (1 - mu), around the best of the model and number of groups
    ("mlp", 1): (0.2, 0.4, 0.8, 1.6),
    ("mlp", 4): (0.1, 0.2, 0.4, 0.8),
    ("mlp", 16): (0.05, 0.1, 0.2, 0.4),
    ("cnn", 1): (0.1, 0.2, 0.4, 0.8),
    ("cnn", 4): (0.025, 0.05, 0.1, 0.2),
    ("cnn", 16): (0.025, 0.05, 0.1, 0.2),
}


def get_config(table: str = "mlp") -> od.Grid:
    """Raises `ConfigError` if there is no such table."""
    base = od.config("quickstart").with_(
        data=od.MNIST5k(train_evaluated=500, test_evaluated=50),
        batch_size=32,
        log_every=25,
        checkpoint_every=0,
    )
    return od.Grid(base, entry(TABLES, table)())


def mlp() -> Iterator[Point]:
    return settings("mlp")


def cnn() -> Iterator[Point]:
    return settings("cnn")


def closed_loop() -> Iterator[Point]:
    yield from settings("mlp", groups=(16,), seeds=(0, 1, 2))
    yield from settings("mlp", "closed_loop", (16,), (TOTAL,), (0, 1, 2))


def settings(
    model: str,
    optimizer: str = "sgd",
    groups: Sequence[int] = (1, 4, 16),
    momenta: Sequence[float] = MOMENTA,
    seeds: Sequence[int] = SEEDS,
) -> Iterator[Point]:
    axes = {"seed": seeds, "method.groups": groups, "optimizer.momentum": momenta}
    for point in od.product(axes):
        seed, g, mu = point.values()
        for step in LONG_RUN_STEPS[model, g]:
            yield {
                "name": f"{optimizer}-g{g}-momentum{mu}-step{step}-seed{seed}",
                **MODELS[model],
                **point,
                "optimizer.name": optimizer,
                "optimizer.learning_rate": round(step * (1 - mu), 6),
                "steps": STEPS[g],
            }


TABLES = {table.__name__: table for table in (mlp, cnn, closed_loop)}
