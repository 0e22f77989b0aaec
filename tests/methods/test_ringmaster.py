"""Ringmaster ASGD: its limit, and what runs say of what is dropped."""

import jax
import numpy as np
import pytest

from optdyn.train import trainer
from tests.values import with_values

RUN = {"method.name": "ringmaster", "method.groups": 4, "cluster.service.name": "exponential"}


@pytest.mark.parametrize("outer", ["", "daso+"])
def test_without_a_bound_its_timeline_is_that_of_asynchronous_sgd(config, outer):
    """To the bit, with a network, also inside nodes."""
    values = {
        "cluster.service.name": "exponential",
        "cluster.devices_per_node": 4,
        "batch_size": 16,
    }
    values |= {"cluster.latency": 1e-3, "cluster.local_latency": 1e-3}
    one, other = (
        trainer.prepare(
            with_values(config(values), {"method.name": outer + name, "method.groups": 4})
        ).timeline
        for name in ("ringmaster", "asynchronous")
    )
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_the_summary_says_how_many_were_dropped(config, tmp_path):
    """Only where there is a bound, and of those before the last update."""
    chosen = config(RUN | {"method.delay_bound": 2})
    summary = trainer.train(chosen, tmp_path / "a")
    line = trainer.prepare(chosen).timeline
    assert summary["dropped_arrivals"] == line.plan.dropped.sum() > 0
    assert len(summary["staleness_histogram"]) <= 2 and sum(summary["staleness_histogram"]) == 60
    assert "dropped_arrivals" not in trainer.train(config(RUN), tmp_path / "b")


def test_a_dropped_arrival_takes_its_time_and_its_exchange(config):
    """Groups of 1 and 10 seconds an update, R = 2: all that the slow one has is dropped.

    Whatever it had computed, it begins again when it arrives, after as long as any other.
    """
    values = {**RUN, "cluster.service.name": "constant", "cluster.latency": 0.25}
    values |= {"method.groups": 2, "cluster.nodes": 2, "cluster.speeds": (1.0, 0.1)}
    values |= {"method.delay_bound": 2, "batch_size": 1, "cluster.seconds_per_example": 1.0}
    line = config(values).timeline(steps_per_epoch=10, update_bytes=0)
    free = config({**values, "method.delay_bound": 0})
    every = free.timeline(steps_per_epoch=10, update_bytes=0)
    slow = every.seconds[every.worker == 1]
    assert np.all(line.worker == 0)
    before = np.flatnonzero(line.plan.dropped[:, 1])
    np.testing.assert_array_equal(line.plan.dropped[:, 0], False)
    # Before update t: after that of t - 1, and not after it.
    for t, seconds in zip(before, slow, strict=False):
        assert line.seconds[t - 1] <= seconds <= line.seconds[t]
    assert len(before) > 3
