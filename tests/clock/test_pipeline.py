"""Schedules over stages: every constraint checked task by task, and the papers' closed forms."""

from typing import NamedTuple

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
    _stage_seconds,
    pipeline_timeline,
    schedule,
    update_seconds,
)
from optdyn.clock.service import Constant
from optdyn.clock.timeline import TimelineError
from tests.clock.schedules import memory, steady_utilization, utilization


class Work(NamedTuple):
    """Whole seconds, which float64 adds without rounding: times are compared as equal."""

    forward: list[int]
    backward: list[int]
    update: list[int]
    transfer: list[int]
    micro_batches: int
    updates: int

    @property
    def each(self):
        """(S,) seconds of a stage a micro-batch, with the update."""
        return np.sum([self.forward, self.backward, self.update], axis=0)


def whole(least, most, size):
    return st.lists(st.integers(least, most), min_size=size, max_size=size)


@st.composite
def works(draw):
    stages = draw(st.integers(1, 5))
    return Work(
        draw(whole(1, 9, stages)),
        draw(whole(0, 9, stages)),
        draw(whole(0, 4, stages)),
        draw(whole(0, 5, stages - 1)),
        draw(st.integers(1, 6)),
        draw(st.integers(1, 5)),
    )


def of_local(work):
    seconds = work.forward, work.backward, work.transfer
    return schedule("local", *seconds, work.updates, update=work.update)


def of_pipeline(kind, work):
    micro = (work.updates, work.micro_batches)
    return schedule(kind, work.forward, work.backward, work.transfer, *micro, work.update)


def tasks(schedule):
    """{(stage, update, micro-batch, kind): (start, end)}, every task once."""
    keys = list(zip(*(column.tolist() for column in schedule[:4]), strict=True))
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, zip(schedule.start, schedule.end, strict=True), strict=True))


def check(schedule, work, micro_batches, gradients_travel):
    """All work is done once, one task at a time, none before its input and none later than need be.

    The order that a stage follows is read off the schedule; everything else is said here anew.
    """
    done = tasks(schedule)
    durations = {FORWARD: work.forward, BACKWARD: work.backward, UPDATE: work.update}
    wanted = {
        (stage, t, m, kind)
        for stage in range(len(work.forward))
        for t in range(work.updates)
        for kind in (FORWARD, BACKWARD, UPDATE)
        for m in (range(micro_batches) if kind != UPDATE else (-1,))
    }
    assert set(done) == wanted
    clock = dict.fromkeys(range(len(work.forward)), 0.0)
    for (stage, t, m, kind), (start, end) in done.items():
        assert end - start == durations[kind][stage]
        needs = clock[stage]
        if kind == FORWARD and stage > 0:
            needs = max(needs, done[stage - 1, t, m, kind][1] + work.transfer[stage - 1])
        if kind == BACKWARD and gradients_travel and stage + 1 < len(work.forward):
            needs = max(needs, done[stage + 1, t, m, kind][1] + work.transfer[stage])
        # `clock` is the end of what the stage did before: nothing overlaps, nothing is put off.
        assert start == needs
        clock[stage] = end
        if kind == BACKWARD:
            assert done[stage, t, m, FORWARD][1] <= start
        if kind == UPDATE:
            assert all(done[stage, t, i, BACKWARD][1] <= start for i in range(micro_batches))
        if t > 0:
            assert done[stage, t - 1, -1, UPDATE][1] <= start
    per_update = micro_batches * (sum(work.forward) + sum(work.backward)) + sum(work.update)
    assert (schedule.end - schedule.start).sum() == work.updates * per_update


@given(works())
def test_local_keeps_to_its_dependencies(work):
    check(of_local(work), work, 1, gradients_travel=False)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@given(work=works())
def test_pipelines_keep_to_their_dependencies(kind, work):
    check(of_pipeline(kind, work), work, work.micro_batches, gradients_travel=True)


@given(works())
def test_local_by_its_closed_form(work):
    """A stage is held up by the slowest up to it: stage j begins update t at sum f + t max c."""
    sent = np.concatenate([[0], np.cumsum(np.add(work.forward[:-1], work.transfer))])
    slowest = work.each.max()
    wanted = (sent + work.each).max() + slowest * np.arange(work.updates)
    made = of_local(work)
    np.testing.assert_array_equal(update_seconds(made), wanted)
    begun = made.start[made.kind == FORWARD].reshape(work.updates, -1)
    held_up = np.maximum.accumulate(work.each)
    np.testing.assert_array_equal(begun, sent + np.outer(np.arange(work.updates), held_up))


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@given(
    stages=st.integers(1, 6),
    micro_batches=st.integers(1, 8),
    forward=st.integers(1, 9),
    backward=st.integers(0, 9),
    updates=st.integers(1, 3),
)
def test_the_bubble_of_equal_stages(kind, stages, micro_batches, forward, backward, updates):
    """(S - 1) / (M + S - 1), whatever backward takes over forward, and in every update anew."""
    made = schedule(kind, [forward] * stages, backward, 0.0, updates, micro_batches)
    wanted = (stages - 1) / (micro_batches + stages - 1)
    assert 1 - utilization(made) == pytest.approx(wanted, abs=1e-14)  # of a quotient near 1
    length = (micro_batches + stages - 1) * (forward + backward)
    np.testing.assert_array_equal(update_seconds(made), length * np.arange(1, updates + 1))
    if updates > 1:
        assert steady_utilization(made) == pytest.approx(1 - wanted, abs=1e-14)


@given(works())
def test_gpipe_by_its_closed_form(work):
    """Forward all M pass all stages, held up by the slowest M - 1 times, then back likewise."""
    once = work._replace(updates=1, update=[0] * len(work.forward))
    count = work.micro_batches - 1
    there = sum(work.forward) + count * max(work.forward) + sum(work.transfer)
    back = sum(work.backward) + count * max(work.backward) + sum(work.transfer)
    assert update_seconds(of_pipeline("gpipe", once)) == [there + back]
    # Without updates to make, the next begins when the first stage has all its gradients.
    many = once._replace(updates=work.updates)
    np.testing.assert_array_equal(
        update_seconds(of_pipeline("gpipe", many)), (there + back) * np.arange(1, work.updates + 1)
    )


@given(works())
def test_memory(work):
    """The order decides it, not the durations: M, min(S - j, M), and the one batch at work."""
    stages = np.arange(len(work.forward))
    np.testing.assert_array_equal(
        memory(of_pipeline("gpipe", work)), np.full(len(stages), work.micro_batches)
    )
    least = np.minimum(len(stages) - stages, work.micro_batches)
    np.testing.assert_array_equal(memory(of_pipeline("1f1b", work)), least)
    np.testing.assert_array_equal(memory(of_local(work)), np.ones(len(stages)))


@pytest.mark.parametrize("collective", ["ring", "tree", "server"])
def test_stages_add_up_as_the_cluster_does(collective):
    """Four devices a stage: 2 (4 - 1) parts in a row, 2 log2(4) times all, or there and back."""
    cluster = Cluster(nodes=2, devices_per_node=4, local_bandwidth=100.0, collective=collective)
    ones = np.ones(2)
    update = _stage_seconds(cluster, StageWork(ones, ones, ones[:1], 800.0 * ones), 4, 1)[3]
    by_hand = {"ring": 2 * 3 * 2.0, "tree": 2 * 2 * 8.0, "server": 2 * 8.0}[collective]
    np.testing.assert_allclose(update, by_hand, rtol=1e-12)


def test_a_schedule_by_hand():
    """Stages of 1 + 2 and 2 + 1 seconds and updates of 1, two micro-batches, transfer 1."""
    made = schedule("1f1b", [1, 2], [2, 1], 1, 1, 2, 1)
    assert tasks(made) == {
        (0, 0, 0, FORWARD): (0, 1),
        (0, 0, 1, FORWARD): (1, 2),
        (1, 0, 0, FORWARD): (2, 4),
        (1, 0, 0, BACKWARD): (4, 5),
        (1, 0, 1, FORWARD): (5, 7),
        (1, 0, 1, BACKWARD): (7, 8),
        (1, 0, -1, UPDATE): (8, 9),
        (0, 0, 0, BACKWARD): (6, 8),
        (0, 0, 1, BACKWARD): (9, 11),
        (0, 0, -1, UPDATE): (11, 12),
    }
    assert update_seconds(made) == [12]
    assert utilization(made) == 14 / 24


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 0.0], 1.0, 0.0, 1, 1), r"forward = \[1.0, 0.0\]: must be more than 0 at every"),
        (([], 1.0, 0.0, 1, 1), r"forward = \[\]: must be more than 0 at every stage"),
        (([1.0, 1.0], [1.0], 0.0, 1, 1), r"backward = \[1.0\]: must be 2 finite seconds"),
        (([1.0, 1.0], -1.0, 0.0, 1, 1), "backward = -1.0: must be 2 finite seconds from 0 up"),
        (([1.0, 1.0], 1.0, [0.1, 0.2], 1, 1), "transfer = .*: must be 1 finite seconds"),
        (([1.0, 1.0], 1.0, np.inf, 1, 1), "transfer = inf: must be 1 finite seconds"),
        (([1.0, 1.0], 1.0, 0.0, 1, 1, np.nan), "update = nan: must be 2 finite seconds"),
        (([1.0, 1.0], 1.0, 0.0, 1, 0), "0 micro-batches, 1 updates: must be 1 or more"),
        (([1.0, 1.0], 1.0, 0.0, 0, 1), "1 micro-batches, 0 updates: must be 1 or more"),
    ],
)
def test_schedules_that_cannot_be(arguments, message):
    for kind in ("gpipe", "1f1b"):
        with pytest.raises(TimelineError, match=message) as caught:
            schedule(kind, *arguments)
        assert "\n" not in str(caught.value)


# The pipeline of a cluster.

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
    made = pipeline_timeline(chosen, micro_batches, work, steps=steps, batch_size=1000)
    if micro_batches:
        f, b, x = forward / micro_batches, backward / micro_batches, sent / 1e6 / micro_batches
        whole = schedule("gpipe", f, b, x, steps, micro_batches)
    else:
        whole = schedule("local", forward, backward, sent / 1e6, steps)
    # Sums of a few hundred floats in another order.
    np.testing.assert_allclose(made.seconds, update_seconds(whole), rtol=1e-12)


def test_devices_of_a_node_divide_its_batch_and_average():
    alone = pipeline_timeline(cluster_of(), 0, WORK, **RUN)
    shared = pipeline_timeline(cluster_of(devices_per_node=4), 0, WORK, **RUN)
    np.testing.assert_allclose(shared.seconds, alone.seconds / 4)
    slow = pipeline_timeline(cluster_of(devices_per_node=4, local_bandwidth=1e9), 0, WORK, **RUN)
    # 2 x 3 messages of a quarter of the 8 MB of the last stage
    exchange = 6 * 2e6 / 1e9
    np.testing.assert_allclose(np.diff(slow.seconds), 0.4 * 0.016 + exchange)
