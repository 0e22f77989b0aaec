"""The fit of implicit momentum, against asynchronous SGD simulated in NumPy."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter

from optdyn.implicit_momentum.lags import (
    equivalent_momentum,
    geometric_distance,
    groups_of,
    memoryless,
)
from optdyn.report import implicit_momentum
from optdyn.report.implicit_momentum import AnalysisError, fit, fit_workdir, theory
from tests.report.simulation import config, deviation, expectation, heavy_ball, simulate


@pytest.mark.parametrize("mu", [0.0, 0.5, -0.3])
@pytest.mark.parametrize("groups", [1, 2, 4, 16])
def test_exact_expectations_obey_the_lag_polynomial(groups, mu):
    d, g = expectation(16, groups, 0.3, mu)
    expected = theory(config(groups, mu=mu))
    result = fit(d, g, lags=len(expected.phi), bootstrap=20)
    # Rounding of 1e-16 times a condition number below 1e6.
    np.testing.assert_allclose(result.phi, expected.phi, atol=1e-9)
    np.testing.assert_allclose(result.eta, expected.eta, atol=1e-9)
    total = equivalent_momentum(np.array(expected.phi), np.array(expected.eta))
    assert abs(result.momentum - total) < 1e-8
    assert result.ok and result.instrument_strength > 1e6


def test_least_squares_is_biased_and_instruments_are_not():
    d, g = simulate(np.random.default_rng(0), 100, 24, 8, 0.3, noise=0.5, size=32)
    result = fit(d, g, bootstrap=300)
    low, high = result.momentum_interval
    assert low < 0.875 < high
    # Noise in the regressors pulls least squares to 0, beyond what the interval allows.
    assert result.least_squares_momentum < low - (high - low)
    assert deviation(result.learning_rate, result.learning_rate_interval, 0.3 / 8) < 4


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


def workdir(folder, groups=4, mu=0.0, service="exponential", **extra):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(11)
    d, g = simulate(rng, 300, 16, groups, 0.3, noise=0.05, mu=mu, service=service)
    (folder / "config.json").write_text(json.dumps(config(groups, mu=mu, service=service)))
    arrays = {"displacements": d, "gradients": g, **extra}
    np.savez(folder / "trajectories.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})
    return folder


def command(capsys, *arguments):
    """(exit code, standard output, error)."""
    capsys.readouterr()
    try:
        code = implicit_momentum.main(arguments)
    except SystemExit as ended:
        code = ended.code
    return code, *capsys.readouterr()


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


def test_command_on_a_sweep(tmp_path, capsys):
    for groups in (2, 16):
        workdir(tmp_path / "points" / f"g{groups}", groups)
    few = workdir(tmp_path / "points" / "g3", 3)
    with np.load(few / "trajectories.npz") as file:
        np.savez(few / "trajectories.npz", **{k: v[:2] for k, v in file.items()})
    code, printed, error = command(capsys, f"--workdir={tmp_path}", "--bootstrap=100")
    assert code == 0, error
    header, *rows = printed.strip().split("\n")
    assert "theory" in header and "least squares" in header
    assert [row.split()[0] for row in rows] == ["g2", "g3", "g16"]
    assert "too few replicas" in rows[1]
    for groups in (2, 3, 16):
        folder = tmp_path / "points" / f"g{groups}"
        result = json.loads((folder / "implicit_momentum.json").read_text())
        assert result["ok"] == (groups != 3) and result["theory_momentum"] == 1 - 1 / groups
        assert (result["momentum"] is None) == (groups == 3)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trajectories.npz", b"no archive"),
        ("trajectories.npz", b""),
        ("trajectories.npz", None),  # cut
        ("trajectories.npz", {"displacements": np.zeros((4, 5, 6))}),
        ("config.json", b"{"),
        ("config.json", b'{"method": {"name": "sync"}}'),
    ],
)
def test_damaged_workdirs_are_named(tmp_path, name, content):
    folder = workdir(tmp_path / "run")
    file = folder / name
    if isinstance(content, dict):
        np.savez(file, **content)
    else:
        file.write_bytes(file.read_bytes()[:10_000] if content is None else content)
    with pytest.raises(AnalysisError) as caught:
        fit_workdir(folder)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)
    assert not (folder / "implicit_momentum.json").exists()


def test_input_that_cannot_be_read_is_one_line_and_exit_code_2(tmp_path, capsys):
    nowhere = tmp_path / "nowhere"
    for arguments, message in (
        ([f"--workdir={nowhere}"], f"error: {nowhere}: no such folder\n"),
        ([f"--workdir={tmp_path}"], f"error: {tmp_path}: no trajectories.npz and no sketches.npy"),
        ([f"--workdir={tmp_path}", "--steps=-1"], "error: --steps must not be negative\n"),
    ):
        code, printed, error = command(capsys, *arguments)
        assert code == 2 and not printed
        assert error.startswith(message) and error.count("\n") == 1


# Lag polynomials.


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
        (config(4, pieces={"fc": 0.1}), None),
        (config(4) | {"method": {**config(4)["method"], "staleness_bound": 2}}, None),
        (config(4, name="ringmaster"), ((0.75,), (0.075,))),
        (config(4) | {"method": {"name": "ringmaster", "groups": 4, "delay_bound": 2}}, None),
        (config(4, service="lognormal"), None),
        (config(4, server_bandwidth=1e6), None),  # the server's queue makes arrivals regular
        (config(4, regions=2), None),
        (config(4, presence=5.0, absence=5.0), None),
        (config(3, service="constant", regions=3), None),
        (config(4) | {"method": {**config(4)["method"], "fresh": ["fc"]}}, None),
        (config(4) | {"method": {**config(4)["method"], "compression": "sign"}}, None),
        (config(4) | {"optimizer": {**config(4)["optimizer"], "chain": ["clip"]}}, None),
        (config(4, name="daso"), None),
        (config(4) | {"optimizer": {"name": "adam", "learning_rate": 1}}, None),
    ],
)
def test_theory(given_config, expected):
    found = theory(given_config)
    assert (found is None) == (expected is None)
    if expected:
        for terms, truth in zip(found, expected, strict=True):
            np.testing.assert_allclose(terms, truth, rtol=1e-12)  # rounding


def test_groups_of_joined_methods_are_in_their_section():
    method = {"name": "diloco+asynchronous", "diloco": {"period": 8}, "asynchronous": {"groups": 4}}
    assert groups_of({"method": method}) == 4
    assert groups_of({"method": {"name": "sync", "fresh": []}}) == 1


@pytest.mark.parametrize(
    ("given_config", "expected"),
    [
        (config(4), True),
        (config(4) | {"optimizer": {"name": "adam", "learning_rate": 1}}, True),
        (config(4, service="constant"), False),
        (config(4, nodes=16), False),
        (config(4, latency=0.1), False),
        (config(4, name="asynchronous+local"), False),
        (config(4, name="sync", service="lognormal"), True),  # one group, whose turn it always is
    ],
)
def test_memoryless_service_whatever_the_optimizer(given_config, expected):
    assert memoryless(given_config) == expected
