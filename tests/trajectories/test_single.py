"""What the meter records of a run against the run itself."""

from importlib import import_module

import jax
import numpy as np
import pytest

from optdyn.implicit_momentum.readings import Window, of_window, together
from optdyn.optimizers.kinds import SGD, Adam
from optdyn.problem.data import order
from optdyn.problem.problem import batches
from optdyn.train import program, single, trainer

compose = import_module("optdyn.methods.compose")  # whose package has a function of that name
STEPS, RATE = 12, 0.01
OPTIMIZERS = {"sgd": SGD(learning_rate=RATE), "adam": Adam(learning_rate=RATE)}
METHODS = {
    "sync": {"method.name": "sync"},
    "asynchronous": {"method.groups": 3, "cluster.nodes": 3},
    "dynamic_batch": {"method.name": "dynamic_batch", "cluster.nodes": 2},
    "local": {"method.name": "local", "cluster.nodes": 1, "cluster.service.name": "constant"}
    | {"model.name": "resmlp", "model.blocks": 2, "model.width": 4},
}


@pytest.fixture
def unmixed(monkeypatch):
    """A sketch as large as the model: random signs, and nothing is added to anything else."""
    monkeypatch.setattr(compose, "SKETCH", 10_000)
    program._make.cache_clear()
    yield
    program._make.cache_clear()


def sketched(tree, like):
    return np.asarray(compose.sketch(tree, like, 10_000))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_recording_is_of_the_run_itself(
    config, mnist, final, tmp_path, unmixed, optimizer, method
):
    """Displacements add up to x_T - x_0, and raw steps are what plain SGD multiplies by alpha."""
    chosen = config({**mnist, "steps": STEPS, "data.train_examples": 60})
    chosen = chosen.with_(METHODS[method], optimizer=OPTIMIZERS[optimizer])
    recorded = single.record(chosen)
    run = trainer.prepare(chosen)
    trainer.train(chosen, tmp_path)
    _, state = final(run, tmp_path)
    moved = sketched(jax.tree.map(np.subtract, state.params, run.params), run.params)
    # Another compilation of the same float32 sums, of numbers below 1.
    np.testing.assert_allclose(recorded.displacements.sum(0), moved, atol=1e-5)
    if optimizer == "sgd":
        np.testing.assert_allclose(recorded.displacements, RATE * recorded.raw_steps, atol=1e-6)
    assert recorded.losses.shape == (STEPS,)
    if method != "local":
        gradient = jax.grad(run.program.problem.loss)
        for independent, found in ((False, -recorded.raw_steps), (True, recorded.gradients)):
            numbers = batches(chosen, 60, 0, 1, independent)[0]
            first = {k: v[numbers] for k, v in run.data.train.items()}
            expected = sketched(gradient(run.params, first), run.params)
            np.testing.assert_allclose(found[0], expected, atol=1e-5)


@pytest.mark.parametrize("inner", ["", "+asynchronous"])
def test_nodes_are_metered_between_their_meetings(config, mnist, unmixed, inner):
    chosen = config(
        {
            **mnist,
            "steps": STEPS,
            "batch_size": 8,
            "data.train_examples": 60,
            "method.name": "model_averaging" + inner,
            "cluster.nodes": 2,
            "cluster.devices_per_node": 2,
        }
    )
    many = chosen.method.with_keys({"groups": 2})
    chosen = chosen.with_(method=many, optimizer=OPTIMIZERS["sgd"])
    recorded = single.record(chosen)
    # float32 sums of numbers below 0.1, in another order.
    np.testing.assert_allclose(recorded.displacements, RATE * recorded.raw_steps, atol=1e-6)
    assert np.linalg.norm(recorded.gradients, axis=1).min() > 0


def test_the_independent_gradient_is_one_of_the_whole_objective(config):
    """Noiseless quadratic: any batch has the gradient H x_t, and d_t = -alpha G_t when alone."""
    alone = {"model.noise": 0.0, "method.groups": 1, "cluster.nodes": 1, "steps": STEPS}
    recorded = single.record(config({**alone, "optimizer.momentum": 0.0}))
    alpha = config().optimizer.learning_rate
    np.testing.assert_allclose(recorded.displacements, -alpha * recorded.gradients, atol=1e-7)


def test_sketches_are_linear_and_keep_inner_products():
    rng = np.random.default_rng(0)
    a, b = ({"one": rng.normal(size=(70, 100)), "two": rng.normal(size=(50,))} for _ in range(2))
    c = jax.tree.map(lambda x, y: x + 2 * y, a, b)
    short = [np.asarray(compose.sketch(tree, a, 512)) for tree in (a, b, c)]
    np.testing.assert_allclose(short[2], short[0] + 2 * short[1], atol=1e-4)  # float32
    exact = sum(float(np.vdot(a[name], c[name])) for name in a)
    # The standard deviation of a count sketch's inner product is |a| |c| sqrt(2 / 512) at most.
    size = np.sqrt(sum(np.vdot(x, x) for x in jax.tree.leaves(a)))
    other = np.sqrt(sum(np.vdot(x, x) for x in jax.tree.leaves(c)))
    assert abs(short[0] @ short[2] - exact) < 4 * size * other * np.sqrt(2 / 512)
    only = {"two": a["two"]}
    rest = np.asarray(compose.sketch(only, a, 512))
    both = np.asarray(compose.sketch({"one": a["one"]}, a, 512))
    np.testing.assert_allclose(short[0], rest + both, atol=1e-4)


def test_shuffled_epochs_do_not_bias_the_reading(config):
    """g = 4 on a noisy quadratic whose epochs are 32 updates: 1 - 1/4, in shuffled order too.

    Second mini-batches drawn from all examples would read more than 0.8 here.
    """
    values = {
        "steps": 2000,
        "batch_size": 8,
        "model.dimension": 128,
        "model.noise": 1.0,
        "data.train_examples": 256,
        "optimizer.momentum": 0.0,
        "optimizer.learning_rate": 0.3,
    }
    runs = [single.record(config({**values, "seed": seed})) for seed in range(3)]
    heed = order.distance_to_epoch(0, 2000, 8, 256, past=1)
    assert (heed == 0).sum() == 62  # of 63 epochs, all but the first
    windows = [of_window(Window(r.raw_steps, r.gradients, heed, None)) for r in runs]
    reading = together(windows)
    ((low, high),) = reading.pieces
    assert low < 0.75 < high < low + 0.12
