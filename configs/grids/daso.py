"""DASO on MNIST, 4 nodes of 4 devices: `--config=configs/grids/daso.py`.

What does it cost in loss and accuracy, against synchronous SGD with equal epochs, learning rate and
momentum? Losses do not depend on the network: the notebook `daso` computes simulated seconds for
other networks and model sizes from finished runs.
"""

from collections.abc import Iterator

import optdyn as od
from optdyn.train.grid import Point

EPOCHS = 40
GIGABIT = 1e9 / 8  # bytes


def get_config() -> od.Grid:
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
    return od.Grid(base, points())


def points() -> Iterator[Point]:
    for point in od.product({"seed": range(5), "method.name": ("sync", "daso")}):
        seed, name = point.values()
        yield {"name": f"{name}-seed{seed}", **point}
