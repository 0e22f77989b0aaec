"""Nodes that meet: whose turn it is, and seconds of any meetings against those by hand."""

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optdyn.clock.meetings import AllReduce, LocalTimes, Peers, meeting_seconds
from optdyn.clock.timeline import Meeting
from optdyn.methods.averaging import meeting_schedule
from optdyn.methods.gossip import GRAPHS, graph_peers
from tests.clock import by_hand


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
    message = by_hand.over_one_link(lambda t, q: transfers[q], on_the_way)
    expected = by_hand.meet(meeting, ready, done, message, handed_on)
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
    turns = to[np.arange(20) % len(to)]
    message = by_hand.to_neighbours(turns, lambda one, other: between[one, other], early)
    expected = by_hand.meet(meeting, ready, done, message, 0.1, early=early)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
