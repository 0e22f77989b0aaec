"""The fit of implicit momentum, against asynchronous SGD simulated here in NumPy."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter
from scipy.stats import ortho_group

from analysis import estimators, implicit_momentum
from analysis.implicit_momentum import AnalysisError, fit, fit_workdir, theory
from analysis.lags import equivalent_momentum, geometric_distance

ROOT = Path(__file__).parents[2]


def simulate(
    rng, replicas, steps, groups, alpha, *, noise=0.0, mu=0.0, size=8, service="exponential"
):
    """Displacements and gradients (R, T, q) of f = sum_c h_c x_c^2 / 2, all workers at x_0 = 1.

    Memoryless service makes the arriving worker uniform among the groups, constant service makes
    it the next in turn.
    """
    h = np.geomspace(0.1, 1, size)
    rows = np.arange(replicas)
    x, v = np.ones((replicas, size)), np.zeros((replicas, size))
    held = np.ones((groups, replicas, size))
    d, gradients = np.empty((2, replicas, steps, size))
    for t in range(steps):
        worker = rng.integers(groups, size=replicas) if service == "exponential" else t % groups
        gradients[:, t] = h * x
        stale = h * held[worker, rows] + noise * rng.standard_normal(x.shape)
        v = mu * v - alpha * stale
        x = x + v
        held[worker, rows] = x
        d[:, t] = v
    return d, gradients


def heavy_ball(rng, replicas, steps, rate, mu, noise, size, first=None):
    """Synchronous displacements with momentum mu; `first`: learning rate of the first update."""
    h = np.geomspace(0.1, 1, size)
    x, d = np.ones((replicas, size)), np.empty((replicas, steps, size))
    for t in range(steps):
        gradient = h * x + noise * rng.standard_normal(x.shape)
        d[:, t] = mu * d[:, t - 1] - rate * gradient if t else -(first or rate) * gradient
        x = x + d[:, t]
    return d


def expectation(steps, groups, alpha, mu, size=8, replicas=4):
    """E d_t and E G_t of memoryless asynchronous SGD, exact: P(tau_t = k) summed, no sampling."""
    h = np.geomspace(0.1, 1, size)
    x, d = np.ones((steps + 1, size)), np.zeros((steps, size))
    for t in range(steps):
        p = (1 / groups) * (1 - 1 / groups) ** np.arange(t + 1)
        p[t] = (1 - 1 / groups) ** t  # a worker that arrives for the first time read x_0
        d[t] = mu * (d[t - 1] if t else 0) - alpha * h * (p @ x[t::-1])
        x[t + 1] = x[t] + d[t]
    copies = (replicas, steps, size)
    return np.broadcast_to(d, copies), np.broadcast_to(h * x[:-1], copies)


def deviation(value, interval, truth):
    """Distance from the truth in standard errors, read off a 95 % interval."""
    return abs(value - truth) / ((interval[1] - interval[0]) / 3.92)


def config(groups=4, *, mu=0.0, alpha=0.3, name="asynchronous", service="exponential", **cluster):
    return {
        "strategy": {"name": name, "groups": groups},
        "optimizer": {"name": "sgd", "learning_rate": alpha, "momentum": mu},
        "cluster": {"service": service, "nodes": groups, "devices_per_node": 1, **cluster},
    }


# The theorem


@pytest.mark.parametrize("mu", [0.0, 0.5, -0.3])
@pytest.mark.parametrize("groups", [2, 4, 16])
def test_exact_expectations_obey_the_lag_polynomial(groups, mu):
    """Without sampling noise the fit must return phi and eta of the theory to rounding."""
    d, g = expectation(16, groups, 0.3, mu)
    expected = theory(config(groups, mu=mu))
    result = fit(d, g, lags=len(expected.phi), bootstrap=20)
    # Rounding of 1e-16 times a condition number below 1e6.
    np.testing.assert_allclose(result.phi, expected.phi, atol=1e-9)
    np.testing.assert_allclose(result.eta, expected.eta, atol=1e-9)
    total = equivalent_momentum(np.array(expected.phi), np.array(expected.eta))
    assert abs(result.momentum - total) < 1e-8
    assert result.ok and result.instrument_strength > 1e6


@pytest.mark.parametrize("groups", [2, 4, 8, 16])
def test_noiseless_asynchrony_begets_momentum(groups):
    d, g = simulate(np.random.default_rng(groups), 1000, 8 + groups, groups, 0.5)
    result = fit(d, g, bootstrap=200)
    low, high = result.momentum_interval
    # Four standard errors: one of 16,000 draws would miss.
    assert deviation(result.momentum, (low, high), 1 - 1 / groups) < 4
    assert deviation(result.learning_rate, result.learning_rate_interval, 0.5 / groups) < 4
    assert high - low < 0.08  # half the distance from g = 8 to g = 4


def test_least_squares_is_biased_and_instruments_are_not():
    d, g = simulate(np.random.default_rng(0), 100, 24, 8, 0.3, noise=0.5, size=32)
    result = fit(d, g, bootstrap=300)
    low, high = result.momentum_interval
    assert low < 0.875 < high
    # Noise in the regressors pulls least squares to 0, beyond what the interval allows.
    assert result.least_squares_momentum < low - (high - low)
    assert deviation(result.learning_rate, result.learning_rate_interval, 0.3 / 8) < 4


@pytest.mark.parametrize("mu", [0.9, 0.6, -0.3])
def test_synchronous_heavy_ball_is_recovered(mu):
    d, g = simulate(np.random.default_rng(1), 200, 24, 1, 0.2, noise=0.1, mu=mu)
    result = fit(d, g, bootstrap=200)
    assert deviation(result.momentum, result.momentum_interval, mu) < 4
    assert deviation(result.learning_rate, result.learning_rate_interval, 0.2) < 4
    assert np.diff(result.momentum_interval) < 0.1


@pytest.mark.parametrize("mu", [0.5, -0.3])
def test_explicit_momentum_gives_two_lags(mu):
    d, g = simulate(np.random.default_rng(2), 400, 12, 4, 0.3, noise=0.1, mu=mu)
    result = fit(d, g, lags=2, bootstrap=200)
    for value, interval, truth in zip(
        result.phi, result.phi_interval, (mu + 0.75, -mu * 0.75), strict=True
    ):
        assert deviation(value, interval, truth) < 4
    # Mean lags add up: mu / (1 - mu) + (g - 1).
    mean = mu / (1 - mu) + 3
    assert deviation(result.momentum, result.momentum_interval, mean / (1 + mean)) < 4
    assert result.geometric_distance > 0.02  # two lags are not one


def test_constant_service_is_a_spike_and_no_momentum():
    """Round robin of g applies each gradient g - 1 updates late, and nothing else."""
    d, g = simulate(np.random.default_rng(3), 400, 30, 4, 0.3, noise=0.05, service="constant")
    expected = theory(config(4, service="constant"))
    assert expected == ((), (0.0, 0.0, 0.0, 0.3))
    result = fit(d, g, lags=0, gradient_lags=3, bootstrap=200)
    assert result.ok
    for value, interval, truth in zip(result.eta, result.eta_interval, expected.eta, strict=True):
        assert deviation(value, interval, truth) < 4
    # Total variation of a spike at 3 from the geometric law of mean 3: 1 - (1/4) (3/4)^3.
    spike = geometric_distance(np.zeros(0), np.array(expected.eta))
    assert spike == pytest.approx(1 - 0.75**3 / 4)
    # Within what errors of a few percent of alpha in each of the terms add up to.
    assert result.geometric_distance == pytest.approx(spike, abs=0.15)
    assert result.momentum == pytest.approx(0.75, abs=0.02)


# The estimator


def test_moments_are_those_of_all_pairs_and_of_all_splits():
    rng = np.random.default_rng(4)
    n, steps, lags, gradient_lags = 6, 7, 2, 1
    d, g = rng.standard_normal((2, n, steps, 3))

    def columns(i):
        """Signals of replica i, element by element: d_t, d_{t-1}, d_{t-2}, -G_t, -G_{t-1}."""
        points = list(itertools.product(range(1, steps), range(3)))
        rows = [[d[i, t - k, c] if t >= k else 0.0 for t, c in points] for k in range(lags + 1)]
        return np.array(rows + [[-g[i, t - m, c] for t, c in points] for m in range(2)])

    every = [columns(i) for i in range(n)]
    pairs = [every[i] @ every[j].T for i, j in itertools.permutations(range(n), 2)]
    xi = estimators.weights(rng, n, 3) - 1
    moments = estimators.moments(d, g, lags, gradient_lags, xi)
    found = estimators.split_replica(moments)
    # Sums of some hundred float64 products of order 1.
    np.testing.assert_allclose(found, np.mean(pairs, axis=0), atol=1e-12)
    splits = []
    for half in itertools.combinations(range(n), n // 2):
        rest = [i for i in range(n) if i not in half]
        one, other = (np.mean([every[i] for i in side], axis=0) for side in (half, rest))
        splits.append(one @ other.T)
    np.testing.assert_allclose(found, np.mean(splits, axis=0), atol=1e-12)


def test_bootstrap_weights_the_pairs():
    """Each draw is a weighted mean over pairs of different replicas, weights 1 + s (count - 1)."""
    rng = np.random.default_rng(5)
    d, g = simulate(rng, 6, 8, 2, 0.5, noise=0.3, size=3)
    xi = estimators.weights(rng, 6, 5) - 1
    draws = estimators.bootstrap(estimators.moments(d, g, 1, 0, xi))
    every = estimators.signals(d, g, 1, 0)
    products = np.einsum("iax,jbx->ijab", every, every)

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


# Refusals

SYNC = simulate(np.random.default_rng(8), 40, 20, 1, 0.1, noise=0.5)
ONE = np.broadcast_to(0.9 ** np.arange(20)[:, None], (4, 20, 1))  # plain SGD, one coordinate
DIVERGED = np.where(np.arange(40)[:, None, None] == 3, np.inf, SYNC[0])


@pytest.mark.parametrize(
    ("d", "g", "reason"),
    [
        (np.zeros_like(SYNC[0]), SYNC[1], "no excitation"),
        (SYNC[0], np.zeros_like(SYNC[1]), "no excitation"),
        (-0.1 * ONE, ONE, "collinear"),
        (*SYNC, "weak instruments"),
        (SYNC[0][:3], SYNC[1][:3], "too few replicas"),
        (SYNC[0][:, :1], SYNC[1][:, :1], "too few updates"),
        (DIVERGED, SYNC[1], "1 of 40 trajectories are not finite"),
        (SYNC[0], DIVERGED, "1 of 40 trajectories are not finite"),
    ],
)
def test_ill_posed_fits_are_refused(d, g, reason):
    result = fit(d, g, bootstrap=100)
    assert not result.ok and reason in result.reason
    numbers = (*result.phi, *result.eta, result.momentum, result.learning_rate)
    assert np.isnan([*numbers, *result.momentum_interval, result.geometric_distance]).all()


def test_arguments_that_make_no_fit_raise():
    d, g = SYNC
    with pytest.raises(AnalysisError, match="must both be"):
        fit(d, g[:, 1:])
    with pytest.raises(AnalysisError, match="at least"):
        fit(d, g, lags=-1)


# The other estimators


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


# Lag polynomials


@given(
    st.lists(st.floats(-0.4, 0.4), min_size=0, max_size=2),
    st.lists(st.floats(0.01, 1), min_size=1, max_size=5),
)
def test_equivalent_momentum_has_the_mean_lag_of_the_response(phi, eta):
    response = lfilter(eta, [1, *(-p for p in phi)], np.eye(1, 400)[0])
    mean = np.arange(400) @ response / response.sum()
    # Roots are at most 0.87 in size: 0.87^400 is below 1e-23, so rounding alone.
    found = equivalent_momentum(np.array(phi), np.array(eta))
    assert found == pytest.approx(mean / (1 + mean), abs=1e-9)
    distance = geometric_distance(np.array(phi), np.array(eta))
    if len(phi) == len(eta) == 1:
        assert found == pytest.approx(phi[0]) and distance < 1e-12


@pytest.mark.parametrize(
    ("given_config", "expected"),
    [
        (config(8), ((0.875,), (0.3 / 8,))),
        (config(4, mu=0.5), ((1.25, -0.375), (0.075,))),
        (config(4, service="geometric", nodes=16), ((0.75,), (0.075,))),
        (config(8, name="sync", mu=0.9), ((0.9,), (0.3,))),
        (config(1, service="lognormal"), ((0.0,), (0.3,))),
        (config(3, service="constant", mu=0.2), ((0.2,), (0.0, 0.0, 0.3))),
        (config(4, nodes=16), None),  # the slowest of 4 is not memoryless
        (config(4, speeds=[1, 1, 1, 2]), None),
        (config(4, service="lognormal"), None),
        (config(4, name="daso"), None),
        (config(4) | {"optimizer": {"name": "adam", "learning_rate": 1, "momentum": 0}}, None),
    ],
)
def test_theory(given_config, expected):
    found = theory(given_config)
    assert (found is None) == (expected is None)
    if expected:
        for terms, truth in zip(found, expected, strict=True):
            np.testing.assert_allclose(terms, truth, rtol=1e-12)  # rounding


# Work directories and the command


def workdir(folder, groups=4, mu=0.0, service="exponential", **extra):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(11)
    d, g = simulate(rng, 300, 16, groups, 0.3, noise=0.05, mu=mu, service=service)
    (folder / "config.json").write_text(json.dumps(config(groups, mu=mu, service=service)))
    arrays = {"displacements": d, "gradients": g, **extra}
    np.savez(folder / "trajectories.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})
    return folder


def command(*arguments):
    line = [sys.executable, "-m", "analysis.implicit_momentum", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_workdir_is_fitted_with_the_terms_of_its_theory(tmp_path):
    rng, momenta = np.random.default_rng(12), np.array([0.5, 0.7, 0.9])
    runs = np.stack([heavy_ball(rng, 50, 16, 0.3 * (1 - m), m, 0.05, 8, 0.3) for m in momenta])
    one = workdir(tmp_path / "one", matching_momenta=momenta, matching_displacements=runs)
    result = fit_workdir(one, bootstrap=100)
    assert result == json.loads((one / "implicit_momentum.json").read_text())
    assert sorted(p.name for p in one.iterdir()) == [
        "config.json",
        "implicit_momentum.json",
        "trajectories.npz",
    ]
    assert result["theory_phi"] == [0.75] and result["theory_learning_rate"] == 0.075
    low, high = result["momentum_interval"]
    assert result["momentum_covers"] == result["phi_covers"][0] == (low <= 0.75 <= high)
    assert result["matching"]["momentum"] == pytest.approx(0.75, abs=0.1)  # half the spacing
    assert fit_workdir(one, bootstrap=100) == result  # seeded
    assert fit_workdir(one, bootstrap=100, steps=10)["steps"] == 10

    two = fit_workdir(workdir(tmp_path / "two", mu=0.5), bootstrap=100)
    assert two["lags"] == 2 and len(two["phi_covers"]) == 2
    single = fit_workdir(tmp_path / "two", lags=1, bootstrap=100)
    assert single["phi_covers"] is None  # one lag holds no two

    three = fit_workdir(workdir(tmp_path / "three", 2, service="constant"), bootstrap=100)
    assert (three["lags"], three["gradient_lags"]) == (0, 1)
    assert three["theory_eta"] == [0.0, 0.3] and three["theory_momentum"] == 0.5


def test_command_on_a_sweep(tmp_path):
    for groups in (2, 16):
        workdir(tmp_path / "points" / f"g{groups}", groups)
    few = workdir(tmp_path / "points" / "g3", 3)
    with np.load(few / "trajectories.npz") as file:
        np.savez(few / "trajectories.npz", **{k: v[:2] for k, v in file.items()})
    done = command(f"--workdir={tmp_path}", "--bootstrap=100")
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.strip().split("\n")
    assert "theory" in header and "least squares" in header
    assert [row.split()[0] for row in rows] == ["g2", "g3", "g16"]
    assert "too few replicas" in rows[1]
    for groups in (2, 3, 16):
        folder = tmp_path / "points" / f"g{groups}"
        result = json.loads((folder / "implicit_momentum.json").read_text())
        assert result["ok"] == (groups != 3) and result["theory_momentum"] == 1 - 1 / groups
        assert (result["momentum"] is None) == (groups == 3)


def test_input_that_cannot_be_read_is_one_line_and_exit_code_2(tmp_path):
    done = command(f"--workdir={tmp_path / 'nowhere'}")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == f"error: {tmp_path / 'nowhere'}: no such folder\n"
    with pytest.raises(AnalysisError, match=r"no trajectories\.npz"):
        implicit_momentum.replica_workdirs(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "missing", "config", "keys"])
def test_damaged_workdirs_are_named(tmp_path, damage):
    folder = workdir(tmp_path / "run")
    file, settings_file = folder / "trajectories.npz", folder / "config.json"
    whole = file.read_bytes()
    if damage == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    elif damage == "text":
        file.write_text("no archive")
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "missing":
        np.savez(file, displacements=np.zeros((4, 5, 6)))
    elif damage == "config":
        settings_file.write_text("{")
    else:
        settings_file.write_text('{"strategy": {"name": "sync"}}')
    with pytest.raises(AnalysisError) as caught:
        fit_workdir(folder)
    named = settings_file if damage in ("config", "keys") else file
    assert str(named) in str(caught.value) and "\n" not in str(caught.value)
    assert not (folder / "implicit_momentum.json").exists()
