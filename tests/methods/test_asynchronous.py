"""Stale gradients against a list of all past versions, which no table of slots can confuse."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn import optimizers
from optdyn.clock.arrivals import compute_groups
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Constant, Exponential, Geometric, LogNormal
from optdyn.methods import Event
from optdyn.problem import problem
from optdyn.problem.models import Quadratic
from optdyn.problem.models.quadratic import curvatures
from tests.methods.composed import asynchronous

STEPS, DIMENSION, CONDITION, BATCH = 120, 6, 10.0, 4
QUADRATIC = problem.make(Quadratic(dimension=DIMENSION, condition=CONDITION), 0)
H = curvatures(DIMENSION, CONDITION).astype(np.float64)
OPTIMA = np.random.default_rng(0).normal(0, 0.5, (STEPS, BATCH, DIMENSION)).astype(np.float32)
TIMELINES = {
    "one group": {"groups": 1},
    "round robin": {"groups": 5, "service": Constant()},
    "memoryless": {"groups": 5, "service": Exponential()},
    "unequal": {"groups": 4, "service": LogNormal(), "speeds": (1, 2, 3, 9)},
    "ring": {"groups": 3, "service": Geometric()},
}


def arrivals(name):
    values = dict(TIMELINES[name])
    groups = values.pop("groups")
    cluster = Cluster(nodes=groups, **values)
    return compute_groups(cluster, groups=groups, steps=STEPS, batch_size=BATCH, seed=1)


@cache  # compiled once for all tests of the same optimizer and number of slots
def static_part(optimizer, hyper_names, slots):
    made = optimizers.optimizer(optimizer, hyper_names)
    method = asynchronous(QUADRATIC.loss, made, slots)

    def body(state, inputs):
        event, optima = inputs
        state, info = method.step(state, event, {"optimum": optima})
        return state, (info["loss"], state.params["x"]["x"])

    @jax.jit
    def whole(events, optima):
        start = method.init({"x": {"x": jnp.ones(DIMENSION)}})
        return jax.lax.scan(body, start, (events, optima))

    return whole


def run(made, optimizer, **hyper):
    """Final state, losses and the (STEPS, DIMENSION) parameters after each update."""
    hypers = {name: np.full(STEPS, value, np.float32) for name, value in hyper.items()}
    whole = static_part(optimizer, tuple(hyper), made.slots)
    state, (losses, x) = jax.device_get(whole(Event(made.plan, hypers), OPTIMA))
    return state, losses, x


def heavy_ball(learning_rate, momentum):
    v = np.zeros(DIMENSION)

    def update(t, g):
        nonlocal v
        v = momentum * v + g
        return -learning_rate * v

    return update


def adam(learning_rate):
    """Kingma and Ba, with their constants."""
    m, v = np.zeros(DIMENSION), np.zeros(DIMENSION)

    def update(t, g):
        nonlocal m, v
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        m_hat, v_hat = m / (1 - 0.9 ** (t + 1)), v / (1 - 0.999 ** (t + 1))
        return -learning_rate * m_hat / (np.sqrt(v_hat) + 1e-8)

    return update


def reference(staleness, update):
    """x_{t+1} = x_t + update(H (x_{t - tau} - mean xi_t)) in float64, keeping every version."""
    versions, losses = [np.ones(DIMENSION)], []
    for t, (tau, xi) in enumerate(zip(staleness, OPTIMA.astype(np.float64), strict=True)):
        read = versions[t - tau]
        losses.append((H * (read - xi) ** 2).sum(-1).mean() / 2)
        versions.append(versions[t] + update(t, H * (read - xi.mean(0))))
    return np.array(losses), np.array(versions[1:])


# Rates are small enough for the stalest to converge, so that float32 rounding (1e-7 an update of
# numbers about 1) is not amplified over the 120 updates. Adam divides by the gradient's size, which
# enlarges the rounding of small gradients.
RULES = {
    **{
        m: ("sgd", heavy_ball, {"learning_rate": 0.05, "momentum": m}, 1e-5) for m in (0, 0.6, -0.6)
    },
    "adam": ("adam", adam, {"learning_rate": 0.02}, 1e-4),
}


@pytest.mark.parametrize("name", TIMELINES)
@pytest.mark.parametrize("rule", RULES)
def test_an_optimizer_reads_the_version_that_the_staleness_says(name, rule):
    optimizer, update, hyper, close = RULES[rule]
    made = arrivals(name)
    _, losses, x = run(made, optimizer, **hyper)
    expected_losses, expected = reference(made.staleness, update(**hyper))
    np.testing.assert_allclose(x, expected, atol=close)
    np.testing.assert_allclose(losses, expected_losses, rtol=close, atol=close)


@pytest.mark.parametrize("name", TIMELINES)
def test_slots_hold_the_versions_written_last(name):
    made = arrivals(name)
    state, _, x = run(made, "sgd", learning_rate=0.05, momentum=0.3)
    table = np.ones((made.slots, DIMENSION), np.float32)
    for t, slot in enumerate(made.plan.write):
        table[slot] = x[t]
    np.testing.assert_array_equal(state.slots["x"]["x"], table)
    np.testing.assert_array_equal(state.params["x"]["x"], x[-1])


def test_implicit_momentum_of_memoryless_groups():
    """E[x_{t+1} - x_t] = (1 - 1/g) E[x_t - x_{t-1}] - (alpha/g) E grad f(x_t), in the mean over
    replicas (arXiv 1605.09774), on independent geometric staleness where it holds without a queue.
    """
    g, steps, replicas, alpha = 4, 40, 4000, 0.2
    cluster = Cluster(nodes=g, service=Geometric())
    made = compute_groups(cluster, groups=g, steps=steps, batch_size=1, seed=2, replicas=replicas)
    optimizer = optimizers.optimizer("sgd", ("learning_rate",))
    method = asynchronous(QUADRATIC.loss, optimizer, made.slots)
    batch = {"optimum": jnp.zeros((1, DIMENSION))}

    def body(state, choice):
        event = Event(choice, {"learning_rate": jnp.float32(alpha)})
        state, _ = method.step(state, event, batch)
        return state, state.params["x"]["x"]

    def trajectory(choices):
        start = method.init({"x": {"x": jnp.ones(DIMENSION)}})
        return jax.lax.scan(body, start, choices)[1]

    x = np.asarray(jax.jit(jax.vmap(trajectory))(made.plan), np.float64)
    x = np.concatenate([np.ones((replicas, 1, DIMENSION)), x], axis=1)
    now, before = x[:, 1:-1], x[:, :-2]
    predicted = (1 - 1 / g) * (now - before) - alpha / g * H * now
    residual = x[:, 2:] - now - predicted
    error = residual.std(0) / np.sqrt(replicas)
    # 39 updates of 6 coordinates: five standard errors for the largest of 234 means.
    assert np.all(np.abs(residual.mean(0)) <= 5 * error + 1e-6)
    # A momentum off by 0.05 would be seen: the differences are many standard errors.
    assert np.any(np.abs(0.05 * (now - before).mean(0)) > 5 * error)
