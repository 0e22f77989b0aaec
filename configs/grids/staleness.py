"""Does the law of staleness matter, or only its mean? `--config=configs/grids/staleness.py:TABLE`

    laws       16 groups whose times are constant, log-normal, exponential, or whose staleness is
               geometric and independent: mean staleness 15 of all, with momentum 0 and 0.9
    variation  log-normal times of standard deviation 0.1 to 3 times their mean

One worker a group, an MLP on MNIST. What a law costs in updates, with its best learning rate:

    python -m launch.efficiency --workdir=DIR --target=0.25 \\
        --where=cluster.service.name=exponential

(of `variation` --where=cluster.service.variation=0.1). Constant times deliver in turn, always 15
updates late, and reach that loss with none of the rates; only geometric staleness is momentum and
nothing else (arXiv 1605.09774).
"""

from collections.abc import Iterable, Iterator

import optdyn as od
from optdyn.base.errors import entry
from optdyn.train.grid import Point

GROUPS = 16
MOMENTA = (0.0, 0.9)
LONG_RUN_STEPS = (0.05, 0.1, 0.2, 0.4)  # alpha / (1 - mu), around the best of `grids/momentum`


def get_config(table: str = "laws") -> od.Grid:
    """Raises `ConfigError` if there is no such table."""
    base = od.config("grids/momentum").base.with_(method=od.Asynchronous(groups=GROUPS), steps=1300)
    return od.Grid(base, settings(entry(TABLES, table)()))


def laws() -> Iterable[Point]:
    return od.product(
        {"cluster.service.name": ("constant", "lognormal", "exponential", "geometric")}
    )


def variation() -> Iterable[Point]:
    return od.product(
        {"cluster.service.name": ("lognormal",), "cluster.service.variation": (0.1, 0.3, 1.0, 3.0)}
    )


def settings(laws: Iterable[Point]) -> Iterator[Point]:
    seeds_and_momenta = {"seed": (0, 1, 2), "optimizer.momentum": MOMENTA}
    for law in laws:
        name = "-".join(map(str, law.values()))
        for point in od.product(seeds_and_momenta):
            seed, mu = point.values()
            for step in LONG_RUN_STEPS:
                yield {
                    "name": f"{name}-momentum{mu}-step{step}-seed{seed}",
                    **law,
                    **point,
                    "optimizer.learning_rate": round(step * (1 - mu), 6),
                }


TABLES = {table.__name__: table for table in (laws, variation)}
