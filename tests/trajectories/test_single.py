"""What the meter records of a run against the run itself."""

import jax
import numpy as np
import pytest

from research import seeds, trainer
from research.config import ConfigError
from research.problem import batches
from research.trajectories import replicas, single

STEPS = 12


@pytest.fixture(scope="module")
def values(mnist):
    return {**mnist, "steps": STEPS, "data.train_examples": 60}


@pytest.mark.parametrize("optimizer, groups", [("sgd", 3), ("adam", 3), ("sgd", 1)])
def test_a_recording_is_of_the_run_itself(
    config, values, final, tmp_path, monkeypatch, optimizer, groups
):
    """A sketch as large as the model mixes nothing, so displacements add up to x_T - x_0."""
    monkeypatch.setattr(single, "SKETCH", 10_000)
    single._recorder.cache_clear()
    strategy = "asynchronous" if groups > 1 else "sync"
    chosen = config(
        {
            **values,
            "optimizer.name": optimizer,
            "optimizer.learning_rate": 0.01,
            "optimizer.momentum": 0.0,
            "strategy.name": strategy,
            "strategy.groups": groups,
            "cluster.nodes": groups,
        }
    )
    recorded = single.record(chosen, raw=True)
    single._recorder.cache_clear()
    run = trainer.prepare(chosen)
    trainer.train(chosen, tmp_path)
    _, state = final(run, tmp_path)
    project = replicas.sketch(seeds.key(chosen.seed, "subspace"), run.params, 10_000)
    moved = project(jax.tree.map(np.subtract, state.params, run.params))
    # Another compilation of the same float32 sums, of numbers below 1.
    np.testing.assert_allclose(recorded.displacements.sum(0), moved, atol=1e-5)
    if optimizer == "sgd":
        np.testing.assert_allclose(recorded.displacements, 0.01 * recorded.raw_steps, atol=1e-6)
    # The first gradient is at x_0, of a batch that is not the run's own.
    gradient = jax.grad(run.program.problem.loss)
    first = {k: v[batches(chosen, 60, 0, 1)[0]] for k, v in run.data.train.items()}
    own = project(gradient(run.params, first))
    np.testing.assert_allclose(recorded.raw_steps[0], -own, atol=1e-5)
    assert np.linalg.norm(recorded.gradients[0] - own) > 0.1 * np.linalg.norm(own)
    assert recorded.losses.shape == (STEPS,)


def test_the_independent_gradient_is_one_of_the_whole_objective(config):
    """Noiseless quadratic: any batch has the gradient H x_t, and d_t = -alpha G_t when alone."""
    alone = {"model.noise": 0.0, "strategy.groups": 1, "cluster.nodes": 1, "steps": STEPS}
    recorded = single.record(config({**alone, "optimizer.momentum": 0.0}))
    alpha = config().optimizer.learning_rate
    np.testing.assert_allclose(recorded.displacements, -alpha * recorded.gradients, atol=1e-7)
    assert recorded.raw_steps is None


def test_what_it_cannot_read_is_refused(config):
    with pytest.raises(ConfigError, match="one gradient an update, not 'daso'"):
        single.record(config({"strategy.name": "daso"}))
