"""Every shipped grid: all its points can run, each under a name of its own."""

import importlib
import pkgutil

import pytest

from optdyn import grid
from optdyn.configs import grids

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
