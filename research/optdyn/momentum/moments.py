"""The momentum meter: implicit momentum of one ordinary run, by the method of moments.

H_t is all that happened up to x_t, but not who arrives at t; d_t = x_{t+1} - x_t. Memoryless
arrivals choose the group at t independently of H_t, so its staleness is geometric and, for any f,

    E[d_t | H_t] = -alpha sum_k p (1 - p)^k grad f(x_{t-k})                p = 1/g
    E[d_t - (1 - 1/g) d_{t-1} + (alpha/g) grad f(x_t) | H_{t-1}] = 0       (arXiv 1605.09774)

A server's explicit momentum multiplies the polynomial in the lag by (1 - mu L). In general

    r_t = d_t - sum_{k=1..K} phi_k d_{t-k} + sum_{m=0..M} eta_m G_{t-m},   E[r_t | H_{t-1-M}] = 0

with G_t any unbiased estimate of grad f(x_t) drawn independently of the run. Instruments are
exponential means z_t (J, q) of past G and d, over a mean of |d|^2. The generalized method of
moments (Hansen 1982) chooses phi and eta so that `sum_t <z_t, r_t>` is near 0, in the metric of its
covariance at the same phi, eta (Hansen, Heaton and Yaron 1996).

r_t is a moving average, r_t = eps_t + sum_k theta_k eps_{t-k} of order max(1, M), so negatively
correlated that kernels (Newey-West) fail. It is inverted, and the sum regrouped by the eps:

    sum_t <z_t, r_t> = sum_t <z_t + sum_k theta_k z_{t+k}, eps_t> = sum_t h_t,   V = sum_t h_t h_t'

theta is that of the residuals' autocovariances. J = (sum h)' V^-1 (sum h) is chi-squared with
J - K - M - 1 degrees of freedom if the model is right: a test of lags and of the law of service.

In shuffled epochs every batch makes up for those before it. Let R_t be the examples that the epoch
has left at t. The above holds with f over R_t, for f, and G_t drawn from R_t:

    E[d_t | H_t] = -alpha sum_k p (1 - p)^k grad f_{R_t}(x_{t-k})
    E[f_{R_t} | H_{t-1}] = f_{R_{t-1}}

It fails where an epoch begins between t-1 and t. There z_t is 0, and near it small, as a jump of
z_t would let a whole eps_t in where a small difference should be.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy  # whose parts are imported when they are first used: those below take long

DECAYS = (0.0, 0.7, 0.9, 0.97)  # of the exponential means that are instruments
SIZE_DECAY = 0.9  # of the mean of |d|^2 that weighs updates
ROUNDS = 2  # of residuals, weights and coefficients
FEWEST = 50  # updates
WEAK = 4.0  # F from which intervals of gradients' lags hold (8 instruments: Stock, Yogo 2005)
SURE = 25.0  # F from which those of momentum do: below it some cover in half of the runs
MARGIN = 1e-6  # a moving average is kept so far from one that cannot be inverted
NORMAL = 1.959964  # half-width of 95 % in standard errors
REJECTED = 0.01  # a model with a p-value below it is not believed

Run = tuple[np.ndarray, np.ndarray]  # displacements and gradients, (T, q) each


class NotIdentified(ValueError):
    """The runs determine no coefficients that make sense; the message is one line."""


class Fit(NamedTuple):
    """Coefficients, each with its standard error, and tests of the model."""

    phi: np.ndarray  # (K,)
    phi_error: np.ndarray
    eta: np.ndarray  # (M + 1,); memoryless: alpha / g
    eta_error: np.ndarray
    momentum: float  # of the recursion with one lag and the same mean lag; phi_1 if K = 1, M = 0
    momentum_error: float
    hansen: float  # J, chi-squared if the model is right
    freedom: int  # degrees of freedom of J
    p: float  # chance of a J as large if the model is right
    strength: float  # F statistic of the instruments for the worst determined coefficient
    updates: int

    @property
    def phi_interval(self) -> np.ndarray:
        """(K, 2), 95 %."""
        return _interval(self.phi, self.phi_error)

    @property
    def eta_interval(self) -> np.ndarray:
        """(M + 1, 2), 95 %."""
        return _interval(self.eta, self.eta_error)

    @property
    def momentum_interval(self) -> tuple[float, float]:
        """95 %."""
        low, high = _interval(np.array(self.momentum), np.array(self.momentum_error))
        return float(low), float(high)


def fit(
    runs: Sequence[Run],
    lags: int = 1,
    gradient_lags: int = 0,
    heed: Sequence[np.ndarray] | None = None,
) -> Fit:
    """Returns K = `lags` and M = `gradient_lags` terms fitted to runs of the same setting.

    A run is (displacements, gradients), each (T, q) under one projection. Raw steps -g in place of
    displacements read what asynchrony alone contributes, eta = 1/g, whatever the optimizer. `heed`,
    (T,) a run, are factors of the updates' instruments, 0 where the model does not hold; by
    default 1. Raises `NotIdentified`.
    """
    _check(runs, lags, gradient_lags)
    factors = heed or [np.ones(len(d)) for d, _ in runs]
    past = max(2 + gradient_lags, lags) + max(1, gradient_lags)
    prepared = [
        _prepared(d, g, factor, lags, gradient_lags)
        for (d, g), factor in zip(runs, factors, strict=True)
        if len(d) > past  # shorter ones say nothing
    ]
    updates = sum(int(weights.astype(bool).sum()) for _, _, weights in prepared)
    if updates < FEWEST:
        raise NotIdentified(f"{updates} updates with a past long enough: at least {FEWEST} needed")
    least = SURE if lags else WEAK
    beta, moments, hansen, strength = _estimated(prepared, max(1, gradient_lags), least)
    slopes = moments.sum(0)[:, 1:]
    covariance = np.linalg.inv(slopes.T @ _inverse(_covariance(moments, beta)) @ slopes)
    error = np.sqrt(np.diag(covariance))
    low, high = _interval(beta[lags], error[lags])
    if high < 0:
        raise NotIdentified(
            "a negative share of gradients comes without delay, eta_0 in "
            f"[{low:.3g}, {high:.3g}]: no staleness has such lags, so the model is wrong"
        )
    rate, rate_error = beta[lags:].sum(), np.sqrt(covariance[lags:, lags:].sum())
    if _interval(rate, rate_error)[0] <= 0:
        raise NotIdentified(
            "an effective learning rate of 0 is as good, "
            f"{rate:.3g} +- {NORMAL * rate_error:.2g}: steps that hardly change are all momentum "
            "then; more updates or more runs would do"
        )
    if (total := beta[:lags].sum()) >= 1:
        raise NotIdentified(
            f"a momentum of {total:.4g}, where only below 1 do steps die away: the model is "
            "wrong, or more updates or more runs would do"
        )
    momentum, momentum_error = _momentum(beta, covariance, lags)
    freedom = moments.shape[1] - len(beta)
    return Fit(
        phi=beta[:lags],
        phi_error=error[:lags],
        eta=beta[lags:],
        eta_error=error[lags:],
        momentum=momentum,
        momentum_error=momentum_error,
        hansen=hansen,
        freedom=freedom,
        p=float(scipy.stats.chi2.sf(hansen, freedom)),
        strength=strength,
        updates=updates,
    )


def equivalent_momentum(phi: np.ndarray, eta: np.ndarray) -> np.ndarray:
    """Returns the momentum m / (1 + m) of the one-lag recursion with the same mean lag m, (...).

    `phi` (..., K) and `eta` (..., Mg + 1). m is the mean of the normalized impulse response of
    eta(L) / phi(L):

        m = sum_m m eta_m / sum_m eta_m + sum_k k phi_k / (1 - sum_k phi_k)
    """
    phi, eta = np.asarray(phi, float), np.asarray(eta, float)
    rest = 1 - phi.sum(-1)
    slope = phi @ np.arange(1, phi.shape[-1] + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Multiplied out by 1 - sum phi, so that a unit root costs no precision.
        numerator = eta @ np.arange(eta.shape[-1]) / eta.sum(-1) * rest + slope
        return numerator / (rest + numerator)


def moving_average(autocovariances: np.ndarray) -> np.ndarray:
    """Returns theta_1 .. theta_Q of the invertible moving average with `autocovariances`, (Q + 1,).

    The polynomial sum_k gamma_|k| z^k has its zeros in pairs z, 1/z; those inside are theta's.
    Autocovariances that no moving average has (their spectrum is negative somewhere) are shrunk.
    """
    gamma = autocovariances[1:] / autocovariances[0]
    frequencies = np.linspace(0, np.pi, 512)
    least = 2 * (gamma @ np.cos(np.outer(np.arange(1, len(gamma) + 1), frequencies))).min()
    gamma = gamma * min(1.0, (1 - MARGIN) / max(-least, MARGIN))
    gamma[-1] = gamma[-1] or MARGIN**2
    roots = np.roots(np.concatenate([gamma[::-1], [1.0], gamma]))
    return np.poly(roots[np.argsort(abs(roots))[: len(gamma)]])[1:].real


def _check(runs: Sequence[Run], lags: int, gradient_lags: int) -> None:
    if lags < 0 or gradient_lags < 0:
        raise ValueError(f"lags {lags} and gradient_lags {gradient_lags} must not be negative")
    for d, g in runs:
        if d.shape != g.shape or d.ndim != 2:
            raise ValueError(f"displacements {d.shape} and gradients {g.shape}: both (T, q)")
        if not (np.isfinite(d).all() and np.isfinite(g).all()):
            raise NotIdentified("a displacement or gradient is not finite: the run diverged")
        if not (d.any() and g.any()):
            raise NotIdentified("nothing moves")
    terms, most = lags + gradient_lags + 1, 2 * len(DECAYS) - 1
    if terms > most:
        raise NotIdentified(f"{terms} coefficients: {most} at most, so that some test is left")


def _estimated(
    prepared: Sequence[tuple], order: int, least: float
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Returns beta, moments (T', J, P), J and the strength. Raises `NotIdentified`."""
    theta = np.zeros(order)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        try:
            weight = _inverse(np.sum([_gram(z) for z, _, _ in prepared], axis=0))
            beta = _solve(_moments(prepared, theta)[0].sum(0), weight)
            for _ in range(ROUNDS):
                theta = moving_average(_autocovariances(prepared, beta, order))
                moments, power = _moments(prepared, theta)
                beta = _least(moments, beta)
            left = moments.sum(0) @ np.append(1.0, -beta)
            hansen = float(left @ _inverse(_covariance(moments, beta)) @ left)
            strength = _strength(moments, power, beta)
        except np.linalg.LinAlgError as why:
            raise NotIdentified("moments are collinear: too little noise or signal") from why
    if not strength >= least:
        raise NotIdentified(
            f"gradients and displacements are too noisy: strength {strength:.2g}, at least "
            f"{least:g} needed; more updates, more runs or larger batches would do"
        )
    return beta, moments, hansen, strength


def _prepared(
    d: np.ndarray, g: np.ndarray, heed: np.ndarray, lags: int, gradient_lags: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns instruments (T', J, q), signals d_t .., -G_t .. (T', P, q), and weights (T',).

    Update t's instruments are known at t - 1 - M: G up to there, d up to the one before.
    """
    steps, size = d.shape
    delay = 1 + gradient_lags
    first = max(delay + 1, lags)
    decay = np.array(2 * DECAYS, d.dtype)[:, None]
    means, squares, count = np.zeros((len(decay), size), d.dtype), 0.0, 0.0
    instruments = np.zeros((steps, *means.shape), d.dtype)
    weights = np.zeros(steps)
    scale = np.linalg.norm(d) / np.linalg.norm(g)
    new = np.empty_like(means)
    for t in range(delay + 1, steps):
        new[: len(DECAYS)], new[len(DECAYS) :] = scale * g[t - delay], d[t - delay - 1]
        means = decay * means + (1 - decay) * new
        squares = SIZE_DECAY * squares + np.sum(np.square(d[t - delay - 1], dtype=float))
        count = SIZE_DECAY * count + 1
        weights[t] = heed[t] * count / squares if squares else 0.0
        instruments[t] = weights[t] * means
    signals = [d[first - k : steps - k] for k in range(lags + 1)]
    signals += [-g[first - m : steps - m] for m in range(gradient_lags + 1)]
    return instruments[first:], np.stack(signals, axis=1), weights[first:]


def _gram(instruments: np.ndarray) -> np.ndarray:
    return (instruments @ instruments.swapaxes(1, 2)).sum(0, dtype=float)


def _autocovariances(prepared: Sequence[tuple], beta: np.ndarray, order: int) -> np.ndarray:
    total = np.zeros(order + 1)
    for _, signals, weights in prepared:
        combined = np.append(1.0, -beta).astype(signals.dtype) @ signals
        residuals = np.sqrt(weights)[:, None] * combined
        total += [np.vdot(residuals[k:], residuals[: len(residuals) - k]) for k in range(order + 1)]
    return total


def _moments(prepared: Sequence[tuple], theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns <z_t + sum_k theta_k z_{t+k}, the signals' eps>, (T', J, P), and a sum (P, P).

    That is of products of the signals through the inverse moving average, every update's over its
    |d|^2, so that no burst of a few updates decides.
    """
    inner_products, power = [], np.zeros(())
    for instruments, signals, _ in prepared:
        ahead = instruments.copy()
        filtered = signals.copy()
        for k, factor in enumerate(theta.tolist(), start=1):
            ahead[:-k] += factor * instruments[k:]
        for t in range(1, len(filtered)):
            for k, factor in enumerate(theta[:t].tolist(), start=1):
                filtered[t] -= factor * filtered[t - k]
        inner_products.append((ahead @ filtered.swapaxes(1, 2)).astype(float))
        products = (filtered @ filtered.swapaxes(1, 2)).astype(float)
        moved = products[:, 0, 0]
        power = power + np.tensordot(1 / moved[moved > 0], products[moved > 0], axes=1)
    return np.concatenate(inner_products), power


def _covariance(moments: np.ndarray, beta: np.ndarray) -> np.ndarray:
    terms = moments @ np.append(1.0, -beta)
    return terms.T @ terms


def _solve(sums: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Returns beta that brings sums (J, P) times (1, -beta) nearest to 0 in the metric `weight`."""
    slopes = sums[:, 1:]
    return np.linalg.solve(slopes.T @ weight @ slopes, slopes.T @ weight @ sums[:, 0])


def _least(moments: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Returns beta of the least J, its covariance at the same beta (Hansen, Heaton, Yaron 1996)."""
    sums = moments.sum(0)
    products = np.einsum("tia,tjb->abij", moments, moments, optimize=True)
    first = _solve(sums, _inverse(_covariance(moments, start)))
    slopes = sums[:, 1:]
    unit = np.linalg.inv(slopes.T @ _inverse(_covariance(moments, first)) @ slopes)
    unit = np.linalg.cholesky(unit)  # in standard errors, uncorrelated

    def hansen(steps: np.ndarray) -> float:
        c = np.append(1.0, -first - unit @ steps)
        left = sums @ c
        return float(left @ _inverse(np.einsum("a,b,abij->ij", c, c, products)) @ left)

    return first + unit @ scipy.optimize.minimize(hansen, np.zeros(len(first)), method="BFGS").x


def _strength(moments: np.ndarray, power: np.ndarray, beta: np.ndarray) -> float:
    """Returns Cragg and Donald's F (1993) with the covariance of this page; `power` is (P, P)."""
    slopes, c = moments.sum(0)[:, 1:], np.append(1.0, -beta)
    information = slopes.T @ _inverse(_covariance(moments, beta)) @ slopes
    least = scipy.linalg.eigh(information, power[1:, 1:], eigvals_only=True)[0]
    return float(least * (c @ power @ c) / moments.shape[1])


def _momentum(beta: np.ndarray, covariance: np.ndarray, lags: int) -> tuple[float, float]:
    def momentum_of(values: np.ndarray) -> float:
        return float(equivalent_momentum(values[:lags], values[lags:]))

    steps = 1e-4 * np.diag(np.sqrt(np.diag(covariance)))
    slopes = [(momentum_of(beta + s) - momentum_of(beta - s)) / (2 * s.sum()) for s in steps]
    return momentum_of(beta), float(np.sqrt(slopes @ covariance @ slopes))


def _inverse(matrix: np.ndarray) -> np.ndarray:
    size = 1 / np.sqrt(np.diag(matrix))
    return size[:, None] * np.linalg.inv(matrix * np.outer(size, size)) * size


def _interval(value: np.ndarray, error: np.ndarray) -> np.ndarray:
    return np.stack([value - NORMAL * error, value + NORMAL * error], axis=-1)
