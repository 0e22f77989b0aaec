"""DASO on MNIST, 4 nodes of 4 devices: `--config=configs/grids/daso.py[:TABLE]`.

    daso    against synchronous SGD at equal epochs, learning rate and momentum: what does it cost
            in loss and accuracy?
    rates   batches B between exchanges x bandwidth between the nodes, B kept throughout: where is
            the network so slow that a larger B pays, and what does it cost in loss?

40 epochs of 31 updates. The plateaus of `daso` are such that B and W go through their cycle several
times between warm-up and cool-down. Losses do not depend on the network: simulated seconds of the
two at other networks and sizes of model are computed from finished runs by the notebook `daso`,
which gives the synchronous ones DASO's network of two levels. `rates` has them as DASO that always
blocks.
"""

from collections.abc import Iterator

import optdyn as od
from optdyn.base.errors import entry
from optdyn.train.grid import Point

EPOCHS = 40
GIGABIT = 1e9 / 8  # bytes


def get_config(table: str = "daso") -> od.Grid:
    """Raises `ConfigError` if there is no such table."""
    base = od.config("quickstart").with_(
        method=od.DASO(
            max_batches=4, wait=1, warmup_epochs=4, cooldown_epochs=4, patience=1, threshold=0.3
        ),
        optimizer=od.SGD(0.03, momentum=0.9),
        cluster=od.Cluster(
            nodes=4,
            devices_per_node=4,
            service=od.LogNormal(0.1),
            latency=5e-6,
            bandwidth=25 * GIGABIT,
            local_latency=2e-6,
            local_bandwidth=100e9,
        ),
        batch_size=128,
        steps=EPOCHS * 31,
        log_every=31,
        checkpoint_every=310,
    )
    return od.Grid(base, entry(TABLES, table)())


def daso() -> Iterator[Point]:
    for point in od.product({"seed": range(5), "method.name": ("sync", "daso")}):
        seed, name = point.values()
        yield {"name": f"{name}-seed{seed}", **point}


def rates() -> Iterator[Point]:
    """An update of the model is 204 kB and 8 ms of computing; 1 Gb/s takes 2.4 ms to average it."""
    for point in od.product(
        {"seed": range(3), "gigabits": (10, 1, 0.3, 0.1), "batches": (0, 2, 4, 8)}
    ):
        seed, gigabits, batches = point.values()
        method = f"every{batches}" if batches else "blocking"
        yield {
            "name": f"{method}-{gigabits}Gbps-seed{seed}",
            "method.max_batches": max(batches, 1),
            "method.wait": max(batches // 4, 1),
            "method.warmup_epochs": 4 if batches else EPOCHS,
            "method.patience": EPOCHS,  # no plateau: B and W stay
            "cluster.bandwidth": gigabits * GIGABIT,
            "seed": seed,
        }


TABLES = {table.__name__: table for table in (daso, rates)}
