"""Gossip on 8 nodes of one device: `--config=configs/grids/gossip.py[:TABLE]`.

    ladder  learning rates of all graphs, iid and with shards of different labels, one seed
    judged  the best of these and its two neighbours, three other seeds

`python analysis/best_rates.py WORKDIR` prints the best settings.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

import optdyn as od
from optdyn.base.errors import config_variant
from optdyn.train.grid import Point

RATES = od.log_range(0.05, 1.6, 6)
SHARDS = {"iid": 0.0, "shards": 0.1}
ARMS: Mapping[str, Point] = {
    "all-reduce": {"method.name": "model_averaging", "method.period": 1},
    **{
        graph: {"method.name": "gossip", "method.graph": graph}
        for graph in ("complete", "exponential", "one_peer", "ring")
    },
    **{
        f"{graph}-adapt": {
            "method.name": "gossip",
            "method.graph": graph,
            "method.gossip_order": "adapt",
        }
        for graph in ("one_peer", "ring")
    },
}
# The best rung of `ladder` by `mean_loss` with either kind of data (0.4 of `one_peer-adapt` with
# shards).
CHOSEN: Mapping[str, float] = {arm: 0.4 for arm in ARMS} | {
    arm: 0.8 for arm in ("all-reduce", "one_peer-adapt", "ring-adapt")
}


def get_config(table: str = "ladder") -> od.Grid:
    base = od.config("quickstart").with_(
        method=od.Gossip(),
        cluster=od.Cluster(nodes=8, bandwidth=1e7),
        steps=400,
        log_every=400,
        checkpoint_every=0,
        probes=od.Probes(mean=True),
    )
    return od.Grid(base, config_variant(TABLES, table)())


def _points(rates: Callable[[str], Sequence[float]], seeds: Sequence[int]) -> Iterator[Point]:
    for (shards, alpha), (arm, keys) in product(SHARDS.items(), ARMS.items()):
        for rate, seed in product(rates(arm), seeds):
            name = f"{arm}-{shards}-{rate:.3g}-{seed}"
            varied = {"data.dirichlet": alpha, "optimizer.learning_rate": rate, "seed": seed}
            yield {"name": name, **keys, **varied}


def ladder() -> Iterator[Point]:
    return _points(lambda arm: RATES, [100])


def judged() -> Iterator[Point]:
    return _points(lambda arm: (CHOSEN[arm] / 2, CHOSEN[arm], CHOSEN[arm] * 2), range(3))


TABLES = {"ladder": ladder, "judged": judged}
