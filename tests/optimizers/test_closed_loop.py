"""The momentum loop against the paper's equations in iterates, and on simulated stale gradients."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn import optimizers
from optdyn.clock.arrivals import compute_groups
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Law
from optdyn.methods import Event
from optdyn.optimizers.closed_loop import LIMIT, closed_loop, total_momentum
from optdyn.problem import problem
from optdyn.problem.models import Quadratic
from optdyn.problem.models.quadratic import curvatures
from optdyn.train import trainer
from tests.methods.composed import asynchronous

DIMENSION, CONDITION = 31, 10.0  # odd: the median is one of the ratios
QUADRATIC = problem.make(Quadratic(dimension=DIMENSION, condition=CONDITION), 0)
H = curvatures(DIMENSION, CONDITION).astype(np.float64)
GROUPS, SEEDS, STEPS = 16, 5, 1500


def loop(gamma, staleness):
    """As the trainer makes it: the numbers of an update are arguments of `update`."""
    options = {"gamma": gamma, "staleness": staleness}
    return optimizers.optimizer("closed_loop", ("learning_rate", "momentum"), options)


@cache
def arrivals(groups, law, steps, replicas):
    cluster = Cluster(nodes=groups, service=Law.named(law))
    return compute_groups(cluster, groups=groups, steps=steps, batch_size=1, replicas=replicas)


def path(slots, staleness, gamma, choice, hypers):
    """explicit, total and x, (T, ...) each, from one run of the noiseless quadratic."""
    made = loop(gamma, staleness)
    method = asynchronous(QUADRATIC.loss, made, slots)
    batch = {"optimum": jnp.zeros((1, DIMENSION))}

    def body(state, inputs):
        state, _ = method.step(state, Event(*inputs), batch)
        return state, (state.opt_state.explicit, state.opt_state.total, state.params["x"]["x"])

    start = method.init({"x": {"x": jnp.ones(DIMENSION)}})
    return jax.lax.scan(body, start, (choice, hypers))[1]


@cache
def compiled(slots, staleness, many):
    def call(gamma, choice, hypers):
        return path(slots, staleness, gamma, choice, hypers)

    return jax.jit(jax.vmap(call, in_axes=(None, 0, None)) if many else call)


def run(made, groups, gamma, learning_rate, momentum):
    steps = made.worker.shape[-1]
    hypers = {
        "learning_rate": np.broadcast_to(learning_rate, steps).astype(np.float32),
        "momentum": np.broadcast_to(momentum, steps).astype(np.float32),
    }
    many = made.worker.ndim == 2
    call = compiled(made.slots, groups - 1, many)
    return [np.asarray(a, np.float64) for a in call(gamma, made.plan, hypers)]


def reference(staleness, tau, gamma, alpha, target):
    """The paper's loop on iterates in float64, keeping every version: mu, mu_T and x."""
    x, mu, rows = [np.ones(DIMENSION)] * 2, target, []  # x_{-1} = x_0
    for t, lag in enumerate(staleness):
        g = H * x[1 + t - lag]
        x.append(x[-1] + mu * (x[-1] - x[-2]) - alpha * g)
        explicit, total = mu, np.nan
        if t > tau:
            a, b, c = x[t - tau : t - tau + 3]
            total = np.median((c - b + alpha * g) / (b - a))
            mu = np.clip(mu + gamma * (target - total), -LIMIT, LIMIT)
        rows.append((explicit, total, x[-1]))
    return [np.array(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("law", ["constant", "exponential"])
@pytest.mark.parametrize("groups", [1, 2, 5])
def test_follows_the_equations_in_iterates(groups, law):
    made = arrivals(groups, law, 100, 0)
    explicit, total, x = run(made, groups, 0.05, 0.05, 0.6)
    expected = reference(made.staleness, groups - 1, 0.05, 0.05, 0.6)
    # float32 rounds a velocity to 6e-8 of its size, and the median's is now and then a hundredth of
    # those it is the difference of: 1e-5, with ten times room.
    np.testing.assert_allclose(total, expected[1], rtol=0, atol=1e-4)
    # The mean of 100 such errors times gamma T = 5; x, about 1, is rounded at each of 100 updates.
    np.testing.assert_allclose(explicit, expected[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(x, expected[2], rtol=0, atol=1e-5)
    if groups > 1:  # the loop was closed: far more than the tolerance
        assert explicit[-1] < 0.6 - 0.01


@pytest.mark.parametrize("momentum", [-0.6, 0.0, 0.6, 0.9])
def test_synchronous_total_is_the_explicit_momentum(momentum):
    rates = np.geomspace(0.2, 0.02, 100)  # a schedule changes nothing
    explicit, total, _ = run(arrivals(1, "constant", 100, 0), 1, 0.01, rates, momentum)
    assert np.isnan(total[0])
    # Rounding of v, 6e-8, over ratios of velocities of at most ten for the median coordinate.
    np.testing.assert_allclose(total[1:], momentum, rtol=0, atol=1e-6)
    # gamma times 100 such errors.
    np.testing.assert_allclose(explicit, momentum, rtol=0, atol=1e-6)


def test_lowers_explicit_momentum_until_the_total_is_the_target():
    """16 memoryless groups, target 0.9. Uncontrolled, the total is 0.94 at learning rate 0.01, and
    1.02 at 0.05, where the run diverges; the loop holds it with mu about 0.86 and 0.79. Neither is
    near 0.9 - (1 - 1/16): the ratio that is controlled is not the momentum of the mean recursion.
    """
    made = arrivals(GROUPS, "exponential", STEPS, SEEDS)
    later, ends = slice(STEPS // 2, None), []
    for rate, overshoot in ((0.01, 0.02), (0.05, 0.08)):
        _, total, x_open = run(made, GROUPS, 0.0, rate, 0.9)
        # Over 5 seeds the mean total differed by 0.002 and 0.01 between seeds.
        assert np.all(total[:, later].mean(1) > 0.9 + overshoot)
        explicit, total, x = run(made, GROUPS, 0.01, rate, 0.9)
        # The mean error is the change of mu over gamma times 750 updates: 0.0013 for each 0.01 of
        # change, so 0.015 says that mu changed by less than 0.12, that is settled.
        np.testing.assert_allclose(total[:, later].mean(1), 0.9, atol=0.015)
        assert np.all(explicit[:, later].max(1) < 0.9)
        ends.append(explicit[:, later].mean(1))
    # Stale gradients add more, the further x moves while they are on their way.
    assert np.all(ends[1] < ends[0] - 0.03)
    # From 1: measured above 1e12 in every seed without the loop, and below 0.6 with it.
    assert np.abs(x_open[:, -1]).max(1).min() > 1e6
    assert np.abs(x[:, -1]).max() < 10


def test_gamma_zero_is_heavy_ball_exactly():
    rng = np.random.default_rng(0)
    grads = {"w": rng.standard_normal((50, 3, 4)), "b": rng.standard_normal((50, 4))}
    inputs = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), grads)
    hypers = {"learning_rate": jnp.linspace(0.5, 0.1, 50), "momentum": jnp.linspace(-0.9, 0.9, 50)}
    params = jax.tree.map(lambda leaf: leaf[0], inputs)

    def updates(made):
        def body(state, step):
            g, hyper = step
            moves, state = made.update(g, state, params, **hyper)
            return state, moves

        return jax.jit(lambda: jax.lax.scan(body, made.init(params), (inputs, hypers))[1])()

    ours = updates(loop(0.0, 3))
    theirs = updates(optimizers.optimizer("sgd", ("learning_rate", "momentum")))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_state_keeps_its_structure_and_holds_tau_plus_two_copies():
    params = {"w": jnp.ones((3, 4)), "b": jnp.ones(4, jnp.bfloat16), "s": jnp.ones(())}
    made = loop(0.01, 5)
    state = made.init(params)
    hyper = {"learning_rate": jnp.float32(0.1), "momentum": jnp.float32(0.9)}
    moves, after = jax.eval_shape(lambda: made.update(params, state, params, **hyper))
    kinds = [jax.tree.map(lambda a: (a.shape, a.dtype), tree) for tree in (state, after)]
    assert kinds[0] == kinds[1]
    assert jax.tree.map(lambda a: a.dtype, moves) == jax.tree.map(lambda a: a.dtype, params)
    copies = jax.tree.map(lambda ring, leaf: ring.size / leaf.size, state.velocities, params)
    assert set(copies.values()) == {5 + 2}


def test_coordinates_without_a_gradient_say_nothing():
    """Black pixels: their velocity decays by mu = 0.9 at every update, however stale the others."""
    g, v, b = (
        jnp.asarray(values) for values in ([0.2, 0.1, 0.3], [1.0, 2.0, 3.0], [1.0, 1.0, 2.0])
    )
    assert total_momentum(g, v, b) == jnp.float32(1.35)  # of 0.8, 1.9 and 1.35
    still = jnp.zeros(9), 0.9 * jnp.ones(9), jnp.ones(9)
    both = [{"w": one, "black": other} for one, other in zip((g, v, b), still, strict=True)]
    assert total_momentum(*both) == total_momentum(g, v, b)
    assert jnp.isnan(total_momentum(*still)) and jnp.isnan(total_momentum(g, v, jnp.zeros(3)))


@settings(max_examples=50, deadline=None)
@given(
    grads=st.lists(
        st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, 1e-38, -1e38]),
        min_size=1,
        max_size=12,
    ),
    target=st.floats(-0.99, 0.99),
    gamma=st.sampled_from([0.0, 0.01, 1.0, 100.0]),
)
def test_explicit_momentum_stays_in_bounds_whatever_the_gradients(grads, target, gamma):
    state = loop(gamma, 1).init(jnp.zeros(1))
    update = cached_update()
    for g in grads:
        state = update(gamma, jnp.full(1, g, jnp.float32), state, jnp.float32(target))
        # The last bit of mu* + (mu - mu*).
        assert abs(float(state.explicit)) <= LIMIT + 1e-6
        assert abs(float(target + state.correction)) <= LIMIT + 1e-6
    if gamma == 0:
        assert float(state.correction) == 0


@cache
def cached_update():
    def call(gamma, g, state, target):
        hyper = {"learning_rate": jnp.float32(0.1), "momentum": target}
        return loop(gamma, 1).update(g, state, **hyper)[1]

    return jax.jit(call)


def test_values_that_are_refused():
    for values in ({"staleness": -1}, {"staleness": 1.5}, {"gamma": -0.1}, {"gamma": np.nan}):
        with pytest.raises(ValueError, match=r"^(staleness|gamma) \S+: must be"):
            closed_loop(0.1, **values)


def test_a_run_has_the_staleness_of_its_groups(config):
    def of(**more):
        whole = {"optimizer.name": "closed_loop", "optimizer.options.gamma": 0.1, **more}
        made = config(whole)
        return optimizers.options(made, made.methods.groups)

    assert of() == {"staleness": 3, "gamma": 0.1}
    assert of(**{"optimizer.options.staleness": 7})["staleness"] == 7
    assert of(**{"method.name": "sync"})["staleness"] == 0


def test_a_run_logs_what_the_loop_measures(config, rows, tmp_path):
    """And with gamma = 0 it is, to the bit, the run with heavy ball."""
    values = {"optimizer.name": "closed_loop", "optimizer.learning_rate": 0.05}
    values |= {"optimizer.momentum": 0.3}
    runs = {
        "loop": {"optimizer.options.gamma": 0.05},
        "open": {"optimizer.options.gamma": 0.0},
        "sgd": {"optimizer.name": "sgd"},
    }
    logs = {}
    for name, differences in runs.items():
        trainer.train(config(values | differences), tmp_path / name)
        logs[name] = rows(tmp_path / name)
    for log, sgd in zip(logs["open"], logs["sgd"], strict=True):
        explicit, total = log.pop("explicit_momentum"), log.pop("total_momentum")
        assert log == sgd
        if log["step"]:
            assert explicit == np.float32(0.3) and np.isfinite(total)
        else:
            assert explicit is None and total is None  # nothing was yet
    moved = [abs(log["explicit_momentum"] - 0.3) for log in logs["loop"][1:]]
    # The first log point is after 5 corrections of 0.05 times an error of about 0.05.
    assert max(moved) > 1e-3
