"""Does tuning the momentum undo what asynchrony costs? `--config=configs/grids/momentum.py:TABLE`

    mlp, cnn     1, 4 and 16 groups of 16 workers on MNIST, momentum x learning rate x seeds

`python -m launch.efficiency --workdir=DIR --target=0.25` prints the updates of g groups with
momentum 0.9 and with the best, both with their best learning rates. Momenta go below zero, for more
groups have more implicit momentum (arXiv 1605.09774). Learning rates are long-run steps
alpha / (1 - mu), the best of which depends little on mu.
"""

from collections.abc import Iterator

import optdyn as od
from optdyn.base.errors import config_variant
from optdyn.train.grid import Point

MOMENTA = (-0.3, 0.0, 0.3, 0.6, 0.9)
SEEDS = (0, 1, 2, 3, 4)
STEPS = {1: 300, 4: 600, 16: 1300}  # in which the good settings pass a training loss of 0.25
TABLES: dict[str, Point] = {
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
    model = config_variant(TABLES, table)
    base = od.config("quickstart").with_(
        data=od.MNIST5k(train_evaluated=500, test_evaluated=50),
        batch_size=32,
        log_every=25,
        checkpoint_every=0,
    )
    return od.Grid(base.with_(model), settings(table))


def settings(model: str) -> Iterator[Point]:
    axes = {"seed": SEEDS, "method.groups": (1, 4, 16), "optimizer.momentum": MOMENTA}
    for point in od.product(axes):
        seed, g, mu = point.values()
        for step in LONG_RUN_STEPS[model, g]:
            yield {
                "name": f"g{g}-momentum{mu}-step{step}-seed{seed}",
                **point,
                "optimizer.learning_rate": round(step * (1 - mu), 6),
                "steps": STEPS[g],
            }
