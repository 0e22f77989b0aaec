"""The estimators, against brute force and known answers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

from optdyn.implicit_momentum import estimators
from optdyn.report.implicit_momentum import fit
from tests.report.simulation import heavy_ball, simulate


def test_moments_are_those_of_all_pairs_and_of_all_splits():
    rng = np.random.default_rng(4)
    n, steps, lags, gradient_lags = 6, 7, 2, 1
    d, g = rng.standard_normal((2, n, steps, 3))

    def columns(i):
        """Signals of replica i, element by element: d_t, d_{t-1}, d_{t-2}, -G_t, -G_{t-1}."""
        points = list(itertools.product(range(1, steps), range(3)))
        rows = [[d[i, t - k, c] if t >= k else 0.0 for t, c in points] for k in range(lags + 1)]
        return np.array(rows + [[-g[i, t - m, c] for t, c in points] for m in range(2)])

    replicas = [columns(i) for i in range(n)]
    pairs = [replicas[i] @ replicas[j].T for i, j in itertools.permutations(range(n), 2)]
    xi = estimators.weights(rng, n, 3) - 1
    moments = estimators.moments(d, g, lags, gradient_lags, xi)
    found = estimators.split_replica(moments)
    # Sums of some hundred float64 products of order 1.
    np.testing.assert_allclose(found, np.mean(pairs, axis=0), atol=1e-12)
    splits = []
    for half in itertools.combinations(range(n), n // 2):
        rest = [i for i in range(n) if i not in half]
        one, other = (np.mean([replicas[i] for i in side], axis=0) for side in (half, rest))
        splits.append(one @ other.T)
    np.testing.assert_allclose(found, np.mean(splits, axis=0), atol=1e-12)


def test_bootstrap_weights_the_pairs():
    """Each draw is a weighted mean over pairs of different replicas, weights 1 + s (count - 1)."""
    rng = np.random.default_rng(5)
    d, g = simulate(rng, 6, 8, 2, 0.5, noise=0.3, size=3)
    xi = estimators.weights(rng, 6, 5) - 1
    draws = estimators.bootstrap(estimators.moments(d, g, 1, 0, xi))
    signals = estimators.signals(d, g, 1, 0)
    products = np.einsum("iax,jbx->ijab", signals, signals)

    def weighted(w):
        pairs = np.outer(w, w) * (1 - np.eye(6))
        return np.einsum("ij,ijab->ab", pairs, products) / pairs.sum()

    # The spread s is what the data call for, sqrt(nu) with nu = 2 / (1 + sqrt(1 + 4 r)); r in
    # [0, 1/2] leaves [0.85, 1]. It must be the same one for all draws and moments.
    errors = [
        max(abs(weighted(1 + s * row) - draw).max() for row, draw in zip(xi, draws, strict=True))
        for s in np.linspace(0.85, 1, 1501)
    ]
    # Steps of 1e-4 in s move moments of order 1 by that much.
    assert min(errors) < 1e-3 < errors[0] + errors[-1]


def test_blocks_of_coordinates_change_nothing(monkeypatch):
    d, g = simulate(np.random.default_rng(13), 10, 8, 2, 0.5, noise=0.3)
    whole = fit(d, g, bootstrap=20)
    monkeypatch.setattr(estimators, "BLOCK", 1)  # one coordinate at a time
    # Another order of summation: rounding alone.
    np.testing.assert_allclose(fit(d, g, bootstrap=20).momentum_interval, whole.momentum_interval)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(1e-3, 1e3))
def test_estimates_do_not_depend_on_order_axes_or_units(seed, scale):
    rng = np.random.default_rng(seed)
    d, g = simulate(np.random.default_rng(6), 30, 12, 4, 0.3, noise=0.1, size=5)
    plain = fit(d, g, bootstrap=50)
    order, turn = rng.permutation(30), ortho_group.rvs(5, random_state=rng)
    turned = fit(d @ turn, g @ turn, bootstrap=50)
    shuffled = fit(d[order], g[order], bootstrap=50)
    scaled = fit(scale * d, scale * g, bootstrap=50)
    for other in (turned, shuffled, scaled):
        # Rounding times the condition number of the normal equations, below 1e4 here.
        np.testing.assert_allclose((*other.phi, *other.eta), (*plain.phi, *plain.eta), rtol=1e-9)
    for other in (turned, scaled):
        np.testing.assert_allclose(other.momentum_interval, plain.momentum_interval, rtol=1e-9)
        assert other.instrument_strength == pytest.approx(plain.instrument_strength, rel=1e-6)
    # Gradients in other units change the learning rate alone.
    units = fit(d, scale * g, bootstrap=50)
    assert units.momentum == pytest.approx(plain.momentum, rel=1e-9)
    assert units.learning_rate * scale == pytest.approx(plain.learning_rate, rel=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_intervals_cover_and_are_not_too_wide(noise):
    rng, count = np.random.default_rng(7), 150
    results = []
    for seed in range(count):
        d, g = simulate(rng, 40, 12, 4, 0.3, noise=noise, size=8)
        results.append(fit(d, g, bootstrap=150, seed=seed))
    values, (low, high) = (
        np.array([r.momentum for r in results]),
        np.array([r.momentum_interval for r in results]).T,
    )
    assert all(r.ok for r in results)
    # Binomial: 0.95 - 3 sqrt(0.95 x 0.05 / 150) = 0.897.
    assert np.mean((low <= 0.75) & (high >= 0.75)) > 0.897
    # The jackknife's variance is at most twice the true one: sqrt 2 in width, a tenth more for the
    # standard deviation of 150 values and of 150 draws. Plain weights give up to sqrt 3.
    assert np.median(high - low) < 1.1 * np.sqrt(2) * 3.92 * values.std()
    # Unbiased: three standard errors of the mean of the estimates.
    assert abs(values.mean() - 0.75) < 3 * values.std() / np.sqrt(count)


def test_yellowfin_is_exact_for_synchronous_heavy_ball():
    d, g = simulate(np.random.default_rng(9), 1, 30, 1, 0.3, mu=0.7)
    assert estimators.yellowfin(d[0], g[0], 0.3) == pytest.approx(0.7, abs=1e-12)  # rounding


def matched(momenta, seed=10):
    """Asynchronous g = 4 beside synchronous runs of learning rate alpha (1 - mu), d_0 alike."""
    rng = np.random.default_rng(seed)
    d, _ = simulate(rng, 300, 30, 4, 0.4, noise=0.1)
    runs = [heavy_ball(rng, 300, 30, 0.4 * (1 - mu), mu, 0.1, 8, first=0.4) for mu in momenta]
    return estimators.matching(d, np.array(momenta), np.stack(runs), draws=200)


def test_matching_finds_the_implicit_momentum():
    result = matched([0.9, 0.6, 0.7, 0.8])
    low, high = result.interval
    assert result.ok and low < 0.75 < high
    # The distance is no exact parabola: a tenth of the grid's spacing, beside the noise.
    assert result.momentum == pytest.approx(0.75, abs=0.02)
    assert high - low < 0.1


@pytest.mark.parametrize("momenta", [[0.1, 0.3, 0.5], [0.9, 0.95, 0.97], [0.7, 0.8]])
def test_matching_refuses_what_the_grid_does_not_hold(momenta):
    result = matched(momenta)
    assert not result.ok and np.isnan(result.momentum)
    assert ("edge" in result.reason) == (len(momenta) == 3)
