"""The cluster's pipeline of stages against whole schedules, and its limits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock import pipeline
from optdyn.clock.cluster import Cluster
from optdyn.clock.pipeline import StageWork, of_cluster
from optdyn.clock.service import Constant

WORK = StageWork(
    np.array([0.1, 0.05, 0.15, 0.1]),
    np.array([0.2, 0.15, 0.2, 0.3]),
    np.array([1e6, 2e6, 1e6]),
    np.array([4e6, 4e6, 4e6, 8e6]),
)
RUN = {"steps": 30, "batch_size": 64}


def cluster_of(**values):
    return Cluster(**{"nodes": 4, "service": Constant(), "seconds_per_example": 1e-3, **values})


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.lists(st.integers(0, 30), min_size=5, max_size=5),
    st.integers(0, 3),
    st.integers(1, 12),
)
def test_equal_intervals_are_those_of_the_whole_schedule(forward, backward, micro_batches, steps):
    """Only two updates are scheduled; the others follow as regularly as if they were too."""
    forward = np.array(forward, float)
    backward = np.array(backward[: len(forward)], float)
    sent = np.arange(len(forward) - 1) * 1e6
    work = StageWork(forward, backward, sent, np.zeros(len(forward)))
    chosen = cluster_of(nodes=len(forward), bandwidth=1e6)
    made = of_cluster(chosen, micro_batches, work, steps=steps, batch_size=1000)
    if micro_batches:
        f, b, x = forward / micro_batches, backward / micro_batches, sent / 1e6 / micro_batches
        whole = pipeline.schedule("gpipe", f, b, x, steps, micro_batches)
    else:
        whole = pipeline.schedule("local", forward, backward, sent / 1e6, steps)
    # Sums of a few hundred floats in another order.
    np.testing.assert_allclose(made.seconds, pipeline.seconds(whole), rtol=1e-12)


def test_devices_of_a_node_divide_its_batch_and_average():
    alone = of_cluster(cluster_of(), 0, WORK, **RUN)
    shared = of_cluster(cluster_of(devices_per_node=4), 0, WORK, **RUN)
    np.testing.assert_allclose(shared.seconds, alone.seconds / 4)
    slow = of_cluster(cluster_of(devices_per_node=4, local_bandwidth=1e9), 0, WORK, **RUN)
    # 2 x 3 messages of a quarter of the 8 MB of the last stage
    exchange = 6 * 2e6 / 1e9
    np.testing.assert_allclose(np.diff(slow.seconds), 0.4 * 0.016 + exchange)
