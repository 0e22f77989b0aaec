"""Groups that queue for a server, and how a config comes to be such a cluster."""

import numpy as np
import pytest

from optdyn.clock.cluster import Pieces
from optdyn.experiment import Config
from tests.tune.hardware import seconds_per_iteration

PIECES = {"conv_compute": 12.0, "conv_network": 0.5, "fc": 1.0, "fc_network": 2.0}
CHOSEN = {f"cluster.pieces.{name}": value for name, value in PIECES.items()}
FRESH = ("hidden0", "hidden1", "classifier")  # the dense part of the network below
NETWORK = {"model.name": "cnn", "model.hidden": (5, 5), "model.channels": (2,)}


def of(values, replicas=0):
    """The timeline of a run with these differences from the default."""
    config = Config().with_(NETWORK | CHOSEN | values)
    return config.timeline(steps_per_epoch=10, update_bytes=10**9, replicas=replicas)


@pytest.mark.parametrize("fresh", [FRESH, ()])
@pytest.mark.parametrize("groups", [1, 2, 4, 8, 16])
def test_asynchronous_runs_follow_the_closed_form(groups, fresh):
    """After the first round, HE(g) seconds an update of constant service; merged if fresh."""
    values = {"method.name": "asynchronous", "method.groups": groups, "method.fresh": fresh}
    timeline = of(values | {"cluster.nodes": 16, "cluster.service.name": "constant", "steps": 320})
    expected = seconds_per_iteration(Pieces(**PIECES), groups, 16 // groups, bool(fresh))
    # Two marks whole rounds apart. Rounding of 320 float64 additions.
    found = (timeline.seconds[-1] - timeline.seconds[-1 - 160]) / 160
    assert found == pytest.approx(expected, rel=1e-12)
    np.testing.assert_array_equal(timeline.staleness, np.minimum(np.arange(320), groups - 1))
