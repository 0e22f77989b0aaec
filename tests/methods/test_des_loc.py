"""DES-LOC: parameters and moments of Adam averaged each in its own time."""

import jax
import numpy as np
import pytest

from optdyn.methods.averaging import DesLoc, meeting_schedule
from tests.methods import nodes
from tests.methods.nodes import NODES, RATE, START, STEPS, flattened
from tests.methods.test_bytes import sent_and_seconds

B1, B2, EPS = 0.9, 0.999, 1e-8  # optax's
PERIOD = 2
ADAM = nodes.inner(nodes.ADAM)  # one method, one program


def ran(first, second):
    keys = {"first_moment_meetings": first, "second_moment_meetings": second}
    method, line = DesLoc(period=PERIOD, **keys), meeting_schedule(STEPS, PERIOD, 1, 0)
    line = line._replace(states=method.states(line))
    return nodes.ran(method.mix(ADAM), nodes.events(line, RATE, momentum=None))


def reference(first, second):
    """(STEPS, NODES, P): Adam in float64, by its equations."""
    x, u, v = ([np.float64(start)] * NODES for start in (START, 0 * START, 0 * START))
    history, meetings, rate = [], 0, np.float64(np.float32(RATE))
    for t in range(STEPS):
        for i in range(NODES):
            grad = nodes.gradient(x[i], t, slice(i * nodes.EACH, (i + 1) * nodes.EACH))
            u[i] = B1 * u[i] + (1 - B1) * grad
            v[i] = B2 * v[i] + (1 - B2) * grad**2
            mean, square = u[i] / (1 - B1 ** (t + 1)), v[i] / (1 - B2 ** (t + 1))
            x[i] = x[i] - rate * mean / (np.sqrt(square) + EPS)
        if (t + 1) % PERIOD == 0:
            meetings += 1
            x = [sum(x) / NODES] * NODES
            if meetings % first == 0:
                u = [sum(u) / NODES] * NODES
            if meetings % second == 0:
                v = [sum(v) / NODES] * NODES
        history.append(list(x))
    return np.array(history)


def test_it_is_what_its_equations_say():
    states, _ = ran(3, 6)
    expected = reference(3, 6)
    # Float32: where a second moment is small its root divides what rounding left, 1e-7 of about
    # one, and a step is of the rate: measured at most 3e-6 after 32 updates.
    np.testing.assert_allclose(flattened(states.params), expected, rtol=0, atol=1e-5)
    # The periods are two: each is seen.
    for other in (reference(6, 6), reference(3, 3)):
        assert np.abs(expected - other).max() > 1e-4


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_clock_counts_its_bytes(optimizer):
    """Every meeting the parameters, every second u, every third v, where the optimizer has it."""
    values = {"method.first_moment_meetings": 2, "method.second_moment_meetings": 3}
    sent, took, params = sent_and_seconds("des_loc", values, optimizer)
    np.testing.assert_allclose(took, sent, rtol=1e-12)  # whole numbers in float64
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    times = np.array([1, 2, 1 + (optimizer == "adam"), 2])  # 12 updates, a meeting every three
    np.testing.assert_array_equal(sent[2::3], size * times)
