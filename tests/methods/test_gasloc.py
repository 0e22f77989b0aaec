"""GASLoC: against float64 in the paper's form, beside DiLoCo, and when nodes wait."""

from functools import cache

import jax
import numpy as np
import pytest

from optdyn.methods import gossip
from optdyn.methods.averaging import meeting_schedule
from optdyn.methods.gossip import gasloc
from tests.methods import nodes
from tests.methods.nodes import RATE, STEPS, flattened
from tests.methods.test_outer import CLOSE, meetings
from tests.methods.test_outer import made as made_of
from tests.methods.test_over_graph import timeline

COUNT, PERIOD = 4, 4  # nodes
ETA, GAMMA = 0.7, 0.8
NUMBERS = {"outer_learning_rate": ETA, "outer_momentum": GAMMA}
SEND = meeting_schedule(STEPS, PERIOD, 1, 0).send[:, 0]
EACH = {"ring": 3, "exponential": 3, "one_peer": 2, "random": 2, "complete": 4}  # messages


def edges(graph):
    """(STEPS, COUNT, k): whom each sends to."""
    to = gossip.graph_peers(graph, COUNT, STEPS, np.random.default_rng(3))
    return gossip.each_update(to, STEPS)


@cache  # one program for all numbers
def made():
    return gasloc(nodes.inner())


def ran(graph, batches=nodes.BATCHES):
    """(STEPS, COUNT, ...) states, and the bytes that a node sent."""
    outer = {key: np.full(STEPS, value, np.float32) for key, value in NUMBERS.items()}
    line = meeting_schedule(STEPS, PERIOD, 1, 0)._replace(to=edges(graph), outer=outer)
    return nodes.ran(made(), nodes.events(line, RATE, 0.6), nodes=COUNT, batches=batches)


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


@pytest.mark.parametrize("graph", EACH)
def test_the_mean_of_the_nodes_is_dilocos_where_gradients_are_of_one_quadratic(graph):
    """All nodes see the same inputs, and so one curvature, each with targets of its own."""
    inputs = np.array(nodes.BATCHES["inputs"])
    each = inputs.shape[1] // COUNT
    batches = nodes.BATCHES | {"inputs": np.tile(inputs[:, :each], (1, COUNT, 1))}
    events = nodes.events(meetings("diloco", PERIOD, **NUMBERS), RATE, 0.6)
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


@pytest.mark.parametrize("graph", ["random", "one_peer"])
def test_who_meets_whom_and_when_is_as_of_all_that_meet_over_a_graph(graph):
    values = {"method.graph": graph, "cluster.speeds": (1.0, 2.0, 3.0, 4.0)}
    values |= {"cluster.bandwidth": 4.0}
    one, other = timeline(values, "gasloc"), timeline(values)
    np.testing.assert_array_equal(one.seconds, other.seconds)
    jax.tree.map(np.testing.assert_array_equal, one.plan._replace(outer=()), other.plan)
