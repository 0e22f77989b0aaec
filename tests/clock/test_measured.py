"""Shares that follow the measured seconds of real workers."""

import numpy as np
import pytest

from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Measured
from optdyn.clock.timeline import TimelineError
from optdyn.methods.dynamic_batch import DynamicBatch, measured
from tests.clock.conftest import BATCH


def real(worker_seconds, epochs=6, per_epoch=5, **values):
    """What real workers that took those seconds are given next."""
    method = DynamicBatch(adapt=True, smoothing=0.5)
    return measured(
        Cluster(nodes=4, service=Measured(), **values),
        method,
        steps=epochs * per_epoch,
        steps_per_epoch=per_epoch,
        batch_size=BATCH,
        worker_seconds=worker_seconds,
    )


def test_measured_seconds_are_followed_as_simulated_ones_are(run):
    """Told what the simulated workers took, the real ones' timeline gives the same shares."""
    disturbances = ((3, 2, 3, 8),)
    simulated, cost = run(6, 5, disturbances=disturbances)
    taken = simulated.plan.shares[::5] * cost.example  # seconds, (epochs, workers)
    for past in range(7):
        made = real(taken[:past].tolist(), disturbances=disturbances)
        steps = min(past + 1, 6) * 5
        assert len(made.seconds) == steps
        np.testing.assert_array_equal(made.plan.shares, simulated.plan.shares[:steps])
        # The seconds are a prediction, and longer timelines repeat it.
        np.testing.assert_allclose(made.seconds, real(taken.tolist()).seconds[:steps])
    np.testing.assert_array_equal(made.plan.work[::5, 3], [1, 1, 8, 8, 1, 1])
    assert (made.plan.work[:, :3] == 1).all()


def test_seconds_of_real_workers_are_predicted_from_the_epoch_before():
    taken = [[0.5, 0.5, 0.25, 0.125]] * 2
    seconds = np.diff(real(taken, 3, 4).seconds, prepend=0.0)
    # 64 examples each at the 1e-3 s of the config; then shares 32, 32, 64, 128, each in 0.25 s;
    # those took other seconds, which make of them what the third epoch's are expected to take.
    np.testing.assert_allclose(seconds[:8], [0.064] * 4 + [0.25] * 4)
    rates = np.array([32, 32, 64, 128]) / taken[1]
    third = real(taken, 3, 4).plan.shares[-1]
    np.testing.assert_allclose(seconds[8:], (third / rates).max())


def test_work_that_is_not_whole_cannot_be_done():
    with pytest.raises(TimelineError, match="whole numbers"):
        real([], disturbances=((0, 0, 1, 2.5),))
