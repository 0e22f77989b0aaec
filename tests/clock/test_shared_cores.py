"""Workers and a server on C cores: limits, conservation, an exact law, and small steps of time."""

import numpy as np
import pytest

from optdyn.clock.arrivals import Work, renewal_arrivals, shared_cores
from optdyn.clock.service import Constant, Exponential, LogNormal, is_constant
from tests.clock.lines import same_arrivals


def alike(workers, seconds=1.0):
    return Work(np.full((workers, 1), seconds))


def rate(line, first=0):
    return (len(line.seconds) - 1 - first) / (line.seconds[-1] - line.seconds[first])


@pytest.mark.parametrize("law", [Constant().draw, Exponential().draw, LogNormal(0.5).draw])
def test_without_a_server_and_with_cores_enough_it_is_the_clock_of_arrivals(law):
    work = Work(np.array([[1.0], [2.0], [3.0], [0.7]]))
    for cores in (4, np.inf):
        found = shared_cores(3, law, work, 0.0, cores, 400)
        same_arrivals(found, renewal_arrivals(3, law, work, 400))


@pytest.mark.parametrize("law", [Constant().draw, Exponential().draw])
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_one_core_does_the_sum_of_the_work(law, workers):
    """It is never idle, so all work done is what has passed; left over is less than a round."""
    steps, (w, s) = 3000, (0.7, 0.4)
    line = shared_cores(5, law, alike(workers, w), s, 1.0, steps)
    # The mean of 3,000 exponential draws of w is known to 1 %; what is begun is at most 8 w.
    spread = 0.0 if is_constant(law) else 4 * w / (w + s) / np.sqrt(steps)
    assert line.seconds[-1] / steps == pytest.approx(w + s, rel=spread + workers * w / steps)


def test_constant_times_by_hand():
    """Two workers of 1 s, a server of 0.5 s. On two cores they are slowed by one another once.

    Both compute until 1. The first is served until 1.5, the second until 2 while the first
    computes: until 2.5, and so on: an update every 0.75 s, the first at 1.5, 2, 3, 3.5, 4.5, ...
    On one core both are done at 2, then the server has the core, 2.5; then it and the first
    worker share it: the server is done after 0.5 s of its own, at 3.5.
    """
    two = shared_cores(0, Constant().draw, alike(2), 0.5, 2.0, 6)
    np.testing.assert_allclose(two.seconds, [1.5, 2.0, 3.0, 3.5, 4.5, 5.0], rtol=1e-12)
    np.testing.assert_array_equal(two.worker, [0, 1] * 3)
    np.testing.assert_array_equal(two.staleness, [0] + [1] * 5)
    one = shared_cores(0, Constant().draw, alike(2), 0.5, 1.0, 2)
    np.testing.assert_allclose(one.seconds, [2.5, 3.5], rtol=1e-12)


@pytest.mark.parametrize("cores", [1.0, 2.0, 2.5, np.inf])
@pytest.mark.parametrize("serving", [0.1, 1.0])
@pytest.mark.parametrize("workers", [2, 5])
def test_of_memoryless_times_it_has_the_stationary_rate(workers, serving, cores):
    """n workers compute: a birth and death process, whose stationary law is a product of ratios."""
    n = np.arange(workers + 1)
    speed = np.minimum(1.0, cores / np.maximum(n + (n < workers), 1))
    down, up = n * speed, (n < workers) * speed / serving  # a worker is done; the server is
    law = np.cumprod(np.append(1.0, up[:-1] / down[1:]))
    known = float(law @ up / law.sum())
    served = np.random.default_rng(1).exponential(serving, 40_000)
    line = shared_cores(7, Exponential().draw, alike(workers), served, cores, 40_000)
    # 40,000 updates of a variation of at most 1 have a standard error of 0.5 %: three of them.
    assert rate(line, 400) == pytest.approx(known, rel=0.015)


def test_it_is_what_small_steps_of_time_make_of_it():
    """An independent simulation: every step gives each that is at work its share of the cores.

    Workers draw from the same streams.
    """
    seed, workers, serving, cores, steps, dt = 11, 4, 0.3, 2.0, 60, 2e-4
    means = np.array([1.0, 1.3, 0.8, 2.0])
    served = np.random.default_rng(0).gamma(2.0, serving / 2, steps + 1)
    line = shared_cores(seed, LogNormal(0.4).draw, Work(means[:, None]), served[:-1], cores, steps)
    size = min(steps, 2 * -(-steps // workers) + 16)
    draw = LogNormal(0.4).draw
    streams = [iter(draw(np.random.default_rng((seed, w)), (size, 1))[:, 0]) for w in range(4)]
    left = np.array([next(streams[w]) * means[w] for w in range(workers)])
    queue, found, at, job = [], [], 0.0, None
    while len(found) < steps:
        at += dt
        computing = left > 0
        share = dt * min(1.0, cores / max(computing.sum() + (job is not None), 1))
        left = np.where(computing, left - share, left)
        queue += [w for w in range(workers) if computing[w] and left[w] <= 0]
        if job is not None:
            job -= share
            if job <= 0:
                w = queue.pop(0)
                found.append((w, at))
                left[w], job = next(streams[w]) * means[w], None
        if job is None and queue:
            job = served[len(found)]
    order, times = zip(*found, strict=True)
    np.testing.assert_array_equal(line.worker, order)
    # Every phase ends up to a step late; an update depends on at most two a round.
    np.testing.assert_allclose(line.seconds, times, atol=4 * dt * steps)


def test_longer_runs_begin_with_shorter_ones_and_more_cores_are_no_slower():
    def drawn(cores, steps):
        return shared_cores(2, LogNormal(0.5).draw, alike(6), 0.2, cores, steps)

    np.testing.assert_array_equal(drawn(2.0, 50).worker[:20], drawn(2.0, 20).worker)
    rates = [rate(drawn(cores, 2000), 50) for cores in (1.0, 2.0, 3.0, 7.0, np.inf)]
    assert np.all(np.diff(rates) > -1e-9) and rates[-1] == rates[-2]
    assert rates[0] == pytest.approx(1 / 1.2, rel=0.04)  # 2,000 draws of variation 0.5: 1.1 %
