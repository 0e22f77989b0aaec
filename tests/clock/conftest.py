"""What the timeline tests share: four workers whose shares follow their speeds."""

import pytest

from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Constant
from optdyn.methods.dynamic_batch import DynamicBatch, clocked, costs

SPEEDS = (1.0, 1.0, 2.0, 4.0)
BATCH = 256  # 8 divides it, so that the shares of SPEEDS come out even: 32, 32, 64, 128


@pytest.fixture
def run():
    """`run(epochs, per_epoch, adapt=..., smoothing=..., ...)`: timeline and costs of 4 workers."""

    def make_both(epochs, per_epoch, *, adapt=True, smoothing=0.5, seed=0, bytes_=0, **values):
        values = {"nodes": 4, "speeds": SPEEDS, "service": Constant(), **values}
        chosen = Cluster(**values)
        method = DynamicBatch(adapt=adapt, smoothing=smoothing)
        made, _ = clocked(
            chosen,
            method,
            steps=epochs * per_epoch,
            steps_per_epoch=per_epoch,
            batch_size=BATCH,
            update_bytes=bytes_,
            seed=seed,
        )
        return made, costs(chosen, epochs, per_epoch, seed)

    return make_both
