"""DASO's phases by hand-worked tables, its clocks against a simulation node by node."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.base.errors import ConfigError
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Law
from optdyn.methods.daso import DASO, Phase, after_epoch, clock
from tests.clock.lines import begins_with


def method_of(**values):
    return DASO(**{"warmup_epochs": 0, "cooldown_epochs": 0, **values})


def make(cluster, method, losses=(), *, steps, per_epoch, seed=0, size=0, batch_size=None):
    batch_size = batch_size or cluster.nodes * cluster.devices_per_node  # one example a device
    return clock(
        cluster,
        method,
        steps=steps,
        steps_per_epoch=per_epoch,
        batch_size=batch_size,
        update_bytes=size,
        seed=seed,
        epoch_losses=losses,
    )


def periods(method, losses):
    """(B, W) after each of the losses."""
    phase, found = Phase(0, method.max_batches, method.wait), []
    for loss in losses:
        phase = after_epoch(phase, loss, method)
        found.append((phase.batches, phase.wait))
    return found


A, B, C = (4, 1), (2, 1), (1, 1)


@pytest.mark.parametrize(
    "values, losses, expected",
    [
        # Two epochs without improvement are let pass, the third is a plateau; best is kept.
        ({}, 10 * [9], [A, A, A, B, B, B, C, C, C, A]),
        # 5 % less than 9 is 8.55, which is not less; 8.54 is, and its 5 % less is 8.113.
        ({}, [9, 8.55, 8.6, 8.54, 8.2, 8.12, 8.114, 8], [A, A, A, A, A, A, B, B]),
        # An increase is no improvement; an improvement starts the count again.
        ({"patience": 1}, [5, 7, 4, 6, 8, 3, 3, 3], [A, A, A, A, B, B, B, C]),
        # Negative losses improve downwards: 5 % less than -1 is -1.05.
        ({"patience": 0}, [-1, -1.04, -1.06, -1.06], [A, B, B, C]),
        # W is lowered by one while B is halved, neither below 1, W no more than B.
        (
            {"patience": 0, "max_batches": 8, "wait": 3},
            [1, 1, 1, 1, 1],
            [(8, 3), (4, 2), (2, 1), (1, 1), (8, 3)],
        ),
        ({"patience": 0, "max_batches": 5, "wait": 5}, [1, 1, 1], [(5, 5), (2, 2), (1, 1)]),
        ({"patience": 0, "max_batches": 2, "wait": 0}, [1, 1, 1], [(2, 0), (1, 0), (2, 0)]),
        ({"patience": 0, "max_batches": 1}, [1, 1], [C, C]),
        # In warm-up only the last epoch's loss counts, as the first best.
        ({"warmup_epochs": 3, "patience": 0}, [1, 2, 3, 2.9, 2.8], [A, A, A, B, B]),
        ({"warmup_epochs": 3, "patience": 0}, [1, 2, 3, 2, 2], [A, A, A, A, B]),
        # heat's cycle: from 4 and 1 down, and again from 8 and 2.
        (
            {"patience": 0, "reset_batches": 8, "reset_wait": 2},
            [1, 1, 1, 1, 1, 1],
            [A, B, C, (8, 2), (4, 1), B],
        ),
        # What is not a number is no improvement.
        ({"patience": 0}, [1, float("nan"), 0.5, 0.5], [A, B, B, C]),
    ],
)
def test_phases_by_hand(values, losses, expected):
    assert periods(method_of(**values), losses) == expected


def test_after_a_plateau_too_a_message_comes_before_the_next_leaves():
    """B = 2 with the usual W = 4 would have two messages under way, and DASO holds one."""
    with pytest.raises(ConfigError, match="reset_batches = 2: must be 4 or more, W = "):
        method_of(max_batches=4, wait=4, reset_batches=2)
    method_of(max_batches=4, wait=4, reset_batches=2, reset_wait=2)


def flags(text):
    return [character == "x" for character in text.replace(" ", "")]


@pytest.mark.parametrize(
    "values, send, receive, waited",
    [
        ({}, "x...x....x", ".x...x...x", [0, 1, 0, 0, 0, 1, 0, 0, 0, 0]),
        # A message of batch 6 would arrive with the last, 9: it is not sent.
        ({"wait": 3}, "x...x....x", "...x...x.x", [0, 0, 0, 3, 0, 0, 0, 3, 0, 0]),
        # B = W: the next message leaves with the batch that the one before is received at.
        (
            {"max_batches": 3, "wait": 3},
            "x..x.....x",
            "...x..x..x",
            [0, 0, 0, 3, 0, 0, 3, 0, 0, 0],
        ),
        ({"max_batches": 1}, "xxxxxxxx.x", ".xxxxxxxxx", [0] + [1] * 8 + [0]),
        ({"max_batches": 2, "wait": 0}, "x.x.x.x.xx", "x.x.x.x.xx", [0] * 10),
        ({"max_batches": 40}, "x........x", ".x.......x", [0, 1] + [0] * 8),
        ({"max_batches": 40, "wait": 20}, ".........x", ".........x", [0] * 10),
        ({"warmup_epochs": 1}, "x" * 10, "x" * 10, [0] * 10),
        ({"cooldown_epochs": 1}, "x" * 10, "x" * 10, [0] * 10),
    ],
)
def test_the_batches_of_an_epoch_by_hand(values, send, receive, waited):
    timeline = make(Cluster(nodes=2), method_of(**values), steps=10, per_epoch=10)
    choice = timeline.plan
    assert choice.send.tolist() == flags(send)
    assert choice.receive.tolist() == flags(receive)
    assert choice.waited.tolist() == waited == timeline.staleness.tolist()
    assert (choice.waited.dtype, choice.send.dtype) == (np.int32, bool)
    assert not timeline.worker.any() and timeline.slots == 1


def test_warm_up_and_cool_down_block_and_the_last_epoch_may_be_cut():
    """Six epochs, the last one of 3 batches of 5; the message of batch 0 is received at 1."""
    method = method_of(warmup_epochs=2, cooldown_epochs=2)
    timeline = make(Cluster(nodes=2), method, [1] * 9, steps=28, per_epoch=5)
    assert timeline.plan.send.tolist() == flags("xxxxx xxxxx x...x x...x xxxxx xxx")
    method = method_of(max_batches=2)
    timeline = make(Cluster(nodes=2), method, [1] * 9, steps=13, per_epoch=5)
    assert timeline.plan.send.tolist() == flags("x.x.x x.x.x x.x")
    assert timeline.plan.receive.tolist() == flags(".x.xx .x.xx .xx")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_loss_more_lengthens_the_timeline_and_changes_nothing_before(data):
    draw = data.draw
    steps, per_epoch = draw(st.integers(1, 60)), draw(st.integers(1, 12))
    cluster = Cluster(nodes=3, latency=0.5, service=Law.named(draw(st.sampled_from(LAWS))))
    most = draw(st.integers(1, 6))
    method = method_of(
        max_batches=most,
        warmup_epochs=draw(st.integers(0, 3)),
        cooldown_epochs=draw(st.integers(0, 3)),
        patience=draw(st.integers(0, 2)),
        wait=draw(st.integers(0, most)),
    )
    losses = draw(st.lists(st.floats(0.1, 3), max_size=8))
    whole = make(cluster, method, losses, steps=steps, per_epoch=per_epoch)
    assert len(whole.seconds) == min(steps, (len(losses) + 1) * per_epoch)
    for k in range(len(losses)):
        part = make(cluster, method, losses[:k], steps=steps, per_epoch=per_epoch)
        n = len(part.seconds)
        assert n == min(steps, (k + 1) * per_epoch)
        begins_with(whole, part)
    assert np.all(np.diff(whole.seconds, prepend=0) > 0)


LAWS = ["constant", "exponential", "lognormal", "gamma"]


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 9), st.data())
def test_every_message_is_received_once_and_none_is_left_at_the_end_of_an_epoch(period, data):
    """What `methods.daso` relies on: one message at a time, S batches old at its receipt."""
    per_epoch, wait = data.draw(st.integers(1, 20)), data.draw(st.integers(0, period))
    method = method_of(max_batches=period, wait=wait, patience=0)
    steps = data.draw(st.integers(per_epoch, 5 * per_epoch))
    timeline = make(Cluster(), method, [1.0] * 9, steps=steps, per_epoch=per_epoch)
    send, receive, waited = timeline.plan[:3]
    sent_at = None
    for t in range(steps):
        before, sent_at = sent_at, t if send[t] else sent_at
        if receive[t]:
            assert waited[t] == t - (before if waited[t] else t)
            sent_at = t if send[t] and waited[t] else None
        else:
            assert waited[t] == 0
        if t % per_epoch == per_epoch - 1 or t == steps - 1:
            assert send[t] and receive[t] and not waited[t] and sent_at is None
