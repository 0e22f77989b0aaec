"""Nodes that meet: whose turn it is, bytes and seconds, against plain simulations."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn import methods
from optdyn.base.trees import bytes_of
from optdyn.clock.meetings import AllReduce, LocalTimes, Peers, meeting_seconds, node_seconds
from optdyn.clock.network import all_reduce
from optdyn.clock.timeline import Meeting
from optdyn.methods.averaging import meeting_schedule, split_fragments
from optdyn.methods.gossip import GRAPHS, graph_peers
from optdyn.train import program
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
    known = {"steps_per_epoch": 4, "update_bytes": bytes_of(params), "network": network}
    return config, params, config.timeline(**known)


def test_all_bytes_are_those_of_one_fragment_and_the_most_at_once_are_a_part():
    """By the clock, less its computing: two nodes send all bytes once a ring."""
    seconds = {"cluster.seconds_per_example": 1 / 8, "cluster.bandwidth": 1.0}
    computing = 12 / 8  # of half a batch, which float64 adds and takes off without rounding
    sent = {}
    for fragments in (1, 2, 4):
        _, params, line = streaming(fragments, 13, seconds)
        sent[fragments] = np.diff(line.seconds, prepend=0.0) - computing
        whole = bytes_of(params)
        parts = [bytes_of(part) for part in split_fragments(params, fragments)]
        # Sums of whole numbers in float64.
        np.testing.assert_allclose(sent[fragments], line.plan.send @ parts, rtol=1e-12)
        assert sent[fragments].sum() == pytest.approx(4 * whole)  # three turns and the end
        largest = max(map(bytes_of, jax.tree.leaves(params)))
        assert sent[fragments][:-1].max() <= whole / fragments + largest
    assert sent[4][:-1].max() < sent[2][:-1].max() < sent[1][:-1].max()


def simulate(meeting, ready, done, transfers, handed_on=0.0, on_the_way=0.0):
    """Seconds of the last node after each update: nodes, a link and messages in plain floats."""
    nodes, free, messages, times = [0.0] * done.shape[1], 0.0, {}, []
    for t, work in enumerate(done):
        first = max(now + seconds for now, seconds in zip(nodes, ready[t], strict=True))
        nodes = [now + seconds for now, seconds in zip(nodes, work, strict=True)]
        old = dict(messages)
        for q, transfer in enumerate(transfers):
            if meeting.send[t, q]:
                free = messages[q] = max(max(first, free) + transfer, *nodes) + on_the_way
        for q in range(len(transfers)):
            if meeting.receive[t, q]:
                there = (old if meeting.waited[t, q] else messages).get(q, 0.0)
                nodes = [max(now, there) for now in nodes]
        nodes = [now + handed_on * meeting.receive[t].sum() for now in nodes]
        times.append(max(nodes))
    return times


@st.composite
def nodes_that_meet(draw, fragments):
    """(meeting, ready, done) of 20 updates, whose messages leave and are received at any time."""
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    count, part = draw(st.integers(1, 4)), draw(st.floats(0, 1))
    send, receive = rng.random((2, 20, fragments)) < draw(st.floats(0.1, 1))
    waited = np.where(receive, rng.integers(0, 2, (20, fragments)), 0)
    done = rng.exponential(size=(20, count))
    return Meeting(send, receive, waited), done * rng.uniform(part, 1, (20, count)), done


@given(nodes_that_meet(3), st.sampled_from([0.0, 0.2]), st.sampled_from([0.0, 0.3]))
def test_all_wait_for_what_they_receive(run, handed_on, on_the_way):
    """The message that was just sent or the one before, handed on while they wait or go on."""
    meeting, ready, done = run
    transfers = [0.3, 1.0, 4.0]
    exchange = AllReduce([np.broadcast_to(transfers, (20, 3))], on_the_way)
    found, here = meeting_seconds(meeting, LocalTimes(ready, done), exchange, handed_on)
    expected = simulate(meeting, ready, done, transfers, handed_on, on_the_way)
    np.testing.assert_allclose(found, expected, rtol=1e-12)  # sums of 20 in another order
    assert here.all()


@given(nodes_that_meet(1), nodes_that_meet(1), st.data())
def test_runs_side_by_side_are_each_by_itself(one, other, data):
    count = min(len(one[2][0]), len(other[2][0]))
    runs = [(meeting, ready[:, :count], done[:, :count]) for meeting, ready, done in (one, other)]
    transfer = np.random.default_rng(0).exponential(size=(20, 2, 1))
    meeting, ready, done = jax.tree.map(lambda *parts: np.stack(parts, axis=1), *runs)
    both, _ = meeting_seconds(meeting, LocalTimes(ready, done), AllReduce([transfer]), 0.1)
    for i, (meeting, *times) in enumerate(runs):
        exchange = AllReduce([transfer[:, i]])
        alone, _ = meeting_seconds(meeting, LocalTimes(*times), exchange, 0.1)
        np.testing.assert_array_equal(both[:, i], alone)


def neighbours_wait(to, meeting, ready, done, links, handed_on, early):
    """Message by message, in dictionaries."""
    count = ready.shape[1]
    now, free, there, seconds = ([0.0] * count, [0.0] * count, {}, [])
    for t in range(len(ready)):
        ended, old = [now[i] + done[t, i] for i in range(count)], dict(there)
        if meeting.send[t]:
            there = {i: [ended[i]] for i in range(count)}
            for j in range(count):
                clock = max(free[j], now[j] if early else now[j] + ready[t, j])
                for i in to[t % len(to), j]:
                    if i != j:
                        clock += links[j, i]
                        there[i].append(clock if early else max(clock, ended[j]))
                free[j] = clock
        now = ended
        if meeting.receive[t]:
            came = old if meeting.waited[t] else there
            now = [max(now[i], *came.get(i, ()), 0.0) + handed_on for i in range(count)]
        seconds.append(max(now))
    return [min(seconds[t:]) for t in range(len(seconds))]  # a straggler nobody waits for


@given(nodes_that_meet(1), st.sampled_from(GRAPHS), st.booleans(), st.booleans())
def test_a_node_waits_for_what_is_sent_to_it(run, name, early, always):
    """After every update, as in gossip, or now and then."""
    meeting, ready, done = run
    if always:
        meeting = Meeting(*(np.full_like(part, n < 2) for n, part in enumerate(meeting[:3])))
    rng, count = np.random.default_rng(5), done.shape[1]
    to, between = graph_peers(name, count, 20, rng), rng.exponential(size=(count, count))
    links = lambda one, other: between[one, other]  # noqa: E731
    exchange = Peers(to, np.arange(20) % len(to), links, early)
    found, _ = meeting_seconds(meeting, LocalTimes(ready, done), exchange, 0.1)
    expected = neighbours_wait(to, meeting, ready, done, between, 0.1, early)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


class Known:
    """Absences that are given, (nodes, n, 2) seconds from and until, in place of drawn ones."""

    def __init__(self, absences):
        self._every = [[*map(tuple, own), (np.inf, np.inf)] for own in absences]
        self.left, self.back = np.transpose([own[0] for own in self._every])

    def at(self, now):
        for i in np.flatnonzero(self.back <= now):
            while self.back[i] <= np.broadcast_to(now, self.back.shape)[i]:
                self._every[i].pop(0)
                self.left[i], self.back[i] = self._every[i][0]
        return now < self.left


def gossip_on_a_ring(done, message, early, absences):
    """Nodes that send and receive after every update, and are away at times."""
    always, count = np.ones((len(done), 1), bool), done.shape[1]
    links = lambda one, other: np.full(np.broadcast(one, other).shape, message)  # noqa: E731
    to = graph_peers("ring", count, 1, np.random.default_rng(0))
    exchange = Peers(to, np.zeros(len(done), int), links, early)
    meeting, local = Meeting(always, always, ~always), LocalTimes(done, done)
    return meeting_seconds(meeting, local, exchange, presence=Known(absences))


def test_no_neighbour_waits_for_who_is_away():
    """Updates of a second on a ring of four, and of node 1 of two."""
    done = np.tile([1.0, 2.0, 1.0, 1.0], (10, 1))
    away = [[], [(2.5, 5.2), (5.3, 7.0)], [], []]
    seconds, there = gossip_on_a_ring(done, 0.0, False, away)
    # It leaves in its second update, is back at 5.2 for a tenth, then at 7, and all wait for it.
    assert there[:, 1].tolist() == [True, *[False] * 5, True, True, True, True]
    assert there[:, [0, 2, 3]].all()
    np.testing.assert_allclose(seconds[:6], [2, 3, 4, 5, 6, 7])
    np.testing.assert_allclose(seconds[6:], [9, 11, 13, 15])


def test_where_all_have_left_the_first_to_be_back_goes_on():
    away = [[(1.2, 9.0)], [(1.9, 4.0)]]
    seconds, there = gossip_on_a_ring(np.ones((5, 2)), 0.5, True, away)
    # The first update ends at 1; the next begins at 4. The other has to fetch parameters first.
    assert there.tolist() == [[True, True], *[[False, True]] * 4]
    np.testing.assert_allclose(seconds, [1, 5, 6, 7, 8])


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
    sizes = [bytes_of(part) for part in split_fragments(params, fragments)]
    transfers = [all_reduce(3, size, 1e3, latency) for size in sizes]
    # Sums of 30 float64 numbers in another order.
    expected = simulate(line.plan, services, services, transfers)
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
