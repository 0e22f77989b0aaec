"""The sets of the momentum meter, on simulated runs whose truth is known, one run a set."""

from functools import reduce

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import binom, chi2, ortho_group

from optdyn.implicit_momentum import moments
from optdyn.implicit_momentum.lags import equivalent_momentum, geometric_distance
from optdyn.implicit_momentum.moments import Reading, Sums
from tests.implicit_momentum.simulation import simulate


def runs(seed, count, groups, *, steps=300, **options):
    """As many (steps, gradients), (T, q) each."""
    return zip(*simulate(np.random.default_rng(seed), count, steps, groups, **options), strict=True)


def parts(run):
    return list(moments.products(*run, np.ones(len(run[0]))))


def read(*data):
    """The reading of runs together."""
    sums = (moments.implicit(part) for run in data for part in parts(run))
    return moments.reading(reduce(Sums.plus, sums, Sums.none()))


def by_equations(v, g, mu, nu=None):
    """S and K of the module's page, by loops over updates; with `nu` K is of mu given nu."""
    explicit, nu = nu is not None, nu or 0.0
    steps, q = v.shape
    u = v - nu * np.vstack([np.zeros(q), v[:-1]])
    size = np.zeros(steps)
    for t in range(2, steps):
        weights = 0.9 ** np.arange(t - 1)[::-1]
        size[t] = 1 / (weights @ np.square(v[: t - 1]).sum(1) / weights.sum())
    z = np.zeros((steps + 80, 8, q))
    for i, (signal, delay) in enumerate([(g, 1)] * 4 + [(v, 2)] * 4):
        known = np.vstack([np.zeros((delay, q)), signal[:-delay]])
        decay = (0.0, 0.7, 0.9, 0.97)[i % 4]
        z[:steps, i] = lfilter([1 - decay], [1, -decay], known, axis=0) * size[:, None]
    c = [sum(size[t] * v[t] @ v[t - k] for t in range(k, steps)) for k in range(3)]
    noise_u = (1 + nu**2) * (c[0] - c[1]) - nu * (2 * c[1] - c[0] - c[2])
    noise_g = sum(size[t] * (g[t] @ g[t] - (t and g[t] @ g[t - 1])) for t in range(steps))
    rho = -mu / (1 + mu**2 + max(noise_g / noise_u, 0) * (1 - mu) ** 2)
    theta = np.roots([rho, -1, rho])[-1] if mu else 0.0
    theta = theta if abs(theta) < 1 else 1 / theta
    r = u - mu * np.vstack([np.zeros(q), u[:-1]]) + (1 - mu) * g
    eps = lfilter([1], [1, theta], r, axis=0)
    h = np.array([(z[t] + theta * z[t + 1]) @ eps[t] for t in range(steps)])
    h[-1] -= theta * z[steps] @ eps[-1]
    along = [[-z[t + 1] @ u[t] - z[t] @ g[t] for t in range(steps)]]
    if explicit:
        ahead = [
            nu ** np.arange(70) @ (z[t + 1 : t + 71] - mu * z[t + 2 : t + 72]).transpose(1, 0, 2)
            for t in range(steps)
        ]
        along.append([-a @ u[t] for t, a in enumerate(ahead)])
    inverse, s = np.linalg.inv(h.T @ h), h.sum(0)
    d = [
        sum(q_t) - sum(np.outer(a, b) for a, b in zip(q_t, h, strict=True)) @ inverse @ s
        for q_t in np.array(along)
    ]
    root = np.linalg.cholesky(inverse).T
    target, *others = (root @ column for column in d)
    for other in others:  # what is left of the slope along mu, beside that along nu
        target = target - other * (other @ target) / (other @ other)
    return s @ inverse @ s, (target @ root @ s) ** 2 / (target @ target)


@pytest.mark.parametrize(
    "mu, nu", [(0.0, None), (0.4, None), (0.75, None), (0.6, 0.3), (0.9, -0.4)]
)
def test_statistics_are_those_of_the_equations(mu, nu):
    (run,) = runs(0, 1, 4, steps=120, nu=nu or 0.0, size=20)
    (part,) = parts(run)
    found = moments.statistics(moments.sums_at(part, mu, nu))
    s, k = by_equations(*run, mu, nu)
    # Filters are interpolated between 56, and K is a small difference of their products.
    assert found.s == pytest.approx(s, rel=2e-3)
    assert found.root**2 == pytest.approx(k, rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("groups, alpha", [(1, 0.5), (2, 0.1), (4, 0.5), (16, 0.5)])
def test_sets_cover_as_often_as_they_say(groups, alpha):
    """Of 40 single runs at 95 %, whether they say much or little; fewer than 34 have 0.3 %."""
    readings = [read(run) for run in runs(groups, 40, groups, alpha=alpha)]
    assert sum(reading.covers(1 - 1 / groups) for reading in readings) >= binom.ppf(0.003, 40, 0.95)
    # 8 or more of 40 at 5 % have probability 0.1 %.
    assert sum(reading.p < 0.05 for reading in readings) <= 7


def test_a_strong_run_says_much_and_a_weak_one_little():
    strong = [read(run) for run in runs(1, 10, 4)]
    weak = [read(run) for run in runs(1, 10, 4, alpha=0.01, noise=3.0)]
    width = [[one.width for one in some] for some in (strong, weak)]
    assert np.median(width[0]) < 0.25 and np.median(width[1]) > 0.6
    assert sum(one.says_nothing for one in weak) > 0
    assert min(one.strength for one in strong) > np.median([one.strength for one in weak])


def test_runs_together_are_one_set_and_a_narrower_one():
    data = list(runs(3, 9, 4))
    one, together = read(data[0]), read(*data)
    assert together.covers(0.75) and together.updates == 9 * one.updates
    (low, high), (from_, to) = one.pieces[0], together.pieces[0]
    assert (to - from_) < 0.6 * (high - low)  # a third, in the mean
    assert together.strength > 4 * one.strength


def test_explicit_momentum_is_a_second_term():
    """(1 - 0.5 L)(1 - 0.75 L); with one term the model is wrong, and said to be."""
    found = [moments.two_terms(parts(run)) for run in runs(4, 6, 4, nu=0.5)]
    assert sum(implicit.covers(0.75) for implicit, _ in found) >= 5
    assert sum(explicit.covers(0.5) for _, explicit in found) >= 5
    assert min(implicit.p for implicit, _ in found) > 0.001
    assert all(read(run).p < 1e-6 for run in runs(4, 2, 4, nu=0.5))


def test_constant_service_is_not_one_term():
    readings = [read(run) for run in runs(6, 6, 4, alpha=0.4, in_turn=True)]
    assert all(reading.rejected and reading.p < 1e-3 for reading in readings)
    assert str(readings[0]).startswith("no single term fits (p = ")


@pytest.mark.parametrize("groups, nu", [(4, 0.0), (8, 0.0), (4, 0.5)])
def test_replicas_say_the_same_from_their_first_updates(groups, nu):
    """Of 20 recordings of 300 replicas fewer than 17 at 95 % have probability 2 %: 16.

    A slope that is wrong leaves the sets right, and twice as wide.
    """
    inside = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        its = moments.of_replicas(*simulate(rng, 300, 12, groups, nu=nu, size=8))
        if nu:
            implicit, explicit = moments.two_terms([its]) if seed < 4 else (None, None)
            inside += implicit is None or implicit.covers(1 - 1 / groups) * explicit.covers(nu)
        else:
            reading = moments.reading(moments.implicit(its))
            inside += reading.covers(1 - 1 / groups)
            assert reading.width < 0.16 / groups
    assert inside >= 16


def recursion(mu, steps=300):
    """One run of u_t = mu u_{t-1} - (1 - mu) G_t, to a tenth of its size."""
    rng = np.random.default_rng(8)
    g = np.sin(np.outer(np.arange(steps), np.linspace(0.02, 0.2, 30)) + rng.uniform(0, 6, 30))
    u = lfilter([mu - 1], [1, -mu], g, axis=0)
    return u + 0.1 * u.std() * rng.standard_normal(u.shape), g


@pytest.mark.parametrize("mu", [0.0, 0.8, 0.99])
def test_a_recursion_with_little_noise_is_found_almost_exactly(mu):
    reading = read(recursion(mu))
    assert reading.estimate == pytest.approx(mu, abs=1e-2)
    assert reading.width < 2e-2


def test_axes_and_units_do_not_matter():
    ((u, g),) = runs(7, 1, 4, size=16)
    turn = ortho_group.rvs(16, random_state=0)
    plain, turned = read((u, g)), read((100 * u @ turn, 100 * g @ turn))
    np.testing.assert_allclose(turned.pieces, plain.pieces, rtol=5e-3)  # of sketches in float32
    assert turned.p == pytest.approx(plain.p, rel=2e-2)


def test_what_is_not_finite_ends_a_window_and_a_short_one_says_nothing():
    ((u, g),) = runs(9, 1, 4)
    broken = u.copy()
    broken[200:] = np.inf
    assert read((broken, g)) == read((u[:200], g[:200]))
    for short in ((u[:40], g[:40]), (u[:0], g[:0]), (0 * u, 0 * g), (np.nan * u, g)):
        assert str(read(short)) == "0 to 1: says nothing"


def test_replicas_are_read_up_to_the_first_that_is_not_finite():
    steps, gradients = simulate(np.random.default_rng(0), 60, 12, 4, size=8)
    broken = steps.copy()
    broken[5, 8] = np.inf
    pairs = (broken, gradients), (steps[:, :8], gradients[:, :8]), (steps * np.nan, gradients)
    found = [moments.reading(moments.implicit(moments.of_replicas(*pair))) for pair in pairs]
    assert found[0] == found[1] and found[0].covers(0.75)
    assert found[2].says_nothing and found[2].updates == 0


def test_a_synchronous_run_without_noise_has_no_momentum():
    """All residuals are 0 at 0, where there is nothing to test; elsewhere they are not."""
    g = np.cumsum(np.random.default_rng(0).standard_normal((200, 20)), axis=0)
    reading = read((-g, g))
    assert reading.covers(0) and reading.estimate < 0.01 and not reading.rejected
    assert moments.two_terms(parts((-g[:20], g[:20])))[0].says_nothing


def test_updates_that_are_not_heeded_do_not_count():
    """Steps of another law in the middle, without instruments: the set is nearly as it was."""
    ((u, g),), ((other, its),) = runs(2, 1, 4), runs(3, 1, 4, in_turn=True)
    heed = np.ones(300)
    heed[95:155] = 0
    mixed, gradients = u.copy(), g.copy()
    mixed[100:150], gradients[100:150] = 5 * other[100:150], 5 * its[100:150]
    (part,) = moments.products(mixed, gradients, heed)
    reading = moments.reading(moments.implicit(part))
    assert part.updates == 300 - 60 - 2 and reading.covers(0.75) and reading.p > 0.01


@pytest.mark.parametrize(
    "pieces, words",
    [
        ([(0.61, 0.72)], "0.61 to 0.72"),
        ([(0.4, 1.0)], "at least 0.4"),
        ([(0.0, 1.0)], "0 to 1: says nothing"),
        ([(0.1, 0.2), (0.7, 0.9)], "0.1 to 0.2 or 0.7 to 0.9"),
        ([(0.74901, 0.75012)], "0.749 to 0.7501"),
        ([], "no single term fits (p = 0.5)"),
    ],
)
def test_a_set_is_told_as_it_is(pieces, words):
    assert str(Reading(None, tuple(pieces), 0.5, 1.0, 100)) == words
    assert str(Reading(None, tuple(pieces), 1e-9, 1.0, 100)) == "no single term fits (p = 1e-09)"


def test_the_interpolated_statistics_are_those_in_between():
    """S at momenta between those that are tested, directly; a set's ends are at its quantile."""
    (run,) = runs(5, 1, 4)
    (part,) = parts(run)
    (low, high), *others = read(run).pieces
    assert not others
    for end in (low, high):
        k = moments.statistics(moments.sums_at(part, end)).root ** 2
        assert k == pytest.approx(chi2.ppf(moments.ALONG, 1), rel=0.005)


def test_a_law_of_staleness_has_the_momentum_of_its_mean():
    g, lags = 4, np.arange(200)
    memoryless, in_turn = (1 / g) * (1 - 1 / g) ** lags, (lags == g - 1).astype(float)
    assert equivalent_momentum(memoryless) == pytest.approx(0.75)
    assert geometric_distance(memoryless) == pytest.approx(0, abs=1e-9)
    # Total variation of a spike at 3 from the geometric law of mean 3: 1 - (1/4) (3/4)^3.
    assert equivalent_momentum(in_turn) == 0.75
    assert geometric_distance(in_turn) == pytest.approx(1 - 0.75**3 / 4)
