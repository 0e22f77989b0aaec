"""Merges that keep what nodes did since the sending, and eager messages, against float64."""

import numpy as np
import pytest

from optdyn.methods.averaging import meeting_schedule
from tests.methods import nodes
from tests.methods import test_battery as battery
from tests.methods.nodes import NODES, RATE, START, STEPS, flattened
from tests.methods.test_bytes import sent_and_seconds
from tests.methods.test_outer import ETA, MU, made, meetings

DELAY, MOMENTUM = 2, 0.6


def late(name):
    outer = meetings(name).outer
    return meeting_schedule(STEPS, 4, 1, DELAY)._replace(outer=outer)


@pytest.mark.parametrize("name", ["model_averaging", "diloco"])
def test_what_nodes_did_meanwhile_is_kept_whole(name):
    """x <- theta + (x - x_sent), where theta is the mean sent, or what DiLoCo makes of it."""
    line = late(name)
    states, _ = nodes.ran(made(name, merging="correct"), nodes.events(line, RATE, MOMENTUM))
    every, theta, m, history = nodes.HeavyBall(), np.float64(START), 0.0, []
    sent = None
    for t in range(STEPS):
        every.step(t)
        if line.send[t].all():
            sent = list(every.x)
        if line.receive[t].all():
            gap = theta - sum(sent) / NODES
            m = MU * m + gap if name == "diloco" else 0.0
            theta = theta - (ETA * (gap + MU * m) if name == "diloco" else gap)
            every.x = [theta + (x - own) for x, own in zip(every.x, sent, strict=True)]
        history.append(list(every.x))
    # Parameters of about one in float32, 1e-7 an operation, over 32 updates.
    np.testing.assert_allclose(flattened(states.params), history, rtol=0, atol=1e-5)
    mixed, _ = nodes.ran(made(name), nodes.events(line, RATE, MOMENTUM))
    assert np.abs(flattened(mixed.params) - history).max() > 1e-2


@pytest.mark.parametrize("name", ["model_averaging", "diloco", "slowmo"])
def test_without_delay_it_is_the_mean(name):
    events = nodes.events(meetings(name), RATE, MOMENTUM)
    corrected, _ = nodes.ran(made(name, merging="correct"), events)
    plain, _ = nodes.ran(made(name), events)
    np.testing.assert_allclose(
        flattened(corrected.params), flattened(plain.params), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("fragments", [1, 2])
def test_a_correction_keeps_the_mean_over_the_nodes(fragments):
    """mean(sent) + mean(x - x_sent) is mean(x): at its first receipt nothing is lost."""
    line = meeting_schedule(STEPS, 4, fragments, 1)
    keys = {"merging": "correct", "fragments": fragments}
    met, _ = nodes.ran(made("model_averaging", **keys), nodes.events(line, RATE, MOMENTUM))
    never = line._replace(send=np.zeros_like(line.send), receive=np.zeros_like(line.receive))
    alone, _ = nodes.ran(made("model_averaging", **keys), nodes.events(never, RATE, MOMENTUM))
    first = int(np.flatnonzero(line.receive.any(axis=1))[0])
    found, expected = (flattened(each.params)[first] for each in (met, alone))
    np.testing.assert_allclose(found.mean(0), expected.mean(0), rtol=0, atol=1e-6)
    assert np.abs(found - expected).max() > 1e-2


def test_an_eager_message_has_a_period_of_time():
    """Of messages alone: each meeting waits for the one before, of as many bytes as were sent."""
    sent, took, _ = sent_and_seconds("eager", {"method.period": 3})
    meets = np.flatnonzero(sent)
    computing = battery.BATCH / 2 / 8  # seconds of an update, of 12 examples an eighth each
    expected = sent[meets][0] - 3 * computing  # an all-reduce of two, beside three updates
    assert took[meets[0]] == 0 and expected > 0
    np.testing.assert_allclose(took[meets[1:]], expected, rtol=1e-9)
    np.testing.assert_allclose(np.delete(took, meets), 0, atol=1e-9)
