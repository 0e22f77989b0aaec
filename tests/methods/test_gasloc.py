"""GASLoC: against float64 in the paper's form, its limits, what it keeps, and when nodes wait."""

from functools import cache

import jax
import numpy as np
import pytest

from optdyn.clock import graphs
from optdyn.methods.mix.averaging_clock import turns
from optdyn.methods.mix.gasloc import gasloc
from tests.methods import nodes
from tests.methods.nodes import RATE, STEPS, flattened
from tests.methods.test_outer import CLOSE, meetings
from tests.methods.test_outer import made as made_of
from tests.methods.test_over_graph import timeline

COUNT, PERIOD = 4, 4  # nodes
ETA, GAMMA = 0.7, 0.8
SEND = turns(STEPS, PERIOD, 1, 0).send[:, 0]
EACH = {"ring": 3, "exponential": 3, "one_peer": 2, "random": 2, "complete": 4}  # messages


def edges(graph):
    """(STEPS, COUNT, k): whom each sends to; on `alone` nobody hears of another."""
    if graph == "alone":
        return np.tile(np.arange(COUNT, dtype=np.int32)[:, None], (STEPS, 1, 1))
    to = graphs.graph(graph, COUNT, STEPS, np.random.default_rng(3))
    return graphs.each_update(to, STEPS)


@cache  # one program for all numbers
def made():
    return gasloc(nodes.inner())


def ran(graph, eta=ETA, gamma=GAMMA, momentum=0.6, batches=nodes.BATCHES):
    """(STEPS, COUNT, ...) states, and the bytes that a node sent."""
    numbers = {"outer_learning_rate": eta, "outer_momentum": gamma}
    outer = {key: np.full(STEPS, value, np.float32) for key, value in numbers.items()}
    line = turns(STEPS, PERIOD, 1, 0)._replace(to=edges(graph), outer=outer)
    return nodes.ran(made(), nodes.events(line, RATE, momentum), nodes=COUNT, batches=batches)


@pytest.mark.parametrize("graph", EACH)
def test_it_is_the_papers_equation(graph):
    """theta + eta g - alpha Lambda (theta + eta g) + gamma [theta + eta g - the same before]."""
    states, sent = ran(graph)
    every, before = nodes.HeavyBall(COUNT), None
    theta, history = np.array(every.x), []
    laplacians = np.eye(COUNT) - nodes.matrices(edges(graph))
    for t in range(STEPS):
        every.step(t)
        if SEND[t]:
            proposed = theta + np.float64(np.float32(ETA)) * (np.array(every.x) - theta)
            moved = proposed - (theta if before is None else before)
            theta = proposed - laplacians[t] @ proposed + np.float64(np.float32(GAMMA)) * moved
            every.x, before = list(theta), proposed
        history.append(list(every.x))
    np.testing.assert_allclose(flattened(states.params), history, **CLOSE)
    assert np.ptp(history[-1], axis=0).max() > 1e-2  # nodes do not agree, on `complete` neither
    # A message of float32 to each of the others that it sends to.
    np.testing.assert_array_equal(sent, SEND * 4 * nodes.P * (EACH[graph] - 1))


def test_alone_and_without_momentum_it_is_local_sgd_with_an_outer_rate():
    """Lookahead, of each node by itself: theta <- theta + eta (x - theta)."""
    states, sent = ran("alone", gamma=0.0)
    every, theta, history = nodes.HeavyBall(COUNT), [np.float64(nodes.START)] * COUNT, []
    for t in range(STEPS):
        every.step(t)
        if SEND[t]:
            theta = [a + ETA * (x - a) for a, x in zip(theta, every.x, strict=True)]
            every.x = list(theta)
        history.append(list(every.x))
    np.testing.assert_allclose(flattened(states.params), history, **CLOSE)
    assert not sent.any()


@pytest.mark.parametrize("graph", EACH)
def test_at_an_outer_rate_of_one_and_without_momentum_nodes_only_average(graph):
    line = meetings("model_averaging", PERIOD)._replace(to=edges(graph))
    met, _ = nodes.ran(made_of("model_averaging"), nodes.events(line, RATE, 0.6), nodes=COUNT)
    states, _ = ran(graph, eta=1.0, gamma=0.0)
    # theta + (x - theta) for x, and theta - (theta - W x) for W x: an ulp of one, 1e-7, each.
    np.testing.assert_allclose(flattened(states.params), flattened(met.params), rtol=0, atol=5e-6)


@pytest.mark.parametrize("graph", EACH)
def test_the_mean_of_the_nodes_is_dilocos_where_gradients_are_of_one_quadratic(graph):
    """All nodes see the same inputs, and so one curvature, each with targets of its own."""
    inputs = np.array(nodes.BATCHES["inputs"])
    each = inputs.shape[1] // COUNT
    batches = nodes.BATCHES | {"inputs": np.tile(inputs[:, :each], (1, COUNT, 1))}
    numbers = {"outer_learning_rate": ETA, "outer_momentum": GAMMA}
    events = nodes.events(meetings("diloco", PERIOD, **numbers), RATE, 0.6)
    diloco, _ = nodes.ran(made_of("diloco"), events, nodes=COUNT, batches=batches)
    states, _ = ran(graph, batches=batches)
    mean, wanted = (flattened(each.params).mean(axis=1) for each in (states, diloco))
    # Parameters of about one in float32: some ulp of 6e-8, of the mean of four nodes.
    np.testing.assert_allclose(mean, wanted, rtol=0, atol=1e-6)
    assert np.ptp(flattened(states.params)[-1], axis=0).max() > 1e-2
    # Where curvatures differ it is not.
    other, _ = ran(graph)
    diloco, _ = nodes.ran(made_of("diloco"), events, nodes=COUNT)
    found = [flattened(each.params).mean(axis=1) for each in (other, diloco)]
    assert np.abs(found[0] - found[1]).max() > 1e-3


@pytest.mark.parametrize("graph", EACH)
def test_neighbours_keep_the_mean_of_y(graph):
    """What a meeting adds to it is gamma times the way of y since the one before, and no more."""
    states, _ = ran(graph)
    theta, y = (flattened(each)[SEND].mean(axis=1) for each in (states.theta, states.y))
    before = np.concatenate([nodes.START[None], y[:-1]])
    # Means of four numbers of about one, in float32.
    np.testing.assert_allclose(theta, y + GAMMA * (y - before), rtol=0, atol=1e-6)
    apart = flattened(states.theta)[SEND] - flattened(states.y)[SEND]
    assert np.abs(apart).max() > 1e-2  # each node itself is moved by its neighbours


@pytest.mark.parametrize("graph", ["random", "one_peer"])
def test_who_meets_whom_and_when_is_as_of_all_that_meet_over_a_graph(graph):
    values = {"strategy.graph": graph, "cluster.speeds": (1.0, 2.0, 3.0, 4.0)}
    values |= {"cluster.bandwidth": 4.0}
    one, other = timeline(values, "gasloc"), timeline(values)
    np.testing.assert_array_equal(one.seconds, other.seconds)
    jax.tree.map(np.testing.assert_array_equal, one.choice._replace(outer=()), other.choice)
