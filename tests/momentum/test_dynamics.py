"""Noise, curvature and stability against what can be computed exactly."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from optdyn.clock.timeline import Timeline
from optdyn.momentum.probes import moments, sharpness
from optdyn.momentum.stability import STEPS, limit
from optdyn.problem.models.quadratic import curvatures
from optdyn.train import program, trainer

GRID = STEPS[1] / STEPS[0]
EXAMPLES, DIMENSION = 60, 4


@pytest.fixture(scope="module")
def quadratic(config):
    """Its problem, x_0, examples, and the gradients of these, (n, D), by hand."""
    values = {"model.dimension": DIMENSION, "model.noise": 2.0, "data.train_examples": EXAMPLES}
    run = trainer.prepare(config(values))
    optima = run.data.train["optimum"]
    by_hand = curvatures(DIMENSION, run.config.model.condition) * (1 - optima)
    return run.program.problem, run.params, {"optimum": jnp.asarray(optima)}, by_hand


def test_moments_of_single_examples_are_the_samples(quadratic):
    problem, params, examples, gradients = quadratic
    found = moments(problem, 1, params, examples)
    trace = gradients.var(axis=0, ddof=1).sum()
    np.testing.assert_allclose(found.trace, trace, rtol=1e-4)
    mean = gradients.mean(axis=0)
    np.testing.assert_allclose(found.square, mean @ mean - trace / EXAMPLES, rtol=1e-4)


@pytest.mark.parametrize("small", [4, 7])
def test_moments_of_batches_are_unbiased(quadratic, small):
    problem, params, examples, _ = quadratic
    orders = jax.vmap(lambda key: jax.random.permutation(key, EXAMPLES))(
        jax.random.split(jax.random.key(0), 500)
    )
    each = jax.vmap(
        lambda order: moments(problem, small, params, {"optimum": examples["optimum"][order]})
    )(orders)
    exact = moments(problem, 1, params, examples)
    for name in ("square", "trace"):
        values = np.asarray(getattr(each, name))
        error = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - getattr(exact, name)) < 4 * error + 1e-4
        assert error < 0.03 * exact.trace


def test_one_batch_is_no_two(quadratic):
    problem, params, examples, _ = quadratic
    with pytest.raises(ValueError, match="at least two batches of 31"):
        moments(problem, 31, params, examples)


def test_sharpness_is_the_largest_eigenvalue_of_the_hessian(config, mnist):
    values = {**mnist, "model.hidden": (2,), "data.train_examples": 40}
    run = trainer.prepare(config(values))
    small = {"image": run.data.train["image"][:, 8:20:2, 8:20:2], "label": run.data.train["label"]}
    examples = {name: jnp.asarray(leaf) for name, leaf in small.items()}
    one = {name: leaf[:1] for name, leaf in examples.items()}
    params = program.init(run.config, run.data.classes, jax.random.key(0), one)
    problem = run.program.problem
    flat, tree_of = ravel_pytree(params)
    hessian = jax.jit(jax.hessian(lambda x: problem.loss(tree_of(x), examples)))(flat)
    largest = np.linalg.eigvalsh(np.asarray(hessian, np.float64))[-1]
    found = jax.jit(partial(sharpness, problem), static_argnames="iterations")
    np.testing.assert_allclose(found(params, examples, iterations=200), largest, rtol=1e-3)
    assert 0.9 * largest < found(params, examples) <= 1.0001 * largest


def arrivals(config, groups, service, replicas=200):
    values = {
        "steps": 40 * groups,
        "method.groups": groups,
        "cluster.nodes": groups,
        "cluster.service.name": service,
    }
    known = {"steps_per_epoch": 1, "update_bytes": 0, "replicas": replicas}
    return config(values).timeline(**known)


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_limit_of_constant_staleness(config, groups):
    """2 sin(pi / (4 tau + 2)), from the characteristic polynomial z^(tau + 1) - z^tau + a."""
    exact = 2 * np.sin(np.pi / (4 * (groups - 1) + 2))
    assert exact / GRID < limit(arrivals(config, groups, "constant", 2)) < exact * GRID**2


def second_moments(a, g):
    """Of (x^2, x v, v v', v^2), v what a random one of g memoryless groups has read: exact."""
    x = np.array([1, -2 * a, 0, a**2])
    xv = np.array([1 / g, 1 - (1 + 2 * a) / g, -a, a * (1 + a) / g])
    vv = np.array([g**-2, 2 / g - 2 * (1 + a) / g**2, 1 - 2 * (1 + a) / g, ((1 + a) / g) ** 2])
    return np.array([x, xv, vv, x / g + np.array([0, 0, 0, 1 - 1 / g])])


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_limit_of_memoryless_staleness(config, groups):
    radii = [np.abs(np.linalg.eigvals(second_moments(a, groups))).max() for a in STEPS]
    exact = STEPS[np.argmax(np.array(radii) > 1 + 1e-9)]
    # Two hundred replicas hold few of the rare ones that grow first, so theirs is larger.
    assert 0.95 * exact < limit(arrivals(config, groups, "exponential")) < 1.25 * exact


def test_nothing_stale_has_no_limit():
    zeros = np.zeros((3, 10), np.int32)
    assert limit(Timeline(zeros, zeros, zeros, zeros, zeros + 1.0, 1)) == np.inf
