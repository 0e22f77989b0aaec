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
COUNTS = {"dynamic_batch-disturbed": 10, "meter-None": 4, "quickstart-None": 608, "local-mlp": 12}
SMALL = {"quadratic": 5, "calibration": 6, "mlp": 3, "laws": 4}
COUNTS |= {f"implicit_momentum-{table}": count for table, count in SMALL.items()}


def flat(values, prefix=""):
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def named(module, table):
    return f"{module.__name__.rpartition('.')[2]}-{table}"


@pytest.mark.parametrize(("module", "table"), TABLES, ids=[named(*each) for each in TABLES])
def test_all_points_can_run(module, table):
    config = module.get_config(table) if table else module.get_config()
    points = dict(grid.named(config))  # refuses names that occur twice
    assert len(points) == COUNTS.get(named(module, table), len(points))
    for name, point in points.items():
        made = dict(flat(grid.resolve(config, name, point).to_dict()))
        assert all(made[key] == value for key, value in point.items() if key != "name")
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
