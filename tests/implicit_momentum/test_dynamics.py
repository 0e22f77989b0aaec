"""Noise, curvature, stability and probes of them, against what can be computed exactly."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from optdyn.clock.timeline import Timeline
from optdyn.implicit_momentum.probes import alignment, moments, sharpness
from optdyn.implicit_momentum.stability import STEPS, limit
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
    found = jax.vmap(
        lambda order: moments(problem, small, params, {"optimum": examples["optimum"][order]})
    )(orders)
    exact = moments(problem, 1, params, examples)
    for name in ("square", "trace"):
        values = np.asarray(getattr(found, name))
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


# Probes at log points.


PROBED = {
    "steps": 20,
    "model.dimension": 8,
    "model.condition": 5.0,
    "model.noise": 0.5,
    "data.train_examples": 400,
    "optimizer.momentum": 0.0,
    "probes.noise_scale": True,
    "probes.sharpness": True,
}


def logged(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_noise_and_sharpness_of_a_quadratic(config, tmp_path):
    """H is diagonal, so a gradient is H (x - o) of an optimum o: noise is H's of the optima's."""
    chosen = config(PROBED)
    trainer.train(chosen, tmp_path)
    run = trainer.prepare(chosen)
    h = np.asarray(curvatures(8, 5.0))
    optima = np.asarray(run.data.train["optimum"])
    first = logged(tmp_path)[0]
    x = jax.tree.leaves(run.params)[0]
    gradient = h * (np.asarray(x) - optima.mean(0))
    trace = (h**2 * optima.var(0, ddof=1)).sum()
    # Two sample sizes of one set of 400: the estimate is the sample's own, up to float32 and to
    # what a finite set lends to both sizes, one part in 400.
    assert first["gradient_trace"] == pytest.approx(trace, rel=0.1)
    square = (gradient**2).sum() - trace / 400
    assert first["gradient_square"] == pytest.approx(square, rel=0.1)
    ratio = first["gradient_trace"] / first["gradient_square"]
    assert first["noise_scale"] == pytest.approx(ratio, rel=1e-5)
    # From below, as power iterations end early.
    assert 0.95 * h.max() < first["sharpness"] <= h.max() * (1 + 1e-5)
    assert all("sharpness" in row for row in logged(tmp_path))


def test_alignment_is_the_mean_cosine_of_pairs(config):
    run = trainer.prepare(config({"model.dimension": 8, "model.noise": 0.0}))
    rng = np.random.default_rng(0)
    replicas = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=(5, *leaf.shape)), jnp.float32), run.params
    )
    gradients = np.asarray(curvatures(8, config().model.condition)) * jax.tree.leaves(replicas)[0]
    unit = gradients / np.linalg.norm(gradients, axis=-1, keepdims=True)
    cosines = unit @ unit.T
    expected = float(cosines[~np.eye(5, dtype=bool)].mean())
    examples = {"optimum": jnp.zeros((3, 8))}
    found = alignment(run.program.problem, replicas, examples)
    assert float(found) == pytest.approx(expected, abs=1e-5)
    same = jax.tree.map(lambda leaf: jnp.repeat(leaf[:1], 3, axis=0), replicas)
    assert float(alignment(run.program.problem, same, examples)) == pytest.approx(1, abs=1e-5)


def test_nodes_that_drift_apart_say_so(config, mnist, tmp_path):
    values = {
        **mnist,
        "steps": 40,
        "batch_size": 8,
        "method.name": "model_averaging",
        "method.period": 10,
        "cluster.nodes": 4,
        "log_every": 5,
        "checkpoint_every": 20,
        "optimizer.momentum": 0.0,
        "probes.similarity": True,
        "probes.mean": True,
    }
    trainer.train(config(values), tmp_path)
    found = {row["step"]: row["gradient_similarity"] for row in logged(tmp_path)}
    met = [found[step] for step in (0, 10, 20, 30, 40)]
    np.testing.assert_allclose(met, 1, atol=1e-4)  # one set of parameters; float32 sums
    assert all(found[step] < 1 - 1e-3 for step in (5, 15, 25, 35))
    for row in logged(tmp_path):  # the loss of one of them, unless they have just met
        same = abs(row["mean_loss"] / row["train_loss"] - 1) < 1e-5  # float32 means of 200 losses
        assert same == (row["step"] % 10 == 0)


def test_runs_without_probes_compile_none(config):
    assert trainer.prepare(config()).program.extra_metrics is None
    made = trainer.prepare(config({"probes.sharpness": True}))
    assert isinstance(made.program, program.Program) and made.program.extra_metrics is not None
