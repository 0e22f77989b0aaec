"""The momentum meter: the set of implicit momenta that an ordinary run does not contradict.

H_t is all that happened up to x_t, but not who arrives at t; u_t = -g_t is the raw step of update
t, the gradient that arrives. Memoryless arrivals choose the group at t independently of H_t, so
its staleness is geometric and, for any f and under any optimizer (arXiv 1605.09774),

    E[u_t | H_t] = -sum_k p (1 - p)^k grad f(x_{t-k})                            p = 1/g
    r_t = u_t - mu u_{t-1} + (1 - mu) G_t,   E[r_t | H_{t-1}] = 0    at mu = 1 - 1/g

with G_t any unbiased estimate of grad f(x_t) drawn independently of the run. Steps of heavy-ball
SGD over their learning rates, v_t = d_t / alpha_t, have u_t = v_t - nu v_{t-1} with the explicit
momentum nu: two terms, (1 - nu L)(1 - mu L) v_t.

Instruments z_t (J, q), of H_{t-1}, are exponential means of past G and u over a mean of |u|^2. With
n the noise of u and e that of G, r_t is a moving average n_t - mu n_{t-1} + (1 - mu) e_t, inverted
at its root theta:

    h_t = <z_t + theta z_{t+1}, eps_t>     eps_t = r_t - theta eps_{t-1}
    theta / (1 + theta^2) = -mu / (1 + mu^2 + lambda (1 - mu)^2)         lambda = var e / var n
    s = sum h_t     V = sum h_t h_t'     S = s' V^-1 s

all at the mu that is tested, so that S is chi-squared with J degrees of freedom at the true one
however little the instruments say (Stock and Wright 2000). K is the part of S along the slope of s,
made independent of it, each term at the update whose noise it has (Kleibergen 2005):

    q_t = d h_t / d mu      D = sum q_t - (sum q_t h_t') V^-1 s
    K = (D' V^-1 s)^2 / (D' V^-1 D)     S - K: the rest, chi-squared with J - 1

The 95 % set has all mu with K and S - K below their quantiles. It may be all of [0, 1), be in
pieces, or be empty: then no term fits.

In shuffled epochs every batch makes up for those before it. The above holds with f over the
examples that the epoch has left, and G_t drawn from them, but where an epoch begins between t-1 and
t. There z_t is 0, and near it small, as a jump of z_t would let a whole eps_t in where a small
difference should be.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple, Self

import numpy as np
import scipy  # whose parts are imported when they are first used: those below take long

DECAYS = (0.0, 0.7, 0.9, 0.97)  # of the exponential means that are instruments
INSTRUMENTS = 2 * len(DECAYS)
SIZE_DECAY = 0.9  # of the mean of |u|^2 that weighs updates
LONGEST = 500  # updates that are read at once: longer windows are cut
FEWEST = 50  # updates, below which nothing is said
ALONG, ACROSS = 0.96, 0.995  # of the distributions of K and S - K: together 95 %
REJECTED = 0.01  # a model with a p-value below it is not believed
MOMENTA = 1 - np.geomspace(1, 1e-3, 100)  # that are tested, evenly in log(1 - mu)
EXPLICIT = np.linspace(-0.98, 0.98, 81)
FINER = 16  # places between two of these, at which sums are interpolated
THETAS = np.geomspace(1, 2e-3, 56) - 1  # of filters that are computed, others interpolated
RIDGE = 1e-10  # of correlations, where instruments are collinear
FORWARD = 64  # updates over which explicit momentum carries a step's noise


class Products(NamedTuple):
    """Inner products of a window's instruments with its steps and gradients, float32.

    Those of `steps` and `gradients` are through the filters eps_t = x_t - theta eps_{t-1} of N
    `THETAS`.
    """

    steps: np.ndarray  # (N, 4, T, J): <z_t, eps of v, k before t>
    gradients: np.ndarray  # (N, 2, T, J): <z_t, eps of G, k before t>
    ahead: np.ndarray  # (F, T, J): <z_{t+k}, v_t>
    level: np.ndarray  # (T, J): <z_t, G_t>
    covariances: np.ndarray  # (3,) of v and its k-th before, in the mean of the weights
    noise: float  # of G, in the same mean
    updates: int

    def moments(self, mu: float, nu: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns h (T, J) and its slopes q (P, T, J) in mu, and in nu unless that is None."""
        terms, nu = 1 if nu is None else 2, nu or 0.0
        theta = self._theta(mu, nu)
        v, g = _filtered(self.steps, theta), _filtered(self.gradients, theta)
        here = v[0] - (mu + nu) * v[1] + mu * nu * v[2] + (1 - mu) * g[0]
        before = v[1] - (mu + nu) * v[2] + mu * nu * v[3] + (1 - mu) * g[1]
        h = here + theta * _shifted(before)
        slopes = [-self._carried([0.0, 1.0], nu) - self.level]
        if terms > 1:  # the noise of v_t is that of u_t, nu u_{t-1}, ...
            powers = nu ** np.arange(len(self.ahead) - 1)
            slopes.append(-self._carried([0.0, 1.0, *(powers[1:] - mu * powers[:-1])], nu))
        return h.astype(float), np.stack(slopes).astype(float)

    def _theta(self, mu: float, nu: float) -> float:
        c = self.covariances
        here, before = (1 + nu**2) * c[:2] - nu * np.array([2 * c[1], c[0] + c[2]])
        tiny = np.finfo(float).tiny
        noises = max(self.noise, 0.0) / max(here - before, 1e-12 * here, tiny)  # lambda
        rho = mu / (1 + mu**2 + noises * (1 - mu) ** 2)
        return float(-2 * rho / (1 + np.sqrt(1 - 4 * rho**2)))

    def _carried(self, factors: Sequence[float], nu: float) -> np.ndarray:
        """Returns sum_k factors_k <z_{t+k}, v_t - nu v_{t-1}>, (T, J)."""
        c = np.array(factors[: len(self.ahead) - 1], np.float32)
        now = np.tensordot(c, self.ahead[: len(c)], axes=1)
        if nu:
            now[1:] -= nu * np.tensordot(c, self.ahead[1 : len(c) + 1], axes=1)[:-1]
        return now


class ReplicaProducts(NamedTuple):
    """The same of R replicas, summed over the updates of each, as replicas are independent."""

    steps: np.ndarray  # (3, R, J): <z_t, v_{t-k}>
    gradients: np.ndarray  # (R, J): <z_t, G_t>
    updates: int

    def moments(self, mu: float, nu: float | None) -> tuple[np.ndarray, np.ndarray]:
        terms, nu = 1 if nu is None else 2, nu or 0.0
        v, g = self.steps, self.gradients
        h = v[0] - (mu + nu) * v[1] + mu * nu * v[2] + (1 - mu) * g
        return h, np.stack([nu * v[2] - v[1] - g, mu * v[2] - v[1]])[:terms]


class Sums(NamedTuple):
    """What the test at each of some momenta needs; those of several windows add up."""

    s: np.ndarray  # (..., J)
    v: np.ndarray  # (..., J, J)
    slope: np.ndarray  # (..., P, J): sums of q, by parameter
    cross: np.ndarray  # (..., P, J, J): of q h'
    updates: int

    @classmethod
    def none(cls) -> Self:
        """Returns the sums of no update, which add nothing."""
        zero = np.zeros(())
        return cls(zero, zero, zero, zero, 0)

    def plus(self, other: Self) -> Self:
        return type(self)(
            self.s + other.s,
            self.v + other.v,
            self.slope + other.slope,
            self.cross + other.cross,
            self.updates + other.updates,
        )


class Reading(NamedTuple):
    """A momentum as one or more windows tell it."""

    estimate: float | None  # of the least S in the set; None if this is empty
    pieces: tuple[tuple[float, float], ...]  # the 95 % set
    p: float  # of the model
    strength: float  # squared ratio of 1 - mu to its standard error; below 10 sets are wide
    updates: int

    @classmethod
    def nothing(cls, updates: int, least: float = 0.0) -> Self:
        """Returns the reading of too few updates: all momenta from `least` to 1."""
        return cls(None, ((least, 1.0),), 1.0, 0.0, updates)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Returns the reading whose fields are in the row, which may have more."""
        fields = {name: row[name] for name in cls._fields}
        return cls(**fields | {"pieces": tuple((low, high) for low, high in row["pieces"])})

    @property
    def says_nothing(self) -> bool:
        return self.pieces in (((0, 1),), ((-1, 1),))

    @property
    def width(self) -> float:
        """Of all pieces together."""
        return sum(high - low for low, high in self.pieces)

    def covers(self, momentum: float, near: float = 0.0) -> bool:
        """Returns whether a momentum of the set is that, or no farther from it than `near`."""
        return any(low - near <= momentum <= high + near for low, high in self.pieces)

    @property
    def rejected(self) -> bool:
        """Whether the model is wrong: asynchrony does not act as such momentum here."""
        return self.p < REJECTED or not self.pieces

    def __str__(self) -> str:
        if self.rejected:
            return f"no single term fits (p = {self.p:.1g})"
        (low, high), *others = self.pieces
        if self.says_nothing:
            return f"{low:g} to 1: says nothing"
        if high == 1 and not others:
            return f"at least {low:.3g}"
        narrowest = min(high - low for low, high in self.pieces)
        digits = 1 - math.floor(math.log10(max(narrowest, 1e-9)))  # two of the width
        return " or ".join(
            f"{round(low, digits):g} to {round(high, digits):g}" for low, high in self.pieces
        )


def products(steps: np.ndarray, gradients: np.ndarray, heed: np.ndarray) -> Iterator[Products]:
    """Yields the inner products of a window's parts, up to the first update that is not finite.

    `steps` and `gradients` (T, q) under one projection; `heed`, (T,), are factors of the updates'
    instruments, 0 where the model does not hold.
    """
    length = _finite_length(steps, gradients)
    if length > 2:
        parts = partial(np.array_split, indices_or_sections=-(-length // LONGEST))
        whole = (steps[:length], gradients[:length], heed[:length])
        yield from map(_products, *map(parts, whole))


def _finite_length(steps: np.ndarray, gradients: np.ndarray) -> int:
    """Returns the updates before the first that is not finite, of (..., T, q)."""
    finite = np.isfinite(steps).all(axis=-1) & np.isfinite(gradients).all(axis=-1)
    finite = finite.all(axis=tuple(range(finite.ndim - 1)))
    return len(finite) if finite.all() else int(finite.argmin())


def _products(v: np.ndarray, g: np.ndarray, heed: np.ndarray) -> Products:
    v, g = np.asarray(v, np.float32), np.asarray(g, np.float32)
    vv, vg, gg = v @ v.T, v @ g.T, g @ g.T
    weights = _weights(np.diag(vv), heed)
    of_steps = _by_lag(_instruments(vg.T, vv, weights))
    of_gradients = _by_lag(_instruments(gg, vg, weights))
    lags = np.arange(of_steps.shape[-1])
    powers = np.zeros((len(lags), 4, len(THETAS)), np.float32)
    for k in range(4):
        powers[k:, k] = (-THETAS) ** lags[: len(lags) - k, None]
    steps = np.tensordot(of_steps, powers, axes=1)
    gradients = np.tensordot(of_gradients, powers[:, :2], axes=1)
    ahead = [_shifted(of_steps[..., k].T, k) for k in range(min(FORWARD, len(v)))]
    return Products(
        steps=steps.transpose(3, 2, 1, 0).copy(),
        gradients=gradients.transpose(3, 2, 1, 0).copy(),
        ahead=np.stack(ahead),
        level=of_gradients[..., 0].T.copy(),
        covariances=np.array([weights[k:] @ np.diag(vv, -k) for k in range(3)]),
        noise=float(weights @ np.diag(gg) - weights[1:] @ np.diag(gg, -1)),
        updates=int(np.count_nonzero(weights)),
    )


def _weights(squares: np.ndarray, heed: np.ndarray) -> np.ndarray:
    """Returns (..., T): `heed` over the mean of |v|^2 up to two updates before."""
    mean = partial(scipy.signal.lfilter, [1.0], [1.0, -SIZE_DECAY])
    total, count = mean(squares.astype(float)), mean(np.ones(squares.shape))
    weights = np.zeros(squares.shape)
    inverse = np.divide(count, total, where=total > 0, out=np.zeros_like(total))
    weights[..., 2:] = inverse[..., :-2]
    return weights * heed


def _instruments(by_gradient: np.ndarray, by_step: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns <z_t, x_s>, (J, ..., T, T), of <G_t, x_s> and <v_t, x_s>.

    Update t knows G up to t - 1, and v up to t - 2, as who arrived at t - 1 is not yet known.
    """
    found = []
    for delay, base in ((1, by_gradient), (2, by_step)):
        known = np.zeros_like(base)
        known[..., delay:, :] = base[..., :-delay, :]
        for decay in DECAYS:
            mean = scipy.signal.lfilter([1 - decay], [1.0, -decay], known, axis=-2)
            found.append((weights[..., None] * mean).astype(base.dtype))
    return np.stack(found)


def of_replicas(steps: np.ndarray, gradients: np.ndarray) -> ReplicaProducts:
    """Returns the inner products of replicas, (R, T, q), from their first update on.

    They are up to the first update at which one of them is not finite.
    """
    length = _finite_length(steps, gradients)
    if length <= 2:
        nothing = np.zeros((3, len(steps), INSTRUMENTS))
        return ReplicaProducts(nothing, nothing[0], 0)
    v, g = steps[:, :length].astype(float), gradients[:, :length].astype(float)
    vv, vg, gg = v @ v.swapaxes(1, 2), v @ g.swapaxes(1, 2), g @ g.swapaxes(1, 2)
    weights = _weights(np.diagonal(vv, axis1=1, axis2=2), np.ones(v.shape[:2]))
    of_steps = _instruments(vg.swapaxes(1, 2), vv, weights)
    sums = [np.trace(of_steps, -k, axis1=2, axis2=3).T for k in range(3)]
    level = np.trace(_instruments(gg, vg, weights), axis1=2, axis2=3).T
    return ReplicaProducts(np.stack(sums), level, weights.size)


def _by_lag(inner: np.ndarray) -> np.ndarray:
    """Returns (J, T, T) of `inner` at (t, t - k), 0 before the first update."""
    steps = inner.shape[-1]
    at = np.arange(steps)
    lagged = np.take_along_axis(inner, np.maximum(at[:, None] - at, 0)[None], axis=2)
    return np.tril(lagged)


def _shifted(values: np.ndarray, by: int = 1) -> np.ndarray:
    """Returns `values` of `by` updates later, 0 after the last, (T, J)."""
    later = np.zeros_like(values)
    later[: len(values) - by] = values[by:]
    return later


def sums_at(its: Products | ReplicaProducts, mu: float, nu: float | None = None) -> Sums:
    """Returns the sums at implicit momentum `mu`, and explicit `nu` if that is a parameter."""
    h, slopes = its.moments(mu, nu)
    return Sums(h.sum(0), h.T @ h, slopes.sum(1), slopes.swapaxes(1, 2) @ h, its.updates)


def _filtered(values: np.ndarray, theta: float) -> np.ndarray:
    place = np.log1p(theta) / np.log1p(THETAS[-1]) * (len(THETAS) - 1)
    first = min(int(place), len(THETAS) - 3)
    x = place - first
    weights = np.array([(x - 1) * (x - 2) / 2, x * (2 - x), x * (x - 1) / 2], np.float32)
    return np.tensordot(weights, values[first : first + 3], axes=1)


class Statistics(NamedTuple):
    """S, the signed root of K, and D' V^-1 D, at each of N momenta."""

    s: np.ndarray
    root: np.ndarray
    information: np.ndarray


def statistics(its: Sums, parameter: int = 0) -> Statistics:
    """Returns the statistics of one parameter; the other, if there is one, is concentrated out."""
    inverse = _inverse(its.v)
    whitened = np.einsum("...ij,...j->...i", inverse, its.s)
    slope = its.slope - np.einsum("...pij,...j->...pi", its.cross, whitened)
    a = slope @ inverse @ slope.swapaxes(-1, -2)
    b = np.einsum("...pi,...i->...p", slope, whitened)
    other = 1 - parameter
    information, score = a[..., parameter, parameter], b[..., parameter]
    if a.shape[-1] > 1:
        ratio = a[..., parameter, other] / a[..., other, other]
        information = information - ratio * a[..., parameter, other]
        score = score - ratio * b[..., other]
    s = np.einsum("...i,...i->...", its.s, whitened)
    # Where a run has next to no noise, rounding may leave no information, and contradicts nothing.
    root = score / np.sqrt(np.where(information > 0, information, np.inf))
    return Statistics(np.maximum(s, root**2), root, np.maximum(information, 0))


def _inverse(matrix: np.ndarray) -> np.ndarray:
    diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
    size = 1 / np.sqrt(np.where(diagonal > 0, diagonal, np.inf))
    scale = size[..., :, None] * size[..., None, :]
    return np.linalg.inv(matrix * scale + RIDGE * np.eye(matrix.shape[-1])) * scale


def implicit(its: Products | ReplicaProducts) -> Sums:
    """Returns the sums of one term at all MOMENTA, for `reading`."""
    return _stacked([sums_at(its, mu) for mu in MOMENTA])


def _stacked(at_each: Sequence[Sums]) -> Sums:
    s, v, slope, cross, updates = zip(*at_each, strict=True)
    return Sums(np.array(s), np.array(v), np.array(slope), np.array(cross), updates[0])


def reading(its: Sums) -> Reading:
    """Returns the reading of implicit momentum from one term's sums, of all windows together."""
    return _reading(MOMENTA, its, 0.0)


def explicit(its: Sequence[Products | ReplicaProducts], mu: float) -> Reading:
    """Returns the reading of explicit momentum where the implicit one is known to be `mu`."""
    both = _stacked([reduce(Sums.plus, (sums_at(part, mu, nu) for part in its)) for nu in EXPLICIT])
    along_nu = both._replace(slope=both.slope[:, 1:], cross=both.cross[:, 1:])
    return _reading(EXPLICIT, along_nu, -1.0)


def two_terms(its: Sequence[Products | ReplicaProducts]) -> tuple[Reading, Reading]:
    """Returns the readings of implicit and of explicit momentum, from steps that have both."""
    updates = sum(part.updates for part in its)
    if updates < FEWEST:
        return Reading.nothing(updates), Reading.nothing(updates, -1.0)
    grids, coarse = (MOMENTA[::2], EXPLICIT), (4, 5)

    def at(parameter: int, value: float, other: float) -> Sums:
        mu, nu = (value, other) if parameter == 0 else (other, value)
        return reduce(Sums.plus, (sums_at(part, mu, nu) for part in its))

    def s(parameter: int, value: float, other: float) -> float:
        return float(statistics(at(parameter, value, other)).s)

    rough = [grid[::step] for grid, step in zip(grids, coarse, strict=True)]
    surface = np.array([[s(0, mu, nu) for nu in rough[1]] for mu in rough[0]])
    readings = []
    for parameter, rows in enumerate((surface, surface.T)):
        points = []
        for i, value in enumerate(grids[parameter]):
            row, others = (
                rows[min(round(i / coarse[parameter]), len(rows) - 1)],
                rough[1 - parameter],
            )
            bounds = others[[max(row.argmin() - 2, 0), min(row.argmin() + 2, len(row) - 1)]]
            nuisance = scipy.optimize.minimize_scalar(
                partial(s, parameter, value),
                bounds=bounds,
                method="bounded",
                options={"xatol": 1e-4},
            ).x
            points.append(at(parameter, value, nuisance))
        readings.append(
            _reading(grids[parameter], _stacked(points), (0.0, -1.0)[parameter], parameter)
        )
    return readings[0], readings[1]


def _reading(momenta: np.ndarray, its: Sums, least: float, parameter: int = 0) -> Reading:
    """Returns the reading at momenta of [`least`, 1), their sums interpolated in between."""
    if its.updates < FEWEST:
        return Reading.nothing(its.updates, least)
    places = np.linspace(0, len(momenta) - 1, FINER * (len(momenta) - 1) + 1)

    def finer(values: np.ndarray) -> np.ndarray:
        return scipy.interpolate.CubicSpline(np.arange(len(momenta)), values)(places)

    values, (s, v, slope, cross) = finer(momenta), map(finer, its[:-1])
    sums = Sums(s, v, slope, cross, its.updates)
    found, freedom = statistics(sums, parameter), INSTRUMENTS - its.slope.shape[1]
    along, quantile = found.root**2, scipy.stats.chi2.ppf
    over = along / quantile(ALONG, 1), (found.s - along) / quantile(ACROSS, freedom)
    beyond = np.minimum(np.maximum(*over), 1e6) - 1
    inside = beyond <= 0
    crossings = np.flatnonzero(np.diff(inside)) + 0.0
    for n, i in enumerate(crossings.astype(int)):
        crossings[n] += beyond[i] / (beyond[i] - beyond[i + 1])
    ends = np.interp(crossings, np.arange(len(values)), values).tolist()
    ends = [least] * bool(inside[0]) + ends + [1.0] * bool(inside[-1])
    pieces = tuple(zip(ends[::2], ends[1::2], strict=True))
    best = int(np.where(inside, found.s, np.inf).argmin() if pieces else found.s.argmin())
    return Reading(
        estimate=float(values[best]) if pieces else None,
        pieces=pieces,
        p=float(scipy.stats.chi2.sf(found.s.min(), freedom)),
        strength=float((1 - values[best]) ** 2 * found.information[best]),
        updates=its.updates,
    )
