"""Model averaging by fragments: whose turn it is, bytes and seconds, against plain simulations."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn import methods
from optdyn.clock.meetings import node_seconds
from optdyn.clock.network import all_reduce
from optdyn.methods.averaging import cut, meeting_schedule
from optdyn.train import program
from optdyn.train.program import parameter_bytes
from tests.methods import test_battery as battery


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 60), st.data())
def test_every_fragment_is_sent_once_in_every_period(period, fragments, steps, data):
    period = max(period, fragments)
    delay, steps = data.draw(st.integers(0, period // fragments - 1)), steps + 1
    choice = meeting_schedule(steps, period, fragments, delay)
    send, receive, waited = choice[:3]
    before = max(steps - 1 - delay, 0)  # what is sent then arrives before the last update
    for start in range(before - period + 1):
        np.testing.assert_array_equal(send[start : start + period].sum(0), 1)
    # One message at most in flight, of all fragments, and none at the end, where all meet.
    flying = np.cumsum(send[:-1].sum(1)) - np.cumsum(receive[:-1].sum(1))
    assert (flying <= 1).all() and send[:-1].sum(1).max(initial=0) <= 1
    assert flying[-1:].sum() == 0 and send[-1].all() and receive[-1].all()
    np.testing.assert_array_equal(receive[delay:-1], send[: max(steps - 1 - delay, 0)])
    np.testing.assert_array_equal(waited[:-1], delay * receive[:-1])
    assert not waited[-1].any()


def streaming(fragments, steps, values=()):
    """A run of the battery by the config, of two nodes of one device."""
    own = {"method.period": 4, "method.fragments": fragments, "cluster.devices_per_node": 1}
    config = battery.config_of("model_averaging", own | dict(values) | {"steps": steps})
    params = battery.make_run("model_averaging").params
    network = methods.ModelInfo(program.problem_of(config, 5), params, {})
    known = {"steps_per_epoch": 4, "update_bytes": parameter_bytes(params), "network": network}
    return config, params, config.timeline(**known)


def test_all_bytes_are_those_of_one_fragment_and_the_most_at_once_are_a_part():
    """By the clock, less its computing: two nodes send all bytes once a ring."""
    seconds = {"cluster.seconds_per_example": 1 / 8, "cluster.bandwidth": 1.0}
    computing = 12 / 8  # of half a batch, which float64 adds and takes off without rounding
    sent = {}
    for fragments in (1, 2, 4):
        _, params, line = streaming(fragments, 13, seconds)
        sent[fragments] = np.diff(line.seconds, prepend=0.0) - computing
        whole = parameter_bytes(params)
        parts = [parameter_bytes(part) for part in cut(params, fragments)]
        # Sums of whole numbers in float64.
        np.testing.assert_allclose(sent[fragments], line.plan.send @ parts, rtol=1e-12)
        assert sent[fragments].sum() == pytest.approx(4 * whole)  # three turns and the end
        largest = max(map(parameter_bytes, jax.tree.leaves(params)))
        assert sent[fragments][:-1].max() <= whole / fragments + largest
    assert sent[4][:-1].max() < sent[2][:-1].max() < sent[1][:-1].max()


def simulate(services, choice, transfers):
    """Seconds of the last node after each update: nodes, a link and messages in plain floats."""
    nodes, free, messages, times = [0.0] * services.shape[1], 0.0, {}, []
    for t, work in enumerate(services):
        nodes = [now + seconds for now, seconds in zip(nodes, work, strict=True)]
        for q, transfer in enumerate(transfers):
            if choice.send[t, q]:
                free = max(*nodes, free) + transfer
                messages[q] = free
        for q in range(len(transfers)):
            if choice.receive[t, q]:
                there = messages.pop(q)
                nodes = [max(now, there) for now in nodes]
        times.append(max(nodes))
    assert not messages
    return times


@pytest.mark.parametrize("fragments, delay", [(1, 0), (1, 3), (2, 0), (2, 1), (4, 0)])
@pytest.mark.parametrize("latency", [0.1, 0.8, 5.0])
def test_the_clock_equals_a_simulation(fragments, delay, latency):
    values = {
        "cluster.service.name": "exponential",
        "cluster.nodes": 3,
        "cluster.seconds_per_example": 1 / 8,  # a second an update
        "cluster.latency": latency,
        "cluster.bandwidth": 1e3,
        "method.delay": delay,
    }
    config, params, line = streaming(fragments, 30, values)
    services, _ = node_seconds(config.cluster, 30, config.batch_size, 0, config.seed)
    sizes = [parameter_bytes(part) for part in cut(params, fragments)]
    transfers = [all_reduce(3, size, 1e3, latency) for size in sizes]
    # Sums of 30 float64 numbers in another order.
    expected = simulate(services, line.plan, transfers)
    np.testing.assert_allclose(line.seconds, expected, rtol=1e-12)
    np.testing.assert_array_equal(line.staleness, line.plan.waited.max(1))


def test_an_exchange_shorter_than_the_delay_is_behind_the_computing():
    """Constant service of one second an update, two nodes: only the end is waited for."""
    values = {"cluster.seconds_per_example": 1 / 12, "cluster.latency": 0.4}
    late, now = (streaming(2, 20, values | {"method.delay": d})[2].seconds for d in (1, 0))
    exchange = 2 * 0.4  # there and round the ring of two, a fragment
    np.testing.assert_allclose(late[:-1], np.arange(1, 20), rtol=1e-12)
    assert late[-1] == pytest.approx(20 + 2 * exchange)
    assert now[-1] == pytest.approx(late[-1] + 9 * exchange)
