"""Batch shares that follow the workers' speeds, against equal shares, on MNIST.

`--config=configs/grids/dynamic_batch.py[:TABLE]` with TABLE one of

    disturbed      workers of speeds 1, 1, 2, 4, of which the fastest is the slowest in the middle
                   third of the run: do the shares follow, and how late?
    heterogeneity  four workers, the fastest 1, 2, 4 or 8 times the slowest: what is saved?

Only the clocks should differ. With speeds s_i and equal shares an update takes
B / (4 min s) examples' time, with ideal ones B / sum s.
"""

from collections.abc import Iterator

import numpy as np

import optdyn as od
from optdyn.base.errors import config_variant
from optdyn.train.grid import Point


def get_config(table: str = "disturbed") -> od.Grid:
    base = od.config("quickstart").with_(
        method=od.DynamicBatch(),
        cluster=od.Cluster(nodes=4, speeds=(1.0, 1.0, 2.0, 4.0), service=od.LogNormal(0.1)),
        steps=18 * 62,
        log_every=62,
        checkpoint_every=0,
    )
    return od.Grid(base, config_variant(TABLES, table)())


def disturbed() -> Iterator[Point]:
    for seed, adapt in pairs(5):
        yield {
            "name": f"{shares(adapt)}-seed{seed}",
            "cluster.disturbances": ((3, 6, 11, 8.0),),  # speed 4 becomes 1/2 in epochs 6..11
            "method.adapt": adapt,
            "seed": seed,
        }


def heterogeneity() -> Iterator[Point]:
    for ratio in (1, 2, 4, 8):
        for seed, adapt in pairs(3):
            yield {
                "name": f"{shares(adapt)}-ratio{ratio}-seed{seed}",
                "cluster.speeds": tuple(np.geomspace(1, ratio, 4).round(4).tolist()),
                "steps": 6 * 62,
                "method.adapt": adapt,
                "seed": seed,
            }


def pairs(seeds: int) -> Iterator[tuple[int, bool]]:
    for point in od.product({"seed": range(seeds), "adapt": (False, True)}):
        yield point["seed"], point["adapt"]


def shares(adapt: bool) -> str:
    return "adapted" if adapt else "equal"


TABLES = {table.__name__: table for table in (disturbed, heterogeneity)}
