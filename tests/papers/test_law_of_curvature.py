"""Claim 59: rate times curvature by hand, what claim 22 chose, and the rule as written."""

import json
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from optdyn.configs.papers import law_of_curvature, law_of_curvature_again
from optdyn.configs.papers.law_of_curvature import (
    CURVED,
    POINTS,
    RATES,
    SHARE,
    agreement,
    along,
    at_one_delay,
    cells,
    error,
    noise_scale,
    picture,
    rate_times_curvature,
    setting_of,
    step_of,
    verdict,
)
from optdyn.configs.papers.law_of_delay import BATCHES, DELAYS, OPTIMIZERS, arm_of
from optdyn.problem.models.quadratic import curvatures
from optdyn.training.checks import check
from tests.values import as_experiment

RECORD = Path(__file__).parents[1] / "benchmarks/records/papers_decided.json"
LINE = {"model__dimension": 1, "model__condition": 1.0}  # of curvature 1
CELLS = [(o, b, d) for o in OPTIMIZERS for b in BATCHES for d in DELAYS]


def test_the_settings_are_what_claim_22_chose():
    rows = json.loads(RECORD.read_text())["claims"]["law_of_delay"]["result"]["rows"]
    chose = {
        (row["optimizer"], row["batch_size"], row["delay"]): row["point"]
        for row in rows
        if not row["fed"]
    }
    assert list(chose) == CELLS
    for cell in CELLS:
        # Last bits of a rate, which is a product of a step and 1 - momentum.
        assert setting_of(*cell) == pytest.approx(chose[cell], rel=1e-12)
        check(arm_of(*cell).config.with_(setting_of(*cell)))


def test_a_step_on_a_dense_quadratic():
    """f(x) = 1/2 (x - c)' A (x - c), A and c the means of what examples have."""
    rng = np.random.default_rng(0)
    n = 5
    roots, centre = rng.normal(size=(2, n, n)), rng.normal(size=n)
    each = np.einsum("eij,ekj->eik", roots, roots)
    a, x, u = each.mean(0), rng.normal(size=n), rng.normal(size=n)

    def loss(x, examples):
        apart = x - centre
        return jnp.mean(jnp.einsum("i,eij,j->e", apart, examples["a"], apart)) / 2

    found = step_of(SimpleNamespace(loss=loss), jnp.asarray(x), jnp.asarray(u), {"a": each})
    # float32 sums of 25 products
    np.testing.assert_allclose(found["bend"], u @ a @ u, rtol=1e-5)
    np.testing.assert_allclose(found["gain"], -(a @ (x - centre)) @ u, rtol=1e-5)


def bowl(config, **values):
    """A quadratic of which every batch is all examples, so that its gradient is H x."""
    keys = {"batch_size": 100, "strategy.groups": 1, "cluster.nodes": 1}
    return as_experiment(config(keys | {key.replace("__", "."): v for key, v in values.items()}))


@pytest.mark.parametrize("rate", [0.1, 1.5])
def test_of_sgd_along_an_eigenvector_it_is_the_rate_times_the_eigenvalue(config, rate):
    """One dimension, of curvature 1."""
    values = {**LINE, "optimizer__learning_rate": rate, "optimizer__momentum": 0.0}
    found = along(bowl(config, **values), until=2 * POINTS)
    # x moves by a difference of float32 numbers: 1e-7 of x, which is up to ten steps.
    assert rate_times_curvature(found) == pytest.approx(rate, rel=1e-4)


def test_along_a_run_it_is_that_of_heavy_ball_in_numpy(config):
    """Every update from the first on, as there are as many points as updates."""
    rate, momentum, n = 0.4, 0.7, 4
    keys = {"optimizer__learning_rate": rate, "optimizer__momentum": momentum}
    made = bowl(config, model__dimension=n, **keys)
    found = along(made, until=POINTS)
    h = curvatures(n, made.model.condition).astype(float)
    x, v = np.ones(n), np.zeros(n)
    for gain, bend in zip(found["gain"], found["bend"], strict=True):
        v = h * x + momentum * v
        u = -rate * v
        # Steps are differences of float32 numbers near 1: 1e-7 of a step of 0.1 or more.
        assert gain == pytest.approx(-(h * x) @ u, rel=1e-4, abs=1e-6)
        assert bend == pytest.approx((h * u) @ u, rel=1e-4, abs=1e-6)
        x = x + u


def test_a_slow_gradient_meets_the_long_run_step(config):
    """alpha h / (1 - mu): 0.0005 / 0.1 of curvature 1, less what x moves in ten updates."""
    keys = {"optimizer__learning_rate": 0.0005, "optimizer__momentum": 0.9}
    found = along(bowl(config, **LINE, steps=400, **keys), until=400)
    # The exact factor of x an update is that of a root of z^2 - (1.9 - 0.0005) z + 0.9.
    root = max(np.roots([1, -(1.9 - 0.0005), 0.9]).real)
    assert 1 - root == pytest.approx(0.005, rel=0.1)  # the long-run step times the curvature
    # Steps are a 200th of x, and so known to 2e-5 of them.
    assert rate_times_curvature(found) == pytest.approx(1 - root, rel=1e-3)


def test_the_noise_of_a_gradient_that_is_lost_in_it_is_infinite():
    found = {"trace": [2.0, 2.0, 2.0], "square": [1.0, -1e-3, 0.0]}
    assert np.isinf(noise_scale(found))
    assert noise_scale({"trace": [2.0, 2.0, 2.0], "square": [1.0, 0.5, 0.0]}) == 4.0


def result(holds, spread=0.02):
    """A law of x that holds by construction, or penalties that know nothing of x."""
    rng = np.random.default_rng(1)
    shape = len(OPTIMIZERS), len(BATCHES)
    before, r = np.exp(rng.uniform(3, 6, shape)), np.exp(rng.uniform(-2, 1, shape))
    noise = np.exp(rng.uniform(2, 7, shape))
    x = np.array(DELAYS) * (r / (1 + noise / np.array(BATCHES)))[..., None]
    penalty = (1 + 5 * x) ** 0.8 if holds else np.exp(rng.uniform(0, 3, x.shape))
    penalty[..., 0] = 1
    seeds = np.linspace(1 - spread, 1 + spread, 20)
    rows, steps = [], []
    for i, o in enumerate(OPTIMIZERS):
        for j, b in enumerate(BATCHES):
            of = {"optimizer": o, "batch_size": b}
            steps += [of | {"r": list(r[i, j] * seeds), "noise": list(noise[i, j] * seeds)}]
            every = before[i, j] * penalty[i, j][:, None] * np.linspace(0.98, 1.02, 20)
            rows += [
                of | {"delay": d, "fed": False, "updates": list(each)}
                for d, each in zip(DELAYS, every, strict=True)
            ]
    return {"rows": rows, "steps": steps}


@pytest.mark.parametrize(("holds", "word"), [(True, "confirmed"), (False, "refuted")])
def test_the_rule(holds, word, monkeypatch):
    monkeypatch.setattr(law_of_curvature, "DRAWS", 8)
    found = verdict(json.loads(json.dumps(result(holds))))
    assert found.word == word and "(n = 20)" in found.by


def test_a_law_that_holds_is_found_and_those_beside_it_are_not(monkeypatch):
    monkeypatch.setattr(law_of_curvature, "DRAWS", 8)
    made = result(holds=True)
    assert error(made)[0] == pytest.approx(1, rel=1e-3)  # where the search for c and p ends
    assert min(error(made, by)[0] for by in (RATES, SHARE)) > 1.25
    x, penalty = cells(made, slice(None), CURVED)
    assert [agreement(x, penalty), at_one_delay(x, penalty)] == pytest.approx([1, 1])
    other, _ = cells(made, slice(None), SHARE)
    assert at_one_delay(other, penalty) < 0.9


def test_the_interval_has_the_chance_in_what_is_measured_of_steps(monkeypatch):
    """All penalties stay what they are in every draw; r and B do not."""
    monkeypatch.setattr(law_of_curvature, "DRAWS", 8)
    (_, low, high), (_, wide_low, wide_high) = (error(result(True, by)) for by in (0.0, 0.9))
    assert high - low < 1e-3 < wide_high - wide_low


@pytest.mark.parametrize("what", ["updates", "r"])
def test_what_is_not_whole_leaves_it_open(what, monkeypatch):
    monkeypatch.setattr(law_of_curvature, "DRAWS", 8)
    made = result(holds=True)
    if what == "updates":
        made["rows"][4]["updates"] = [np.inf] * 20
    else:
        made["steps"][3]["r"] = [-0.1] * 20
    assert np.isinf(error(made)[0])
    assert verdict(made).word == "open"
    picture(made, Figure())


def test_claim_64_asks_the_same_of_80_seeds():
    assert law_of_curvature_again.measure is law_of_curvature.measure
    assert law_of_curvature_again.verdict is law_of_curvature.verdict
    assert set(law_of_curvature_again.SEEDS.values()) == {(0, 80)}
    rule = law_of_curvature_again.CLAIM.rule
    assert "80 seeds" in rule
    assert rule.replace("80 seeds,", "the seeds that report, 20,") == law_of_curvature.CLAIM.rule
