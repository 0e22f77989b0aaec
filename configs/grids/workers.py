"""Eight workers with separate parameters: `--config=configs/grids/workers.py[:TABLE]`.

    ladder  learning rates of all arms, one seed: which is best after 2000 updates?
    judged  the best rates of all arms, three other seeds: training loss and simulated seconds

`python analysis/best_rates.py WORKDIR` prints the best settings.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import optdyn as od
from optdyn.base.errors import config_variant
from optdyn.train.grid import Point

RATES = od.log_range(0.00625, 6.4, 11)
LOWER = {"nesterov": od.log_range(0.0000488281, 0.00625, 8)}  # of arms whose best is not among them


def _arm(name: str, momentum: float = 0.0, **keys: Any) -> Point:
    others = {f"method.{key}": value for key, value in keys.items()}
    return {"method.name": name, "method.groups": 8, "optimizer.momentum": momentum, **others}


ARMS: Mapping[str, Point] = {
    "asynchronous": _arm("asynchronous"),
    "elastic": _arm("elastic"),
    "elastic-every": _arm("elastic", period=1),
    "elastic-momentum": _arm("elastic", momentum=0.9),
    "delayed": _arm("async_local_sgd"),
    "nesterov": _arm("async_local_sgd", momentum_delay=1),
    "plain": _arm("async_local_sgd", outer_learning_rate=1.0, outer_momentum=0.0),
    "ring": _arm("ad_psgd"),
    "complete": _arm("ad_psgd", graph="complete"),
    "ring-momentum": _arm("ad_psgd", momentum=0.9),
}

# The best rung of `ladder`, whose neighbours are all worse.
CHOSEN: Mapping[str, float] = {arm: 0.8 for arm in ARMS} | {
    "asynchronous": 0.2,
    "elastic-momentum": 0.2,
    "delayed": 0.4,
    "nesterov": 0.000390625,
}


def get_config(table: str = "ladder") -> od.Grid:
    base = od.config("quickstart").with_(
        cluster=od.Cluster(nodes=8, bandwidth=1e7), log_every=2000, checkpoint_every=0
    )
    return od.Grid(base, config_variant(TABLES, table)())


def _point(arm: str, rate: float, seed: int) -> Point:
    name = f"{arm}-{rate:.5g}-{seed}"
    return {"name": name, **ARMS[arm], "optimizer.learning_rate": rate, "seed": seed}


def ladder() -> Iterator[Point]:
    return (_point(arm, rate, 100) for arm in ARMS for rate in LOWER.get(arm, RATES))


def judged() -> Iterator[Point]:
    return (_point(arm, rate, seed) for arm, rate in CHOSEN.items() for seed in range(3))


TABLES = {"ladder": ladder, "judged": judged}
