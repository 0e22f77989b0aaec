"""Presets of the outer rule, 4 nodes of 2 devices: `--config=configs/grids/outer.py[:TABLE]`.

    ladder  learning rates of all arms, one seed: which is best after 400 updates?
    judged  the best rates of all arms and half of them, three other seeds: training loss and
            simulated seconds

`python analysis/best_rates.py WORKDIR` prints the best settings.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import optdyn as od
from optdyn.base.errors import config_variant
from optdyn.train.grid import Point

RATES = od.log_range(0.00625, 0.8, 8)


def _arm(name: str, **keys: Any) -> Point:
    return {"method.name": name, **{f"method.{key}": value for key, value in keys.items()}}


ARMS: Mapping[str, Point] = {
    "synchronous": _arm("model_averaging", period=1),
    "local": _arm("model_averaging"),
    "post-local": _arm("model_averaging", synchronous_updates=100),
    "averaged": _arm("model_averaging", inner_state="averaged"),
    "reset": _arm("model_averaging", inner_state="reset"),
    "diloco": _arm("diloco"),
    "slowmo": _arm("slowmo"),
    "bfloat16": _arm("model_averaging", compression="bfloat16"),
    "top_k": _arm("model_averaging", compression="top_k"),
    "sign": _arm("model_averaging", compression="sign"),
    "powersgd": _arm("model_averaging", compression="powersgd"),
    "synchronous-powersgd": _arm("model_averaging", period=1, compression="powersgd"),
}


# The best rung of `ladder`, whose neighbours are all worse.
CHOSEN = {arm: 0.1 for arm in ARMS} | {
    "synchronous": 0.2,
    "reset": 0.2,
    "diloco": 0.0125,
    "slowmo": 0.05,
    "powersgd": 0.05,
}


def get_config(table: str = "ladder") -> od.Grid:
    base = od.config("quickstart").with_(
        optimizer=od.SGD(momentum=0.9),
        method=od.ModelAveraging(),
        cluster=od.Cluster(nodes=4, devices_per_node=2, bandwidth=1e7),
        steps=400,
        log_every=400,
        checkpoint_every=0,
    )
    return od.Grid(base, config_variant(TABLES, table)())


def _points(rates: Callable[[str], Sequence[float]], seeds: Sequence[int]) -> Iterator[Point]:
    for arm, keys in ARMS.items():
        for rate, seed in product(rates(arm), seeds):
            name = f"{arm}-{rate:.5g}-{seed}"
            yield {"name": name, **keys, "optimizer.learning_rate": rate, "seed": seed}


def ladder() -> Iterator[Point]:
    return _points(lambda arm: RATES, [100])


def judged() -> Iterator[Point]:
    return _points(lambda arm: (CHOSEN[arm], CHOSEN[arm] / 2), range(3))


TABLES = {"ladder": ladder, "judged": judged}
