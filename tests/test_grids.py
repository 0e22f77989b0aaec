"""Every shipped grid: all its points can run, each under a name of its own."""

import importlib
import pkgutil

import pandas as pd
import pytest

from analysis import best_rates
from configs import grids
from configs.grids import workers
from optdyn.train import grid

MODULES = [
    importlib.import_module(f"{grids.__name__}.{m.name}")
    for m in pkgutil.iter_modules(grids.__path__)
]
TABLES = [(m, table) for m in MODULES for table in getattr(m, "TABLES", [None])]


@pytest.mark.parametrize(
    ("module", "table"), TABLES, ids=[f"{m.__name__.rpartition('.')[2]}-{t}" for m, t in TABLES]
)
def test_all_points_can_run(module, table):
    config = module.get_config(table) if table else module.get_config()
    points = dict(grid.named(config))  # refuses names that occur twice
    for name, point in points.items():
        grid.resolve(config, name, point)
    if table:
        assert f"    {table}" in module.__doc__ or f", {table}" in module.__doc__


def test_the_ladder_of_workers_has_a_row_an_arm_however_small_its_rates():
    rates = {point["name"]: point["optimizer.learning_rate"] for point in workers.ladder()}
    table = pd.DataFrame({"point": rates.keys(), "optimizer.learning_rate": rates.values()})
    loss = table["optimizer.learning_rate"]  # so that of every arm the smallest rate is the best
    others = {"status": "completed", "simulated_seconds": 1.0, "sent_bytes": 0}
    table = table.assign(train_loss=loss, **others)
    rows = [line.split(" | ")[:2] for line in best_rates.rows(table)]
    least = {arm: min(workers.LOWER.get(arm, workers.RATES)) for arm in workers.ARMS}
    assert dict(rows) == {f"| {arm}": f"{rate:.3g}" for arm, rate in least.items()}
    assert len(rows) == len(least)
