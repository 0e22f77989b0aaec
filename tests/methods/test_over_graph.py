"""Nodes that meet over a graph: NoLoCo in its own form, GASLoC in the paper's, and who waits."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn import methods
from optdyn.methods import gossip
from optdyn.methods.averaging import meeting_schedule
from optdyn.methods.gossip import gasloc
from tests.methods import nodes
from tests.methods import test_battery as battery
from tests.methods.nodes import RATE, STEPS, flattened
from tests.methods.test_averaging import CLOSE, MAKERS, made, meetings

COUNT, EACH, PERIOD = 4, 3, 4  # nodes, examples of each
MU, ETA = 0.9, 0.7


def ran(name, graph, nodes_of=COUNT, **numbers):
    to = gossip.graph_peers(graph, nodes_of, STEPS, np.random.default_rng(3))
    line = meetings(name, **numbers)._replace(to=gossip.over_updates(to, STEPS))
    return nodes.ran(made(name), nodes.events(line, RATE, 0.6), nodes=nodes_of), line


@pytest.mark.parametrize("name", MAKERS)
def test_all_with_all_is_the_method_that_meets(name):
    (over, sent), _ = ran(name, "complete")
    whole, once = nodes.ran(made(name), nodes.events(meetings(name), RATE, 0.6), nodes=COUNT)
    # Sums of four numbers in another order, an ulp of about one a meeting.
    np.testing.assert_allclose(flattened(over.params), flattened(whole.params), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(sent, (COUNT - 1) * once)  # to each of the others


def test_pairs_with_heavy_ball_are_noloco_in_its_own_form():
    """m <- mu m + eta mean(x - theta) + eta (mean(theta) - theta_i); theta <- theta + m."""
    (states, _), line = ran("slowmo", "random", slow_momentum=MU, slow_learning_rate=ETA)
    every, theta = nodes.HeavyBall(COUNT), [np.float64(nodes.START)] * COUNT
    m, history = [np.zeros(nodes.P)] * COUNT, []
    for t in range(STEPS):
        every.step(t)
        if line.send[t].all():
            x, before = every.x, list(theta)
            for i, (_, j) in enumerate(line.to[t]):
                moved = (x[i] - before[i] + x[j] - before[j]) / 2
                m[i] = MU * m[i] + ETA * moved + ETA * ((before[i] + before[j]) / 2 - before[i])
                theta[i] = before[i] + m[i]
            every.x = list(theta)
        history.append(list(every.x))
    # Parameters of about one in float32, 1e-7 an operation, over 32 updates.
    np.testing.assert_allclose(flattened(states.params), history, rtol=0, atol=1e-5)
    assert np.ptp(history[-1], axis=0).max() > 1e-2  # pairs do not agree with one another


@pytest.mark.parametrize("graph", ["ring", "one_peer", "random"])
def test_the_mean_over_the_nodes_is_kept(graph):
    """At a meeting nobody has a gradient to lose: the mean is what it was a moment before."""
    (states, _), line = ran("model_averaging", graph)
    never = line._replace(send=np.zeros_like(line.send), receive=np.zeros_like(line.receive))
    alone, _ = nodes.ran(made("model_averaging"), nodes.events(never, RATE, 0.6), nodes=COUNT)
    first = int(np.flatnonzero(line.send[:, 0])[0])
    met, apart = (flattened(each.params)[first] for each in (states, alone))
    np.testing.assert_allclose(met.mean(0), apart.mean(0), rtol=0, atol=1e-6)
    assert np.ptp(met, axis=0).sum() < 0.9 * np.ptp(apart, axis=0).sum()


def timeline(values, name="model_averaging+gossip"):
    own = {"cluster.nodes": 4, "cluster.devices_per_node": 1, "method.period": 2} | values
    config = battery.config_of(name, own)
    params = battery.make_run(name, own).params
    network = methods.ModelInfo(battery.program.problem_of(config, battery.CLASSES), params, {})
    known = {"steps_per_epoch": 4, "update_bytes": 8, "network": network}
    return config.timeline(**known)


def test_a_node_waits_for_its_neighbour_and_for_nobody_else():
    """Against a simulation node by node: updates of 6, 3, 2 and 1.5 seconds, messages of 2."""
    speeds = {"cluster.speeds": (1.0, 2.0, 3.0, 4.0), "cluster.seconds_per_example": 1.0}
    line = timeline(speeds | {"method.graph": "random", "cluster.bandwidth": 4.0})
    now, free, ends = [0.0] * 4, [0.0] * 4, []
    for t in range(battery.STEPS):
        now = [each + 6.0 / speed for each, speed in zip(now, (1, 2, 3, 4), strict=True)]
        if line.plan.send[t].all():
            free = [max(a, b) + 2.0 for a, b in zip(now, free, strict=True)]
            now = [max(now[i], free[j]) for i, j in line.plan.to[t]]
        ends.append(max(now))
    expected = [min(ends[t:]) for t in range(len(ends))]  # a straggler nobody waits for
    np.testing.assert_allclose(line.seconds, expected, rtol=1e-9)


def test_peers_take_turns_whatever_the_period_is():
    """With a period of 2 and a turn of 2 updates they would always be the same."""
    to = timeline({"method.graph": "one_peer"}).plan.to
    send = meeting_schedule(battery.STEPS, 2, 1, 0).send[:, 0]
    shifts = (to[send, 0, 1] - to[send, 0, 0]) % 4
    np.testing.assert_array_equal(shifts, np.resize([1, 2], len(shifts)))


def test_a_graph_is_data_of_one_program():
    one, other = (
        battery.config_of("diloco+gossip", {"method.graph": graph})
        for graph in ("ring", "complete")
    )
    assert battery.program.make(one, 5, 1) is battery.program.make(other, 5, 1)
    assert jnp.ndim(timeline({}).plan.to) == 3


GAMMA = 0.8
GASLOC = {"outer_learning_rate": ETA, "outer_momentum": GAMMA}
SEND = meeting_schedule(STEPS, PERIOD, 1, 0).send[:, 0]
MESSAGES = {"ring": 3, "exponential": 3, "one_peer": 2, "random": 2, "complete": 4}  # messages


def edges(graph):
    """(STEPS, COUNT, k): whom each sends to."""
    to = gossip.graph_peers(graph, COUNT, STEPS, np.random.default_rng(3))
    return gossip.over_updates(to, STEPS)


@cache  # one program for all numbers
def gasloc_made():
    return gasloc(nodes.inner())


def gasloc_ran(graph, batches=nodes.BATCHES):
    """(STEPS, COUNT, ...) states, and the bytes that a node sent."""
    outer = {key: np.full(STEPS, value, np.float32) for key, value in GASLOC.items()}
    line = meeting_schedule(STEPS, PERIOD, 1, 0)._replace(to=edges(graph), outer=outer)
    return nodes.ran(gasloc_made(), nodes.events(line, RATE, 0.6), nodes=COUNT, batches=batches)


@pytest.mark.parametrize("graph", MESSAGES)
def test_gasloc_is_the_papers_equation(graph):
    """theta + eta g - alpha Lambda (theta + eta g) + gamma [theta + eta g - the same before]."""
    states, sent = gasloc_ran(graph)
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
    np.testing.assert_array_equal(sent, SEND * 4 * nodes.P * (MESSAGES[graph] - 1))


@pytest.mark.parametrize("graph", MESSAGES)
def test_the_mean_of_the_nodes_is_dilocos_where_gradients_are_of_one_quadratic(graph):
    """All nodes see the same inputs, and so one curvature, each with targets of its own."""
    inputs = np.array(nodes.BATCHES["inputs"])
    each = inputs.shape[1] // COUNT
    batches = nodes.BATCHES | {"inputs": np.tile(inputs[:, :each], (1, COUNT, 1))}
    events = nodes.events(meetings("diloco", PERIOD, **GASLOC), RATE, 0.6)
    diloco, _ = nodes.ran(made("diloco"), events, nodes=COUNT, batches=batches)
    states, _ = gasloc_ran(graph, batches=batches)
    mean, wanted = (flattened(each.params).mean(axis=1) for each in (states, diloco))
    # Parameters of about one in float32: some ulp of 6e-8, of the mean of four nodes.
    np.testing.assert_allclose(mean, wanted, rtol=0, atol=1e-6)
    assert np.ptp(flattened(states.params)[-1], axis=0).max() > 1e-2
    # Where curvatures differ it is not.
    other, _ = gasloc_ran(graph)
    diloco, _ = nodes.ran(made("diloco"), events, nodes=COUNT)
    found = [flattened(each.params).mean(axis=1) for each in (other, diloco)]
    assert np.abs(found[0] - found[1]).max() > 1e-3


@pytest.mark.parametrize("graph", ["random", "one_peer"])
def test_who_meets_whom_and_when_is_as_of_all_that_meet_over_a_graph(graph):
    values = {"method.graph": graph, "cluster.speeds": (1.0, 2.0, 3.0, 4.0)}
    values |= {"cluster.bandwidth": 4.0}
    one, other = timeline(values, "gasloc"), timeline(values)
    np.testing.assert_array_equal(one.seconds, other.seconds)
    jax.tree.map(np.testing.assert_array_equal, one.plan._replace(outer=()), other.plan)
