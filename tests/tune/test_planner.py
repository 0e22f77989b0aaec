"""The planner: its integer program against enumeration, the lemmas against what they promise.

And what it makes of measurements: the mini-batch that fits, and intervals of seconds.
"""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from optdyn.plan import convergence, planner
from optdyn.plan.planner import Candidate, Interval, PlanError

SHAPES = tuple(product(range(1, 7), range(1, 5)))  # layers, algorithms
KIB, GIB = 2**10, 2**30


def enumerated(times, memory):
    """Seconds and bytes of every choice, (algorithms ** layers,)."""
    choices = np.array(list(product(range(times.shape[1]), repeat=len(times))))
    layers = np.arange(len(times))
    return times[layers, choices].sum(axis=1), memory[layers, choices].sum(axis=1)


def of(table, chosen):
    return table[np.arange(len(table)), chosen].sum()


def check(times, memory, bound):
    """Optimal if anything is feasible, an error that says what would be if nothing is."""
    all_times, all_memory = enumerated(times, memory)
    possible = np.isfinite(all_times) & np.isfinite(all_memory)
    feasible = possible & (all_memory <= bound)
    if not possible.any():
        with pytest.raises(PlanError, match="has no algorithm of finite"):
            planner.algorithms(times, memory, bound)
        assert planner.least_memory(times, memory) == math.inf
    elif not feasible.any():
        least = all_memory[possible].min()
        with pytest.raises(PlanError, match=f"at least {least:.0f}$"):
            planner.algorithms(times, memory, bound)
        check(times, memory, least)
    else:
        chosen = planner.algorithms(times, memory, bound)
        assert chosen.shape == (len(times),)
        assert of(memory, chosen) <= bound
        # HiGHS stops within 1e-9 of the largest difference of times, and its simplex leaves costs
        # of 1e-10 of it at each of at most 24 variables.
        apart = np.ptp(times[np.isfinite(times)])
        # The sums are of at most 6 terms, each rounded to 2^-53 of the sum.
        rounding = 6 * 2**-53 * of(times, chosen)
        assert abs(of(times, chosen) - all_times[feasible].min()) <= 4e-9 * apart + rounding


def bounds(times, memory):
    """Nothing, all that can matter at the ends, and what some choice needs and a byte less."""
    all_times, all_memory = enumerated(times, memory)
    sums = np.unique(all_memory[np.isfinite(all_times) & np.isfinite(all_memory)])
    middle = sums[[0, len(sums) // 3, len(sums) // 2, -1]] if len(sums) else np.zeros(0)
    return [0.0, math.inf, *middle, *(middle - 1)]


@pytest.mark.parametrize(("layers", "choices"), SHAPES)
def test_every_shape(layers, choices):
    """Times without ties and with many, bytes of both scales, with and without what is missing."""
    rng = np.random.default_rng((layers, choices))
    shape = (layers, choices)
    for times in (rng.uniform(1e-4, 1e-2, shape), rng.integers(0, 3, shape).astype(float)):
        for top in (4, 1000):
            memory = rng.integers(0, top, shape).astype(float)
            absent = np.where(rng.random(shape) < 0.25, np.inf, times)
            for seconds in (times, absent):
                for bound in bounds(seconds, memory):
                    check(seconds, memory, bound)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from((0, 1)))
def test_gigabytes(seed, less):
    """Bytes of a GPU, and a bound that a choice just meets or just misses, are kept exactly."""
    rng = np.random.default_rng(seed)
    times, memory = rng.uniform(1e-4, 1e-2, (5, 3)), rng.integers(0, GIB, (5, 3)).astype(float)
    all_times, all_memory = enumerated(times, memory)
    bound = np.sort(all_memory)[rng.integers(1, 3**5)] - less
    chosen = planner.algorithms(times, memory, bound)
    assert of(memory, chosen) <= bound
    # Out of reach is at most a unit a layer, 2^-15 of slack each; rounding and HiGHS as in `check`.
    reach = bound - 5 * 2**-15 * (bound - all_memory.min())
    best = all_times[all_memory <= reach].min()
    assert of(times, chosen) <= best + 4e-9 * np.ptp(times) + 6 * 2**-53 * best


def test_many_layers():
    """Against dynamic programming: the least time of the layers so far, by bytes at most."""
    rng = np.random.default_rng(0)
    memory = rng.integers(0, 64, (40, 4))
    times = 1 - memory / 64 + 0.01 * rng.random((40, 4))  # a byte's worth is nearly the same: hard
    least = np.zeros(40 * 64)
    for seconds, needed in zip(times, memory, strict=True):
        shifted = (np.r_[np.full(m, np.inf), least[: len(least) - m]] for m in needed)
        least = np.min(seconds[:, None] + np.array([*shifted]), axis=0)
    for bound in range(600, 1400, 50):
        best = of(times, planner.algorithms(times, memory, bound))
        assert best == pytest.approx(least[bound], abs=1e-8)  # HiGHS as in `check`, of 160 costs


def test_equal_layers():
    """One byte short of half the layers fast, where all choices of nine tie."""
    times, memory = np.tile([2.0, 1.0], (20, 1)), np.tile([0.0, GIB], (20, 1))
    assert of(times, planner.algorithms(times, memory, 10 * GIB)) == 30
    assert of(times, planner.algorithms(times, memory, 10 * GIB - 1)) == 31


def as_many_examples(batch):
    """Updates where the noise scale is infinite."""
    return 1 / batch


def test_batches():
    """A GPU where more examples at once are faster, until there is room for slow algorithms only.

    One layer: GEMM takes b ms and no workspace; FFT 1 + b / 4 ms and 1 KiB an example. With 2 KiB
    an example of feature maps, of 100 KiB, 33 examples leave FFT its workspace, 50 fit at all.
    """
    rows = planner.batches(
        (16, 48, 32, 64),
        lambda b: [[1e-3 * b, 1e-3 + 0.25e-3 * b]],
        lambda b: [[0, b * KIB]],
        lambda b: (100 - 2 * b) * KIB,
    )
    assert [row.batch for row in rows] == [16, 48, 32, 64]
    assert [row.feasible for row in rows] == [True, True, True, False]
    assert [row.columns for row in rows] == [(1,), (0,), (1,), ()]
    best = planner.soonest(rows, as_many_examples)
    assert best.batch == 32 and best.seconds == pytest.approx(9e-3, 1e-15)
    assert rows[3].seconds == math.inf


def test_batches_of_equal_throughput():
    """The smallest of the equally fast, and a mini-batch that no algorithm can run is left out."""
    rows = planner.batches(
        (4, 2, 8), lambda b: [[b if b < 8 else math.inf]], lambda b: [[0]], lambda b: math.inf
    )
    assert planner.soonest(rows, as_many_examples).batch == 2
    assert [row.feasible for row in rows] == [True, True, False]


def test_soonest():
    """As many updates whatever the mini-batch: the fastest update; what does not fit never wins."""
    rows = [
        Candidate(8, True, 3.0),
        Candidate(4, True, 2.0),
        Candidate(16, True, 5.0),
        Candidate(2),
    ]
    assert planner.soonest(rows, lambda b: 1).batch == 4
    assert planner.soonest(rows, as_many_examples).batch == 16
    assert planner.soonest(rows, {8: 1, 4: 2, 16: 1, 2: 0}.get).batch == 8


def test_a_gain_above_the_noise_pays():
    """Twice as fast with 5 % of noise; no faster with any; little faster in much or in none."""
    rng = np.random.default_rng(0)
    seconds, noise = np.exp(rng.normal(0, 0.3, 20)), np.exp(rng.normal(0, 0.05, 20))
    made = planner.gain(2 * seconds, seconds * noise)  # a slow round is slow for both
    assert made.low < 2 < made.high and planner.pays(made)
    assert not planner.pays(planner.gain(seconds, seconds * noise))
    assert not planner.pays(planner.gain(seconds, seconds))
    assert not planner.pays(planner.gain([1.05, 0.9, 1.2], [1.0, 1.0, 1.0]))
    assert planner.pays(planner.gain([1.05, 1.06, 1.05], [1.0, 1.0, 1.0]))


def test_the_interval_of_a_gain():
    """It holds the true gain with 90 %: of 2,000 sets of rounds."""
    ratios = 1.1 * np.exp(np.random.default_rng(0).normal(0, 0.2, (2000, 5)))
    made = np.array([planner.gain(row, np.ones(5)) for row in ratios])
    inside = (made[:, 1] <= 1.1) & (made[:, 2] >= 1.1)
    assert abs(inside.mean() - 0.9) < 0.027  # four standard errors


ALPHAS = st.fractions(Fraction(1, 1000), 1)
GPUS = st.integers(2, 4096)


@given(ALPHAS, GPUS)
def test_lemma_1_inverse(alpha, g):
    """G GPUs have efficiency alpha with R_O = (1 - alpha) / (alpha G - 1). All is rational."""
    assume(alpha * g > 1)
    overhead = (1 - alpha) / (alpha * g - 1)
    assert planner.efficiency(overhead, g) == alpha
    assert planner.speedup(overhead, g) == alpha * g
    assert planner.gpus(overhead, alpha, 5000) == (5000 if alpha == 1 else g)


@given(st.floats(0, 10), st.floats(0.01, 1), st.integers(1, 300))
def test_gpus_is_the_largest(overhead, alpha, most):
    efficient = [g for g in range(1, most + 1) if planner.efficiency(overhead, g) >= alpha]
    assert planner.gpus(overhead, alpha, most) == max(efficient)


@given(st.integers(1, 2**40), st.integers(1, 1000), st.floats(1e6, 1e12), st.floats(1e-4, 1e3))
def test_lemma_2(s_p, n_w, b_ps, t_c):
    """Communication is hidden with that many servers, and with one fewer it is not. Exact."""
    n = planner.parameter_servers(s_p, n_w, b_ps, t_c)
    moved, bandwidth = 2 * Fraction(s_p) * n_w, Fraction(b_ps)
    assert n >= 1 and moved / (n * bandwidth) <= Fraction(t_c)
    assert n == 1 or moved / ((n - 1) * bandwidth) > Fraction(t_c)


def test_time_to_train_known():
    """What is certain only scales; a factor 8 and a factor 16 either way are a factor 2^5."""
    scaled = planner.time_to_train(Interval(10, 5, 40), Interval(2, 2, 2))
    both = planner.time_to_train(Interval(8, 1, 64), Interval(16, 1, 256))
    # Logarithms up to 6 and their inverse, each rounded.
    assert scaled == pytest.approx((20, 10, 80), rel=1e-14)
    assert both == pytest.approx((128, 128 / 2**5, 128 * 2**5), rel=1e-14)


def test_no_mini_batch_may_fit():
    with pytest.raises(PlanError, match=r"no mini-batch fits, of \[2, 4\]"):
        planner.batches((2, 4), lambda b: [[1.0]], lambda b: [[3]], lambda b: 2)


def counted(bytes_of):
    """The function, and the mini-batches that it was called with."""
    calls = []
    return lambda b: calls.append(b) or bytes_of(b), calls


@settings(max_examples=50)
@given(
    st.integers(1, 10**6),
    st.integers(1, 10**4),
    st.lists(st.tuples(st.integers(2, 10**5), st.integers(0, 10**8)), max_size=3),
    st.integers(2, 10**5),
    st.floats(0, 1),
)
def test_largest(fixed, slope, steps, most, part):
    """Bytes along a line and with steps up: it fits, and 1 in 64 more, rounded, does not."""

    def bytes_of(b):
        return fixed + slope * b + sum(height for at, height in steps if b >= at)

    bound = bytes_of(1) + part * (bytes_of(most) - bytes_of(1))
    function, calls = counted(bytes_of)
    fits, over = planner.largest(function, bound, most)
    assert bytes_of(fits) <= bound
    assert over == most + 1 if fits == most else bytes_of(over) > bound
    # Brent's bracket is 1 + x / 64 wide at the end, and both of its ends were rounded.
    assert over - fits <= 3 + over / 64
    assert len(set(calls)) == len(calls)
    if not steps:
        # The ends, what the line says, and a verification, which rounding may repeat.
        assert len(calls) <= 5


def test_largest_of_what_just_fits():
    assert planner.largest(lambda b: 100 + b, 101, 50) == (1, 2)
    assert planner.largest(lambda b: 100 + b, 150, 50) == (50, 51)
    assert planner.largest(lambda b: 100 + b, 1e9, 1) == (1, 2)
    with pytest.raises(PlanError, match="an update of one example takes 101 bytes"):
        planner.largest(lambda b: 100 + b, 100, 50)


@pytest.mark.parametrize("n", [2, 3, 7])
def test_interval_holds_the_next_sample(n):
    """Lognormal samples: the next is outside at either end with 5 %, and half of all are below."""
    rng = np.random.default_rng(n)
    drawn = np.exp(1 + 0.3 * rng.standard_normal((20_000, n + 1)))
    made = np.array([planner.interval(row[:n]) for row in drawn])
    shares = (drawn[:, -1:] < made).mean(axis=0)
    assert planner.interval([3.0] * n) == pytest.approx((3, 3, 3), rel=1e-15)
    # Shares of so many have standard errors of at most 0.0036: four of them.
    np.testing.assert_allclose(shares, [0.5, 0.05, 0.95], rtol=0, atol=0.015)


# Updates by the mini-batch: the law from exact and noisy runs, its limits, what they choose.


SIZES = (4, 16, 64, 256)
# Every example takes 1 ms and an update 16 ms besides.
ROWS = [Candidate(b, True, 0.016 + 0.001 * b) for b in SIZES]


@given(st.floats(1, 1e5), st.floats(0.1, 1e4))
def test_fit_of_exact_runs(least, noise):
    law = convergence.fit(SIZES, [least * (1 + noise / b) for b in SIZES])
    assert law.least == pytest.approx(least, rel=1e-5)
    assert law.noise == pytest.approx(noise, rel=1e-5)


def test_fit_at_its_bounds():
    flat = convergence.fit((8, 64), (100, 110))
    steep = convergence.fit((8, 64), (1000, 100))
    assert flat.noise == pytest.approx(0, abs=1e-4)
    assert flat.least == pytest.approx(math.sqrt(100 * 110), rel=1e-4)
    assert steep.noise > 1e6
    assert steep.examples == pytest.approx(math.sqrt(8000 * 6400), rel=1e-4)


def test_interval_of_runs_holds_the_next_run():
    exact = convergence.from_runs((8, 32, 128), (600, 225, 131.25))(64)
    assert exact == pytest.approx((100 * (1 + 40 / 64),) * 3, rel=1e-5)  # they leave no doubt
    rng, draws = np.random.default_rng(0), 300
    batches = np.repeat([8, 32, 128], 2)
    inside = np.zeros((draws, 2))
    for i in range(draws):
        taken = 100 * (1 + 40 / batches) * np.exp(0.1 * rng.standard_normal(6))
        of = convergence.from_runs(batches, taken)
        for j, b in enumerate((20, 400)):
            _, low, high = of(b)
            inside[i, j] = low <= 100 * (1 + 40 / b) * math.exp(0.1 * rng.standard_normal()) <= high
    # Shares of 300 have standard errors of 0.017: four of them.
    np.testing.assert_allclose(inside.mean(axis=0), 0.9, atol=0.07)


@pytest.mark.parametrize("noise", [0.0, 40.0, math.inf])
def test_a_given_noise_scale(noise):
    """Against the law itself, whose two ends take as many updates and as many examples."""
    known = Interval(500, 400, 600)
    for b in SIZES:
        factor = 32 / b if math.isinf(noise) else (1 + noise / b) / (1 + noise / 32)
        expected = [factor * u for u in known]
        assert convergence.from_noise_scale(known, 32, noise)(b) == pytest.approx(
            expected, rel=1e-12
        )


@given(st.floats(0, 1e9), st.integers(1, 10**5), st.integers(1, 10**5))
def test_the_unknown_holds_every_noise_scale(noise, batch, other):
    known = Interval(500, 400, 600)
    median, low, high = convergence.from_noise_scale(known, batch, noise)(other)
    worst, least, most = convergence.from_all_noise_scales(known, batch)(other)
    slack = 1 + 1e-12  # of rounding
    assert least <= low * slack and median <= worst * slack and high <= most * slack


def chosen(updates):
    return planner.soonest(ROWS, lambda b: updates(b).median).batch


def test_the_choice_of_the_mini_batch():
    """Noise scale 0: the fastest update. Infinite: most examples a second. Between them: between.

    Of seconds (16 + b) (1 + N / b) ms the least is at b = sqrt(16 N), on these rows.
    """
    known = Interval(500, 400, 600)
    found = [
        chosen(convergence.from_noise_scale(known, 16, n)) for n in (0, 16, 256, 4096, math.inf)
    ]
    assert found == [4, 16, 64, 256, 256]


def test_nothing_larger_is_chosen_on_hope():
    known = Interval(500, 400, 600)
    assert chosen(convergence.from_all_noise_scales(known, 16)) == 16
    # A smaller one takes more updates by the worst case, here no fewer examples, and is no faster.
    assert chosen(convergence.from_all_noise_scales(known, 100)) == 64
