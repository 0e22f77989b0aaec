"""Asynchronous arrivals against the queueing theory, laws of times, ties, replicas.

Statistical tests have fixed seeds and ask for p > 1e-3: one seed in a thousand would fail a right
program, and none of the wrong ones tried (constant service, a skewed choice of worker) passes.
"""

import heapq
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from optdyn.clock.arrivals import (
    BLOCK,
    Work,
    compute_groups,
    queued_arrivals,
    renewal_arrivals,
)
from optdyn.clock.cluster import Cluster, Pieces
from optdyn.clock.service import DRAWN, Constant, Exponential, Gamma, LogNormal
from optdyn.clock.timeline import from_arrivals
from tests.clock.lines import check, numbers, p_of_geometric, replica, versions_read
from tests.values import as_law

GROUPS = [2, 3, 8, 32]
P = 1e-3


@pytest.fixture(scope="module", params=GROUPS)
def memoryless(request):
    """g workers with exponential services of mean one second, 40,000 arrivals of each."""
    g = request.param
    values = Cluster(nodes=g, service=Exponential(), seconds_per_example=1.0)
    return g, compute_groups(values, groups=g, steps=40_000 * g, batch_size=1, seed=g)


def test_mean_staleness_of_memoryless_workers(memoryless):
    g, timeline = memoryless
    # 40,000 gaps of deviation about g give each worker's mean to 0.5 %: 2 % is four deviations.
    for worker in range(g):
        mean = timeline.staleness[timeline.worker == worker].mean()
        assert mean + 1 == pytest.approx(g, rel=0.02)
    # Over all workers the gaps add up to the length of the run, so only its two ends are left.
    assert timeline.staleness.mean() == pytest.approx(g - 1, rel=0.002)


def test_memoryless_staleness_p_of_geometric(memoryless):
    """P(tau = k) = (1/g) (1 - 1/g)^k; the gaps of one worker are independent draws of it."""
    g, timeline = memoryless
    assert p_of_geometric(timeline.staleness[timeline.worker == 0], g) > P


def test_memoryless_workers_arrive_uniformly_and_forget_the_last(memoryless):
    """Disjoint pairs of successive arrivals fall evenly on the g x g pairs of workers."""
    g, timeline = memoryless
    first, second = timeline.worker[0::2].astype(int), timeline.worker[1::2]
    assert stats.chisquare(np.bincount(first * g + second, minlength=g * g)).pvalue > P


def test_memoryless_arrivals_are_a_poisson_process(memoryless):
    """Seconds between arrivals are exponential with mean 1/g."""
    g, timeline = memoryless
    gaps = np.diff(timeline.seconds, prepend=0.0)
    assert stats.kstest(gaps * g, "expon").pvalue > P


def test_a_synchronous_update_of_n_memoryless_workers_takes_harmonic_time():
    """E max of N exponentials of mean m is m (1 + 1/2 + ... + 1/N)."""
    n, steps = 8, 40_000
    values = Cluster(nodes=2, devices_per_node=4, seconds_per_example=1.0)
    timeline = compute_groups(values, groups=1, steps=steps, batch_size=n)  # one example a worker
    # Variance 1 + 1/4 + ... + 1/64 = 1.53: four deviations of the mean of 40,000 are 0.9 %.
    harmonic = sum(1 / k for k in range(1, n + 1))
    assert timeline.seconds[-1] / steps == pytest.approx(harmonic, rel=0.009)


def test_blocks_of_draws_leave_no_seam():
    """A run longer than the blocks begins, to the bit, with the run of less than a block."""
    means = np.array([[1.0], [0.7]])
    short = renewal_arrivals(3, Exponential().draw, Work(means), 1000)
    long = renewal_arrivals(3, Exponential().draw, Work(means), 3 * BLOCK)
    np.testing.assert_array_equal(long.worker[:1000], short.worker)
    np.testing.assert_array_equal(long.seconds[:1000], short.seconds)
    # Across seams too: the services of a worker are still exponential with its mean.
    for worker, mean in enumerate((1.0, 0.7)):
        services = np.diff(long.seconds[long.worker == worker], prepend=0.0)
        assert stats.kstest(services / mean, "expon").pvalue > P


@pytest.mark.parametrize("variation", [0.0, 0.3, 1.0])
def test_lognormal_has_unit_mean_and_the_coefficient_of_variation(variation):
    draws = LogNormal(variation).draw(np.random.default_rng(0), (1_000_000,))
    # At cv = 1 the kurtosis is 41, so a million draws give the cv to 0.3 % and the mean to 0.1 %.
    assert draws.mean() == pytest.approx(1, rel=0.005)
    assert draws.std() == pytest.approx(variation, rel=0.015, abs=1e-12)
    if variation:
        z = (np.log(draws) - np.log(draws).mean()) / np.log(draws).std()
        assert stats.kstest(z[:50_000], "norm").pvalue > P


@pytest.mark.parametrize("variation", [0.3, 1.0, 3.0])
def test_gamma_has_unit_mean_and_the_coefficient_of_variation(variation):
    draws = Gamma(variation).draw(np.random.default_rng(0), (1_000_000,))
    # The mean of a million is right to 0.3 %; the kurtosis is 3 + 6 cv^2, so their cv to 0.4 %.
    assert draws.mean() == pytest.approx(1, rel=0.012)
    assert draws.std() == pytest.approx(variation, rel=0.015)
    assert stats.kstest(draws[:50_000], "gamma", (variation**-2, 0, variation**2)).pvalue > P


def test_gamma_between_its_limits():
    """1 is exponential, n^-1/2 the mean of n such, 0 constant; no draw is 0 or infinite."""
    rng = np.random.default_rng(0)
    assert stats.kstest(Gamma(1.0).draw(rng, (50_000,)), "expon").pvalue > P
    means = Exponential().draw(rng, (50_000, 9)).mean(axis=1)
    assert stats.ks_2samp(Gamma(1 / 3).draw(rng, (50_000,)), means).pvalue > P
    np.testing.assert_array_equal(Gamma(0.0).draw(rng, (2, 3)), np.ones((2, 3)))
    wild = Gamma(30.0).draw(rng, (10_000,))
    assert wild.min() > 0 and np.isfinite(wild).all()


def test_exponential_services_are_exponential():
    draws = Exponential().draw(np.random.default_rng(0), (500, 100)).ravel()
    assert stats.kstest(draws, "expon").pvalue > P


def test_replicas_are_consecutive_windows_of_one_timeline():
    values = Cluster(nodes=4, service=Exponential())
    one = compute_groups(values, groups=4, steps=150, batch_size=8, seed=5)
    three = compute_groups(values, groups=4, steps=50, batch_size=8, seed=5, replicas=3)
    np.testing.assert_array_equal(three.worker.ravel(), one.worker)
    starts = one.seconds[[49, 99]]
    np.testing.assert_array_equal(three.seconds[0], one.seconds[:50])
    np.testing.assert_array_equal(three.seconds[1], one.seconds[50:100] - starts[0])
    np.testing.assert_array_equal(three.seconds[2], one.seconds[100:] - starts[1])


def test_seeds_differ_and_repeat():
    values = Cluster(nodes=4)
    a, b, c = (compute_groups(values, groups=4, steps=100, batch_size=8, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(a.seconds, b.seconds)
    assert not np.array_equal(a.worker, c.worker)


@pytest.mark.slow
def test_ten_million_events_for_sixteen_groups():
    """Nothing in the making is worse than n log n, in time or memory. Prints the seconds."""
    start = time.perf_counter()
    timeline = compute_groups(Cluster(nodes=16), groups=16, steps=10_000_000, batch_size=16)
    print(f"10 M events of 16 groups: {time.perf_counter() - start:.1f} s")
    assert timeline.worker.shape == (10_000_000,)
    # The sums of gaps miss only the ends of the run, at most 16 gaps of a few hundred.
    assert timeline.staleness.mean() == pytest.approx(15, rel=1e-4)


def exact(service, steps):
    """Groups in the order of their arrivals, with times that are fractions and have no rounding."""
    queue = [(each, group) for group, each in enumerate(service)]
    heapq.heapify(queue)
    order = []
    for _ in range(steps):
        now, group = heapq.heappop(queue)
        order.append(group)
        heapq.heappush(queue, (now + service[group], group))
    return order


ORDERS = {
    "arrivals": renewal_arrivals,
    "events": queued_arrivals,
}


@pytest.mark.parametrize("order", ORDERS)
@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=5),
    st.sampled_from([1.0, 0.1, 1 / 3, 64e-3]),
    st.integers(1, 400),
)
def test_arrivals_at_the_same_second_are_in_the_order_of_the_groups(order, speeds, unit, steps):
    """Constant services at rational speeds meet often, and sums of floats disagree on when."""
    means = np.array([[unit / speed] for speed in speeds])
    line = ORDERS[order](0, Constant().draw, Work(means), steps)
    assert line.worker.tolist() == exact([Fraction(1, speed) for speed in speeds], steps)
    assert np.all(np.diff(line.seconds) >= 0)


@st.composite
def clusters(draw):
    """A cluster and its groups, of any law or pieces, and of any speeds."""
    groups, k = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    names = ("conv_compute", "conv_network", "fc", "fc_network")
    pieces = Pieces(**{name: draw(st.sampled_from([0.0, 0.3, 1.0])) for name in names})
    speeds = st.lists(st.floats(0.1, 10), min_size=groups * k, max_size=groups * k)
    law = draw(st.sampled_from((*DRAWN, "geometric")))
    values = {"nodes": groups, "devices_per_node": k, "service": as_law(law, draw(numbers(3)))}
    values |= {"speeds": draw(st.just(()) | speeds.map(tuple))}
    return Cluster(**values, latency=0.5, pieces=pieces if law in DRAWN else Pieces()), groups


@given(clusters(), st.booleans(), st.integers(1, 40), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_every_replica_starts_afresh(drawn, merged, steps, replicas, seed):
    """Its slots hold what its staleness says."""
    cluster, groups = drawn
    run = {"groups": groups, "steps": steps, "batch_size": 8, "seed": seed, "merged": merged}
    many = compute_groups(cluster, **run, replicas=replicas)
    assert many.worker.shape == (replicas, steps)
    for i in range(replicas):
        check(replica(many, i), groups, steps)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=50), st.integers(1, 3))
def test_any_order_of_arrivals_is_replayed(order, replicas):
    """Also orders in which some worker never arrives, and several at once along a first axis."""
    worker = np.array([np.roll(order, shift) for shift in range(replicas)])
    timeline = from_arrivals(worker, np.cumsum(np.ones_like(worker), axis=-1), 5)
    for i in range(replicas):
        held = versions_read(timeline.plan.read[i], timeline.plan.write[i], 5)
        np.testing.assert_array_equal(held, np.arange(len(order)) - timeline.staleness[i])
