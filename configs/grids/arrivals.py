"""Late gradients of 16 groups, by several methods: `--config=configs/grids/arrivals.py:TABLE`.

    ladder  learning rates of all arms, one seed: which is best after 400 updates?
    judged  the best rates of all arms, three other seeds: training loss and simulated seconds

Arms compensate the delay, give late gradients a smaller rate, or wait for several (K = 8). Service
is memoryless and the network free. `python analysis/best_rates.py WORKDIR` prints the best
settings.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import optdyn as od
from optdyn.base.errors import config_variant
from optdyn.clock.versions import WAITING
from optdyn.train.grid import Point

GROUPS = 16
RATES = od.log_range(0.0125, 3.2, 9)
LATE = ("inverse", "bounded", "power")


def _chained(name: str, **options: Any) -> Point:
    options = {f"optimizer.chain_options.{key}": value for key, value in options.items()}
    return {"optimizer.chain": (name,), **options}


def _waiting(waiting: str) -> Point:
    return {
        "method.name": "buffered",
        "method.groups": GROUPS,
        "method.arrivals": 8,
        "method.waiting": waiting,
    }


ARMS: Mapping[str, Point] = {
    "synchronous": {"method.name": "sync"},
    "asynchronous": {},
    "compensated": _chained("delay_compensation"),
    "compensated-adaptive": _chained("delay_compensation", adaptive=True, lam=2.0),
    **{f"rate-{law}": _chained("staleness_rate", law=law) for law in LATE},
    **{waiting: _waiting(waiting) for waiting in WAITING},
}
# The best rung of `ladder`, whose neighbours are both worse.
CHOSEN = {
    "synchronous": 0.8,
    "asynchronous": 0.1,
    "compensated": 0.1,
    "compensated-adaptive": 0.2,
    "rate-inverse": 0.4,
    "rate-bounded": 0.2,
    "rate-power": 0.1,
    "k_sync": 0.8,
    "k_batch_sync": 0.8,
    "k_async": 0.8,
    "k_batch_async": 0.4,
}


def get_config(table: str = "ladder") -> od.Grid:
    base = od.config("quickstart").with_(
        method=od.Asynchronous(groups=GROUPS), steps=400, log_every=400, checkpoint_every=0
    )
    return od.Grid(base, config_variant(TABLES, table)())


def _point(arm: str, rate: float, seed: int) -> Point:
    name = f"{arm},{rate:.5g},{seed}"
    return {"name": name, **ARMS[arm], "optimizer.learning_rate": rate, "seed": seed}


def ladder() -> Iterator[Point]:
    return (_point(arm, rate, 100) for arm in ARMS for rate in RATES)


def judged() -> Iterator[Point]:
    return (_point(arm, rate, seed) for arm, rate in CHOSEN.items() for seed in range(3))


TABLES = {"ladder": ladder, "judged": judged}
