"""Schedules over stages, task by task, and the papers' closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock.cluster import Cluster
from optdyn.clock.pipeline import (
    BACKWARD,
    FORWARD,
    UPDATE,
    StageWork,
    pipeline_timeline,
    schedule,
    update_seconds,
)
from optdyn.clock.service import Constant
from tests.clock import by_hand

WHATS = {FORWARD: "F", BACKWARD: "B", UPDATE: "U"}


@st.composite
def works(draw):
    """Whole seconds, which float64 adds without rounding: times are compared as equal."""
    stages = draw(st.integers(1, 5))
    ranges = ((1, 9, stages), (0, 9, stages), (0, 4, stages), (0, 5, stages - 1))
    return [draw(st.lists(st.integers(a, b), min_size=n, max_size=n)) for a, b, n in ranges]


@pytest.mark.parametrize("kind", ["local", "gpipe", "1f1b"])
@given(work=works(), parts=st.integers(1, 6), updates=st.integers(1, 5))
def test_all_tasks_are_done_when_they_are_by_hand(kind, work, parts, updates):
    forward, backward, update, transfer = work
    parts = 1 if kind == "local" else parts
    found = schedule(kind, forward, backward, transfer, updates, parts, update)
    stage, number, part, what = (column.tolist() for column in found[:4])
    keys = list(zip(stage, number, part, map(WHATS.get, what), strict=True))
    tasks = dict(zip(keys, zip(found.start, found.end, strict=True), strict=True))
    assert len(tasks) == len(keys)
    assert tasks == by_hand.staged(kind, forward, backward, update, transfer, parts, updates)
    ends = [max(end for key, (_, end) in tasks.items() if key[1] == t) for t in range(updates)]
    np.testing.assert_array_equal(update_seconds(found), ends)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@given(
    stages=st.integers(1, 6),
    parts=st.integers(1, 8),
    forward=st.integers(1, 9),
    backward=st.integers(0, 9),
    updates=st.integers(1, 3),
)
def test_the_bubble_of_equal_stages(kind, stages, parts, forward, backward, updates):
    """(S - 1) / (M + S - 1), whatever backward takes over forward, and in every update anew."""
    found = schedule(kind, [forward] * stages, backward, 0.0, updates, parts)
    length = (parts + stages - 1) * (forward + backward)
    np.testing.assert_array_equal(update_seconds(found), length * np.arange(1, updates + 1))
    # The order decides what a stage holds: M, or min(S - j, M), from forward to backward.
    more = np.array([1, -1, 0])[found.kind]
    most = [np.cumsum(more[found.stage == stage]).max() for stage in range(stages)]
    least = np.minimum(stages - np.arange(stages), parts)
    np.testing.assert_array_equal(most, least if kind == "1f1b" else [parts] * stages)


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
    cluster = Cluster(nodes=len(forward), bandwidth=1e6, service=Constant())
    made = pipeline_timeline(cluster, micro_batches, work, steps=steps, batch_size=1000)
    if micro_batches:
        f, b, x = forward / micro_batches, backward / micro_batches, sent / 1e6 / micro_batches
        whole = schedule("gpipe", f, b, x, steps, micro_batches)
    else:
        whole = schedule("local", forward, backward, sent / 1e6, steps)
    # Sums of a few hundred floats in another order.
    np.testing.assert_allclose(made.seconds, update_seconds(whole), rtol=1e-12)
