"""What the timeline tests share: clusters by their differences from the default."""

import pytest
from ml_collections import ConfigDict

from optdyn.config import default
from optdyn.timeline.dynamic_batch import costs, dynamic_batch
from tests.values import as_cluster, as_strategy

SPEEDS = (1.0, 1.0, 2.0, 4.0)
BATCH = 256  # 8 divides it, so that the shares of SPEEDS come out even: 32, 32, 64, 128


@pytest.fixture(scope="session")
def cluster():
    """`cluster(nodes=4, ...)`: the default `config.cluster` with those values."""

    def make(**values):
        cluster = default().cluster
        cluster.update(values)
        return cluster

    return make


@pytest.fixture
def run(cluster):
    """`run(epochs, per_epoch, adapt=..., smoothing=..., ...)`: timeline and costs of 4 workers."""

    def make_both(epochs, per_epoch, *, adapt=True, smoothing=0.5, seed=0, bytes_=0, **values):
        values = {"nodes": 4, "speeds": SPEEDS, "service": "constant", **values}
        chosen, strategy = cluster(**values), ConfigDict({"adapt": adapt, "smoothing": smoothing})
        made = dynamic_batch(
            as_cluster(chosen),
            as_strategy(strategy),
            steps=epochs * per_epoch,
            steps_per_epoch=per_epoch,
            batch_size=BATCH,
            update_bytes=bytes_,
            seed=seed,
        )
        return made, costs(as_cluster(chosen), epochs, per_epoch, seed)

    return make_both
