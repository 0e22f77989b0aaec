"""Estimators of the recursion of mean displacements, on arrays of replicas.

    E d_t = sum_{k=1..K} phi_k E d_{t-k} - sum_{m=0..Mg} eta_m E G_{t-m}

Replicas i = 1..n start at one x_0 and differ in arrivals and batches. Regressing mean on mean
leaves noise in the regressors and pulls the coefficients to zero. Instrumental variables take the
regressors of one half of the replicas as instruments for the other; averaged over all splits, the
moments of the normal equations become U-statistics, pairs of one replica with itself left out:

    A_ab = sum_{t,c} mean_{i != j} X_a^i X_b^j
         = [(sum_i X_a^i)(sum_i X_b^i) - sum_i X_a^i X_b^i] / (n (n - 1))

Only inner products over updates and coordinates enter, which a random projection keeps unbiased.
"""

from typing import NamedTuple

import numpy as np

BLOCK = 1 << 23  # float64 numbers held at a time
NOTHING = 1e-60  # a squared norm smaller than this is none


class Moments(NamedTuple):
    """Inner products of the P = K + Mg + 2 signals d_t, d_{t-1}.., -G_t, -G_{t-1}.. ."""

    mean: np.ndarray  # (P, P) of the means over replicas
    self_products: np.ndarray  # (n, P, P) of each replica with itself
    xi: np.ndarray  # (B, n) bootstrap weights less 1; each row sums to 0
    cross: np.ndarray  # (B, P, P) of sum_i xi_i X^i with the means, made symmetric
    square: np.ndarray  # (B, P, P) of sum_i xi_i X^i with itself


class Matching(NamedTuple):
    ok: bool
    reason: str
    momentum: float
    interval: tuple[float, float]  # 95 %


def first_row(lags: int, gradient_lags: int) -> int:
    """Returns the first update that obeys the recursion; the gradient at t = 0 is always fresh."""
    return max(min(lags, 1), gradient_lags)


def signals(d: np.ndarray, g: np.ndarray, lags: int, gradient_lags: int) -> np.ndarray:
    """Returns the signals of displacements and gradients (..., T, q), (..., P, rows * q)."""
    first, steps = first_row(lags, gradient_lags), d.shape[-2]
    before = np.zeros((*d.shape[:-2], max(lags - first, 0), d.shape[-1]))
    past = np.concatenate([before, d], axis=-2)
    end = past.shape[-2]
    rows = [past[..., end - steps + first - k : end - k, :] for k in range(lags + 1)]
    rows += [-g[..., first - m : steps - m, :] for m in range(gradient_lags + 1)]
    return np.stack([row.reshape(*row.shape[:-2], -1) for row in rows], axis=-2)


def weights(rng: np.random.Generator, replicas: int, draws: int) -> np.ndarray:
    """Returns multinomial counts, how often each replica is drawn, (draws, replicas)."""
    counts = rng.multinomial(replicas, np.full(replicas, 1 / replicas), size=draws)
    counts[(counts == replicas).any(axis=1)] = 1  # a single replica has no pairs
    return counts.astype(float)


def moments(
    displacements: np.ndarray, gradients: np.ndarray, lags: int, gradient_lags: int, xi: np.ndarray
) -> Moments:
    """Returns the moments of displacements and gradients, (n, T, q), by blocks of coordinates."""
    replicas, steps, size = displacements.shape
    signal_count, draws = lags + gradient_lags + 2, len(xi)
    mean = np.zeros((signal_count, signal_count))
    self_products = np.zeros((replicas, signal_count, signal_count))
    cross, square = np.zeros((2, draws, signal_count, signal_count))
    width = max(1, BLOCK // ((replicas + draws) * steps * (signal_count + 2)))
    for start in range(0, size, width):
        d = displacements[:, :, start : start + width].astype(float)
        g = gradients[:, :, start : start + width].astype(float)
        self_products += _gram(signals(d, g, lags, gradient_lags))
        mean_d, mean_g = d.mean(axis=0), g.mean(axis=0)
        means = signals(mean_d, mean_g, lags, gradient_lags)
        mean += _gram(means)
        # Centred first: xi sums to 0, so this changes nothing but the rounding.
        drawn = signals(_weighed(xi, d - mean_d), _weighed(xi, g - mean_g), lags, gradient_lags)
        cross += drawn @ means.T
        square += _gram(drawn)
    return Moments(mean, self_products, xi, cross + cross.swapaxes(1, 2), square)


def split_replica(m: Moments) -> np.ndarray:
    """Returns moments over pairs of different replicas, (P, P), unbiased for the expectations'."""
    n = len(m.self_products)
    return (n * n * m.mean - m.self_products.sum(axis=0)) / (n * (n - 1))


def solve(moment: np.ndarray) -> np.ndarray:
    """Returns phi_1.., eta_0.. of the normal equations in moments (..., P, P), (..., P - 1)."""
    return np.linalg.solve(moment[..., 1:, 1:], moment[..., 1:, :1])[..., 0]


def bootstrap(m: Moments) -> np.ndarray:
    """Returns split-replica moments of replicas weighted by 1 + sqrt(nu) xi, (B, P, P).

    The variance of a U-statistic has a part from noise x mean and one from noise x noise. Weights
    of variance 1 get the first right and the second three times. With V_1 and V_2 the variances of
    the terms linear and quadratic in xi, nu solves nu V_1 + nu^2 V_2 = V_1. V_1 is the jackknife's
    variance, which does not understate in expectation (Efron and Stein 1981). V_2 <= V_1 / 2 but
    for sampling errors.
    """
    n, unbiased = len(m.self_products), split_replica(m)
    theta = solve(unbiased)
    linear = n * m.cross - 2 * _weighed(m.xi, m.self_products)
    quadratic = m.square - _weighed(m.xi**2, m.self_products)
    spread = [_influence(part, unbiased, theta).var(axis=0) for part in (linear, quadratic)]
    tiny = np.finfo(float).tiny  # replicas may be all alike
    ratio = min((spread[1] / np.maximum(spread[0], tiny)).min(), 0.5)
    nu = 2 / (1 + np.sqrt(1 + 4 * ratio))
    w = 1 + np.sqrt(nu) * m.xi
    total = (
        n * n * m.mean + np.sqrt(nu) * n * m.cross + nu * m.square - _weighed(w**2, m.self_products)
    )
    return total / (n * n - (w**2).sum(axis=1))[:, None, None]


def instrument_strength(m: Moments, draws: np.ndarray) -> float:
    """Returns F = (least eigenvalue of A / its bootstrap deviation)^2; 0 if it is not positive."""
    scale = _scale(m)
    values = np.linalg.eigvalsh(split_replica(m)[1:, 1:] / scale)
    deviation = np.linalg.eigvalsh(draws[:, 1:, 1:] / scale)[:, 0].std()
    # Of unit size: a deviation below eps is rounding.
    return float((max(values[0], 0) / max(deviation, np.finfo(float).eps)) ** 2)


def condition(m: Moments) -> float:
    """Returns the condition number of the normal equations; NaN where a regressor is zero."""
    if np.diag(m.mean)[1:].min() < NOTHING:
        return float("nan")
    return float(np.linalg.cond(m.mean[1:, 1:] / _scale(m)))


def yellowfin(displacements: np.ndarray, gradients: np.ndarray, learning_rate: float) -> float:
    """Returns the total momentum of one run: the median over updates and coordinates, both (T, q).

    (x_{t+1} - x_t + alpha G_t) / (x_t - x_{t-1})     (YellowFin, arXiv 1706.03471)
    """
    d, g = displacements.astype(float), gradients.astype(float)
    before = d[:-1]
    moved = before != 0
    ratio = (d[1:] + learning_rate * g[1:])[moved] / before[moved]
    return float(np.median(ratio)) if ratio.size else float("nan")


def matching(
    displacements: np.ndarray,
    momenta: np.ndarray,
    others: np.ndarray,
    draws: int = 500,
    seed: int = 0,
) -> Matching:
    """Returns the explicit momentum whose mean synchronous trajectory lies nearest.

    `displacements` (n, T, q), `others` (M, n2, T, q) of explicit `momenta` (M,), all from one x_0.
    Nearest is the vertex of a parabola in the mean lag 1 / (1 - mu) through the smallest squared
    distance of mean positions and its two neighbours, without pairs of a replica with itself.
    """
    if len(momenta) < 3 or min(len(displacements), others.shape[1]) < 4:
        return _refused("matching needs 3 momenta and 4 replicas on each side")
    if not (np.isfinite(displacements).all() and np.isfinite(others).all()):
        return _refused("a trajectory to be matched is not finite")
    order = np.argsort(momenta)
    grid, rng = 1 / (1 - np.asarray(momenta, float)[order]), np.random.default_rng(seed)
    here, n, n2 = _positions(displacements), len(displacements), others.shape[1]
    # The first row of the weights is the estimate itself.
    w = np.concatenate([np.ones((1, n)), weights(rng, n, draws)])
    v = np.concatenate([np.ones((1, n2)), weights(rng, n2, draws)])
    distance = np.empty((len(w), len(grid)))
    within = _pairs(w, here @ here.T)
    for column, index in enumerate(order):
        there = _positions(others[index])
        between = np.einsum("bi,ij,bj->b", w, here @ there.T, v, optimize=True) / (n * n2)
        distance[:, column] = within + _pairs(v, there @ there.T) - 2 * between
    nearest = distance.argmin(axis=1)
    if nearest[0] in (0, len(grid) - 1):
        return _refused(f"nearest at the edge of the momenta, {1 - 1 / grid[nearest[0]]:g}")
    found = 1 - 1 / np.array([_vertex(grid, row) for row in distance])
    low, high = np.percentile(found[1:], [2.5, 97.5])
    return Matching(True, "", float(found[0]), (float(low), float(high)))


def _refused(reason: str) -> Matching:
    return Matching(False, reason, float("nan"), (float("nan"), float("nan")))


def _positions(d: np.ndarray) -> np.ndarray:
    """Returns positions less x_0, (n, T * q)."""
    return np.cumsum(d, axis=1, dtype=float).reshape(len(d), -1)


def _vertex(grid: np.ndarray, values: np.ndarray) -> float:
    k = int(values.argmin())
    if k in (0, len(grid) - 1):
        return grid[k]
    a, b, _ = np.polyfit(grid[k - 1 : k + 2] - grid[k], values[k - 1 : k + 2], 2)
    return grid[k] - b / (2 * a)


def _pairs(w: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Returns the weighted mean of `gram` over different replicas: (B, n), (n, n) -> (B,)."""
    total = ((w @ gram) * w).sum(axis=1) - w**2 @ np.diag(gram)
    return total / (w.sum(axis=1) ** 2 - (w**2).sum(axis=1))


def _gram(rows: np.ndarray) -> np.ndarray:
    return rows @ rows.swapaxes(-1, -2)


def _weighed(factors: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.tensordot(factors, values, axes=1)


def _scale(m: Moments) -> np.ndarray:
    size = np.sqrt(np.diag(m.mean)[1:])
    return np.outer(size, size)


def _influence(change: np.ndarray, moment: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Returns the coefficients' first-order change by that of the moments, (B, P, P), unscaled."""
    score = change[:, 1:, 0] - change[:, 1:, 1:] @ theta
    return np.linalg.solve(moment[1:, 1:], score.T).T
