"""The momentum meter on simulated runs whose truth is known, one run a fit."""

import numpy as np
import pytest
from scipy.stats import binom, ortho_group

from optdyn.implicit_momentum.moments import NotIdentified, fit, moving_average
from tests.report.simulation import simulate

ALPHA, STEPS = 0.5, 600


def runs(seed, count, groups, *, steps=STEPS, mu=0.0, alpha=ALPHA, service="exponential", size=100):
    """As many runs: displacements, and gradients with noise of their own."""
    rng = np.random.default_rng(seed)
    noisy = {"noise": 0.3, "mu": mu, "size": size, "service": service}
    d, g = simulate(rng, count, steps, groups, alpha, **noisy)
    g = g + 0.3 * rng.standard_normal(g.shape)
    return list(zip(d.astype(np.float32), g.astype(np.float32), strict=True))


def covered(interval, truth):
    return interval[..., 0] <= truth <= interval[..., 1]


@pytest.mark.parametrize("groups, alpha", [(1, 1.4), (4, 0.5), (16, 0.5)])
def test_intervals_cover_as_often_as_they_say(groups, alpha):
    """Single runs: 40 intervals of 95 %, and 40 tests of a right model at 5 %.

    Without asynchrony d_{t-1} and G_t are told apart only where a step changes the gradient much.
    """
    fits = [f for run in runs(groups, 40, groups, alpha=alpha) if (f := fitted(run))]
    truth, many = 1 - 1 / groups, len(fits)
    assert many >= 33  # F is below 25 in some runs of 16 groups
    momenta = np.array([f.phi[0] for f in fits])
    errors = np.array([f.phi_error[0] for f in fits])
    # Binomial, of those that are not refused: of 40 at 95 % fewer than 34 have probability 0.3 %.
    least = binom.ppf(0.01, many, 0.95)
    assert sum(covered(f.phi_interval[0], truth) for f in fits) >= least
    assert sum(covered(f.eta_interval[0], alpha / groups) for f in fits) >= least
    # 8 or more of 40 at 5 % have probability 0.1 %.
    assert sum(f.p < 0.05 for f in fits) <= 7
    # No bias beyond 3.5 standard errors of the mean, and errors that are neither half nor twice.
    assert abs(momenta.mean() - truth) < 3.5 * momenta.std() / np.sqrt(40)
    assert 0.6 < errors.mean() / momenta.std(ddof=1) < 1.7


def test_weak_instruments_are_refused():
    accepted = [found for run in runs(2, 40, 16, steps=120) if (found := fitted(run))]
    assert len(accepted) <= 4 and all(found.strength >= 25 for found in accepted)
    # Steps that hardly change a gradient, without momentum: 6 of 120 read 0.6 to 0.9.
    assert not any(map(fitted, runs(1, 40, 1, steps=300, alpha=0.5)))


def recursion(momentum):
    """One run of d_t = momentum d_{t-1} - 0.1 G_t, to 1e-6."""
    rng = np.random.default_rng(8)
    g = rng.standard_normal((200, 30)) + np.sin(np.arange(200) / 9)[:, None]
    d = np.zeros_like(g)
    for t in range(200):
        d[t] = momentum * d[t - 1] - 0.1 * g[t] + 1e-6 * rng.standard_normal(30)
    return d, g


def test_a_momentum_of_one_or_more_is_no_reading():
    assert fit([recursion(0.995)]).phi[0] == pytest.approx(0.995)
    with pytest.raises(NotIdentified, match="a momentum of 1"):
        fit([recursion(1.005)])


def fitted(run, **lags):
    try:
        return fit([run], **lags)
    except NotIdentified:
        return None


def test_more_runs_are_one_fit_of_less_error():
    data = runs(3, 9, 4)
    one, all_of_them = fit(data[:1]), fit(data)
    assert covered(all_of_them.phi_interval[0], 0.75)
    assert all_of_them.updates == 9 * one.updates
    assert all_of_them.phi_error[0] == pytest.approx(one.phi_error[0] / 3, rel=0.35)
    assert all_of_them.momentum == pytest.approx(all_of_them.phi[0])
    # The step alone of the delta method, 1e-4 of a standard error, is numerical here.
    assert all_of_them.momentum_error == pytest.approx(all_of_them.phi_error[0], rel=1e-4)


def test_explicit_momentum_is_a_second_lag():
    """(1 - 0.5 L)(1 - 0.75 L); with one lag the model is wrong, and its test says so."""
    data = runs(4, 6, 4, mu=0.5)
    found = fit(data, lags=2)
    for k, truth in enumerate((1.25, -0.375)):
        assert abs(found.phi[k] - truth) < 3 * found.phi_error[k] < 0.3
    assert found.p > 0.001
    assert fit(data).p < 1e-6


def test_synchronous_heavy_ball():
    found = fit(runs(5, 4, 1, mu=0.6))
    assert abs(found.phi[0] - 0.6) < 3 * found.phi_error[0] < 0.1


def test_constant_service_is_not_one_term_but_a_delay():
    alpha = 0.4  # near the largest stable one, so that past gradients are told apart
    data = runs(6, 24, 4, service="constant", alpha=alpha)
    assert fit(data[:6]).p < 1e-6
    # d_t = -alpha G_{t-3} and noise, whose mean lag 3 is that of momentum 3/4.
    found = fit(data, lags=0, gradient_lags=3)
    assert (abs(found.eta - [0, 0, 0, alpha]) < 3.5 * found.eta_error).all()
    assert found.p > 0.001
    assert abs(found.momentum - 0.75) < 3 * found.momentum_error


def test_no_staleness_has_a_lag_of_a_negative_share():
    data = runs(0, 6, 4, service="constant", alpha=0.4)
    with pytest.raises(NotIdentified, match="negative share of gradients comes without delay"):
        fit(data, lags=1, gradient_lags=1)
    # A share that is 0 is refused as 2.5 % are by chance: more than 4 of 40 have probability 0.3 %.
    data = runs(1, 40, 2, service="constant", alpha=0.8)
    assert sum(fitted(run, lags=0, gradient_lags=1) is None for run in data) <= 4


def test_gradients_that_hardly_change_are_not_read_as_momentum():
    """All steps alike: d_t = d_{t-1} holds as well as the truth, whatever the groups.

    40 runs at a rate of 0.01. Before the effective rate was looked at 12 of them were accepted, at
    momenta near 1.
    """
    accepted = [it for run in runs(5, 40, 2, alpha=0.01, size=8) if (it := fitted(run))]
    assert len(accepted) <= 4
    assert all(it.eta_interval[0][0] > 0 for it in accepted)


def test_axes_and_units_do_not_matter():
    ((d, g),) = runs(7, 1, 4, size=16)
    d, g = d.astype(float), g.astype(float)
    turn = ortho_group.rvs(16, random_state=0)
    plain, turned = fit([(d, g)]), fit([(1e3 * d @ turn, 10 * g @ turn)])
    # The minimum of J is found to a thousandth of a standard error or so.
    within = 0.01 * plain.phi_error[0]
    assert turned.phi[0] == pytest.approx(plain.phi[0], abs=within)
    assert turned.eta[0] == pytest.approx(100 * plain.eta[0], rel=1e-3)
    assert turned.hansen == pytest.approx(plain.hansen, rel=1e-3)
    assert turned.strength == pytest.approx(plain.strength, rel=1e-3)


def test_an_exact_recursion_is_found_exactly():
    found = fit([recursion(0.8)])
    np.testing.assert_allclose([found.phi[0], found.eta[0]], [0.8, 0.1], atol=1e-7)


@pytest.mark.parametrize(
    "theta", [(0.0,), (-0.75,), (-0.9375,), (0.5, -0.2), (0.3, 0.0), (0.0, 0.0, -0.4)]
)
def test_a_moving_average_is_known_by_its_autocovariances(theta):
    c = np.append(1.0, theta)
    gamma = [3 * c[k:] @ c[: len(c) - k] for k in range(len(c))]
    np.testing.assert_allclose(moving_average(np.array(gamma)), theta, atol=1e-5)


def test_autocovariances_of_no_moving_average_give_one_that_can_be_inverted():
    theta = moving_average(np.array([1.0, -0.6]))
    assert -1 < theta[0] < -0.99


def test_refusals_say_why():
    ((d, g),) = runs(9, 1, 4)
    rng = np.random.default_rng(0)
    with pytest.raises(NotIdentified, match="at least 50"):
        fit([(d[:40], g[:40])])
    with pytest.raises(NotIdentified, match="nothing moves"):
        fit([(0 * d, g)])
    with pytest.raises(NotIdentified, match="not finite"):
        fit([(np.where(d == d[99], np.inf, d), g)])
    with pytest.raises(NotIdentified, match="too noisy"):
        fit([tuple(rng.standard_normal((2, 300, 40)))])
    with pytest.raises(NotIdentified, match="8 coefficients: 7 at most"):
        fit([tuple(rng.standard_normal((2, 200, 8)))], lags=1, gradient_lags=6)
    with pytest.raises(ValueError, match="both"):
        fit([(d, g[1:])])
    assert issubclass(NotIdentified, ValueError)


def test_windows_shorter_than_the_model_say_nothing():
    ((d, g),) = runs(0, 1, 4)
    whole = fit([(d, g)], lags=2)
    short = [(d[:n], g[:n]) for n in range(1, 4)]
    assert fit([*short, (d, g)], lags=2).momentum == whole.momentum
