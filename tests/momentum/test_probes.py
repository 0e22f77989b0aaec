"""What log points measure of the parameters, against what is known of quadratics."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.momentum.probes import alignment
from optdyn.problem.models.quadratic import curvatures
from optdyn.train import program, trainer

QUADRATIC = {
    "steps": 20,
    "model.dimension": 8,
    "model.condition": 5.0,
    "model.noise": 0.5,
    "data.train_examples": 400,
    "optimizer.momentum": 0.0,
    "probes.noise_scale": True,
    "probes.sharpness": True,
}


def rows(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_noise_and_sharpness_of_a_quadratic(config, tmp_path):
    """H is diagonal, so a gradient is H (x - o) of an optimum o: noise is H's of the optima's."""
    chosen = config(QUADRATIC)
    trainer.train(chosen, tmp_path)
    run = trainer.prepare(chosen)
    h = np.asarray(curvatures(8, 5.0))
    optima = np.asarray(run.data.train["optimum"])
    first = rows(tmp_path)[0]
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
    assert all("sharpness" in row for row in rows(tmp_path))


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
    found = {row["step"]: row["gradient_similarity"] for row in rows(tmp_path)}
    met = [found[step] for step in (0, 10, 20, 30, 40)]
    np.testing.assert_allclose(met, 1, atol=1e-4)  # one set of parameters; float32 sums
    assert all(found[step] < 1 - 1e-3 for step in (5, 15, 25, 35))
    for row in rows(tmp_path):  # the loss of one of them, unless they have just met
        same = abs(row["mean_loss"] / row["train_loss"] - 1) < 1e-5  # float32 means of 200 losses
        assert same == (row["step"] % 10 == 0)


def test_runs_without_probes_compile_none(config):
    assert trainer.prepare(config()).program.extra_metrics is None
    made = trainer.prepare(config({"probes.sharpness": True}))
    assert isinstance(made.program, program.Program) and made.program.extra_metrics is not None
