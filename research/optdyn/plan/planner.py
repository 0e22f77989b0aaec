"""Planning arithmetic: algorithms, the mini-batch, GPUs, parameter servers, time to train.

Zou et al., "Distributed training of large-scale deep architectures" (arXiv 1709.06622). Algorithms
l of a convolution i take T_il seconds and M_il bytes of workspace, for which there remains

    M_bound = M_GPU - M_FM - M_MP - M_C

For every candidate mini-batch an integer program chooses one algorithm for each layer, and of the
mini-batches the one that trains soonest is taken (`convergence.py` has its updates):

    min sum_il x_il T_il   such that   sum_l x_il = 1,   sum_il x_il M_il <= M_bound
    min_B  updates(B) seconds(B)

Lemma 1: with R_O overhead over computation on one GPU, G GPUs are faster by

    alpha G,   alpha = (1 + R_O) / (1 + G R_O)

Lemma 2: N_ps >= 2 S_p N_w / (B_ps T_C) parameter servers hide communication behind computation.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported at their first use: scipy.optimize takes 0.4 s
from numpy.typing import ArrayLike

from optdyn.base.errors import InputError

# HiGHS lets a variable be off by 1e-6: of 2^16 units that is a fraction of one, of bytes kilobytes.
UNITS_LOG2 = 16
# HiGHS stops within 1e-6 of the optimum: a billionth of the largest difference of times.
COST_SCALE = 1e3
EXACT = {"mip_rel_gap": 0}
LEVEL = 0.9  # of intervals


PerBatch = Callable[[int], np.ndarray]  # mini-batch -> (layers, algorithms)


class PlanError(InputError):
    pass


class Candidate(NamedTuple):
    """A candidate mini-batch; the defaults if it does not fit."""

    batch: int
    feasible: bool = False
    seconds: float = math.inf  # an update
    columns: tuple[int, ...] = ()  # algorithm of each layer


class BatchFit(NamedTuple):
    batch: int  # the largest mini-batch found to fit
    over: int  # the smallest found not to fit, or one more than the most that was asked for


class Interval(NamedTuple):
    median: float
    low: float
    high: float


def algorithms(times: ArrayLike, memory: ArrayLike, bound: float) -> np.ndarray:
    """Returns the algorithm of each layer with the least sum of times within the bound, (layers,).

    `times` (layers, algorithms) are seconds and `memory` (layers, algorithms) whole bytes; inf in
    either says that the layer has no such algorithm. `bound` is M_bound in bytes. Bytes beyond the
    least memory, slack in all, are counted in units of at most slack / 32768: first rounded down,
    so that a choice that keeps the bound in bytes as well is optimal; if it does not, rounded up,
    so that less than a unit a layer is out of reach. Raises PlanError where no choice would do.
    """
    times, memory = _tables(times, memory)
    missing = ~np.isfinite(memory).any(axis=1)
    if missing.any():
        raise PlanError(f"layer {missing.argmax()} has no algorithm of finite time and memory")
    least = least_memory(times, memory)
    if not bound >= least:
        raise PlanError(f"M_bound is {bound} bytes: these layers need at least {least:.0f}")
    beyond = memory - memory.min(axis=1, keepdims=True)
    allowed = np.isfinite(beyond) & (beyond <= bound - least)
    beyond = np.where(allowed, beyond, 0.0)
    slack = min(bound - least, beyond.max(axis=1).sum())
    unit = math.ldexp(1.0, math.frexp(slack)[1] - UNITS_LOG2)  # a power of 2: division is exact
    slower = np.where(allowed, times - np.where(allowed, times, np.inf).min(1, keepdims=True), 0.0)
    optimize = scipy.optimize
    cost = (slower / (slower.max() or 1.0) * COST_SCALE).ravel()
    limits = (0, allowed.ravel().astype(float))
    one = optimize.LinearConstraint(np.kron(np.eye(len(times)), np.ones(times.shape[1])), 1, 1)
    for rounded in (np.floor, np.ceil):
        # Half a unit more admits no other choice: sums of whole units are whole.
        fits = optimize.LinearConstraint(
            rounded(beyond / unit).reshape(1, -1), ub=slack // unit + 0.5
        )
        solved = optimize.milp(
            cost, integrality=1, bounds=limits, constraints=(one, fits), options=EXACT
        )
        if solved.x is None:
            raise PlanError(f"the integer program was not solved: {solved.message}")
        chosen = solved.x.reshape(times.shape).argmax(axis=1)
        if np.take_along_axis(beyond, chosen[:, None], axis=1).sum() <= slack:
            break
    return chosen


def least_memory(times: ArrayLike, memory: ArrayLike) -> float:
    """Returns the smallest M_bound, in bytes, that `algorithms` accepts; inf without any."""
    return float(_tables(times, memory)[1].min(axis=1).sum())


def largest(bytes_of: Callable[[int], float], bound: float, most: int) -> BatchFit:
    """Returns the largest mini-batch, of 1 to `most`, within the bound, to about 1 in 64.

    Bytes grow nearly along a line. Raises PlanError if a single example does not fit.
    """
    known = dict[int, float]()

    def beyond(size: float) -> float:
        size = round(size)
        if size not in known:
            known[size] = bytes_of(size)
        return known[size] - math.floor(bound) - 0.5  # of whole bytes: never 0

    if beyond(1) > 0:
        raise PlanError(f"an update of one example takes {known[1]:.0f} bytes")
    if beyond(most) > 0:
        scipy.optimize.brentq(beyond, 1, most, xtol=1, rtol=2**-6)
    over = min((size for size, needed in known.items() if needed > bound), default=most + 1)
    return BatchFit(max(size for size in known if size < over), over)


def batches(
    candidates: Iterable[int],
    times_of: PerBatch,
    memory_of: PerBatch,
    bound_of: Callable[[int], float],
) -> list[Candidate]:
    """Solves the integer program for each candidate mini-batch, in their order.

    Work without alternatives is a layer of one algorithm. Raises PlanError if none fits.
    """
    rows = []
    for size in candidates:
        times, memory, bound = np.asarray(times_of(size), float), memory_of(size), bound_of(size)
        least = least_memory(times, memory)
        if least == math.inf or bound < least:
            rows.append(Candidate(size))
            continue
        chosen = algorithms(times, memory, bound)
        seconds = float(np.take_along_axis(times, chosen[:, None], axis=1).sum())
        rows.append(Candidate(size, True, seconds, tuple(chosen.tolist())))
    if not any(row.feasible for row in rows):
        raise PlanError(f"no mini-batch fits, of {[row.batch for row in rows]}")
    return rows


def soonest(rows: Iterable[Candidate], updates_of: Callable[[int], float]) -> Candidate:
    """Returns the feasible row of least updates(B) seconds(B), the smallest batch of equals."""
    feasible = (row for row in rows if row.feasible)
    return min(feasible, key=lambda row: (updates_of(row.batch) * row.seconds, row.batch))


def efficiency(overhead_ratio: float, gpus: int) -> float:
    """Returns alpha of G GPUs by lemma 1, from 1 down to 1 / G, for R_O = `overhead_ratio`."""
    return (1 + overhead_ratio) / (1 + gpus * overhead_ratio)


def speedup(overhead_ratio: float, gpus: int) -> float:
    """Returns alpha G by lemma 1, how many times faster than one GPU."""
    return efficiency(overhead_ratio, gpus) * gpus


def seconds_per_update(t_c: float, t_o: float, gpus: int) -> float:
    """Returns lemma 1 in seconds: T_C / G + T_O; T_C for one GPU, which exchanges with none."""
    return t_c if gpus == 1 else t_c / gpus + t_o


def gpus(overhead_ratio: float, target_alpha: float, most: int) -> int:
    """Returns the largest G, of 1 to `most`, with efficiency at least `target_alpha` (lemma 1)."""
    alpha = partial(efficiency, overhead_ratio)  # falls with G
    return bisect_right(range(1, most + 1), -target_alpha, key=lambda g: -alpha(g))


def parameter_servers(s_p: float, n_w: int, b_ps: float, t_c: float) -> int:
    """Returns the fewest servers whose communication takes no longer than computation (lemma 2).

    S_p bytes of parameters are pulled and pushed in every mini-batch by each of N_w workers, over
    B_ps bytes/s of each server, during T_C seconds of computing. Exact: rounding adds no server.
    """
    return math.ceil(2 * Fraction(s_p) * n_w / (Fraction(b_ps) * Fraction(t_c)))


def interval(samples: ArrayLike) -> Interval:
    """Returns the median, and Student's prediction interval of the next lognormal sample."""
    logs = np.log(np.asarray(samples, float))
    middle = logs.mean()
    half = logs.std(ddof=1) * math.sqrt(1 + 1 / logs.size) * student(logs.size - 1)
    return Interval(*np.exp([middle, middle - half, middle + half]).tolist())


def student(freedom: int) -> float:
    """Returns how many standard errors an interval of `LEVEL` reaches either way."""
    return float(scipy.special.stdtrit(freedom, (1 + LEVEL) / 2))


def gain(before: ArrayLike, planned: ArrayLike) -> Interval:
    """Returns the geometric mean of the rounds' ratios, before over planned, and its interval."""
    ratios = np.asarray(before, float) / np.asarray(planned, float)
    median, low, _ = interval(ratios)
    # A prediction's half width is sqrt(1 + n) times that of the mean.
    factor = (median / low) ** (1 / math.sqrt(1 + ratios.size))
    return Interval(median, median / factor, median * factor)


def pays(found: Interval) -> bool:
    """Returns whether a gain is above the noise of its measurement."""
    return found.low > 1


def time_to_train(updates: Interval, seconds: Interval) -> Interval:
    """Returns the seconds to train: updates times seconds an update.

    Assumes that the two are independent, have intervals of one level, and normal logarithms:
    medians multiply, and distances from them, in logarithms, add in squares. Where an interval is
    not symmetric in logarithms, the two sides are computed separately, which is an approximation.
    """
    logs = np.log(np.array([updates, seconds]))
    below, above = np.exp(np.linalg.norm(logs[:, 1:] - logs[:, :1], axis=0)).tolist()
    median = updates[0] * seconds[0]
    return Interval(median, median / below, median * above)


def _tables(times: ArrayLike, memory: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns both as arrays, with memory inf where time is."""
    times, memory = np.asarray(times, float), np.asarray(memory, float)
    return times, np.where(np.isfinite(times), memory, np.inf)
