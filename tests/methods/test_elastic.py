"""EASGD against lists in float64, and what its paper says of the elastic exchange."""

from functools import cache

import jax
import numpy as np
import pytest

from optdyn.methods.workers import ElasticState, elastic
from tests.methods import workers
from tests.methods.nodes import BATCHES, START, STEPS, P, flattened, tree
from tests.methods.workers import CLOSE, WORKERS, events_of, line_of, ran, reference

method = cache(lambda: workers.made(elastic))
VALUES = {"method.period": 3, "method.elasticity": 1.2}
RNG = np.random.default_rng(3)


def rule(line, a):
    def arrival(now, i, t, step):
        s = a * (now.x[i] - now.shown) * line.plan.exchange[t]
        now.shown = now.shown + s
        now.x[i] = now.x[i] + step() - s
        now.read[i] = now.x[i]

    return arrival


def test_every_update_equals_the_reference():
    line = line_of("elastic", **VALUES)
    states, info = ran(method(), events_of(line))
    x, center = reference(line, rule(line, 1.2 / WORKERS))
    np.testing.assert_allclose(flattened(states.workers), x, **CLOSE)
    np.testing.assert_allclose(flattened(states.params), center, **CLOSE)
    assert np.ptp(x[-1], axis=0).max() > 0.05  # the workers do part, by far more than that
    # Every third arrival of a worker sends its 14 numbers and gets as many.
    exchanges = sum(np.bincount(line.worker) // 3)
    assert info["sent_bytes"].sum() == exchanges * 2 * 4 * P
    assert not line.staleness.any()


def test_an_exchange_keeps_the_sum_of_all_and_the_center():
    """Where no gradient moves them: at rate 0, workers and center anywhere."""
    line = line_of("elastic", **VALUES | {"method.period": 1})
    start = method().init(tree(START))
    table, center = RNG.normal(size=(WORKERS, P)), RNG.normal(size=P)
    start = ElasticState(tree(np.float32(center)), tree(np.float32(table)), start.opt_state)
    states, _ = ran(method(), events_of(line, rate=0.0), state=start)
    x, shown = flattened(states.workers), flattened(states.params)
    # Four numbers of about one, an ulp each an exchange, 32 exchanges.
    np.testing.assert_allclose(
        x.sum(1) + shown, np.tile(table.sum(0) + center, (STEPS, 1)), rtol=0, atol=1e-5
    )
    assert np.abs(shown[-1] - center).max() > 0.1


def test_if_all_exchange_at_once_with_elasticity_one_the_center_is_the_mean():
    """Each pulls at the center as it was, at rate 0."""
    line = line_of("elastic", **{"method.period": 1, "method.elasticity": 1.0})
    table, center = RNG.normal(size=(WORKERS, P)), RNG.normal(size=P)
    start = method().init(tree(START))
    start = ElasticState(tree(np.float32(center)), tree(np.float32(table)), start.opt_state)
    events, pulls = events_of(line, rate=0.0), np.zeros(P)
    for i in range(WORKERS):
        t = np.flatnonzero(line.worker == i)[0]
        first = jax.tree.map(lambda leaf, t=t: leaf[t], (events, BATCHES))
        after, _ = method().step(start, *first)
        pulls += flattened(after.params) - center
    np.testing.assert_allclose(center + pulls, table.mean(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("service", ["exponential", "lognormal", "gamma"])
def test_with_period_one_arrivals_are_those_of_groups(service):
    """To the bit: the workers are groups that send as often."""
    asked = {"cluster.service.name": service, "cluster.latency": 0.1, "cluster.bandwidth": 100.0}
    own = line_of("elastic", update_bytes=8, **asked, **{"method.period": 1})
    groups = line_of("asynchronous", update_bytes=8, **asked)
    np.testing.assert_array_equal(own.seconds, groups.seconds)
    np.testing.assert_array_equal(own.worker, groups.worker)
    assert own.plan.exchange.all()


def test_only_a_step_that_exchanges_takes_the_seconds_of_messages():
    """A worker's step computes for 1 s; two messages of 8 bytes at 100 B/s and 0.1 s take 0.36."""
    asked = {"cluster.service.name": "constant", "cluster.latency": 0.1, "cluster.bandwidth": 100.0}
    for overlap, third in ((0.0, 3.36), (0.25, 3.11)):
        line = line_of(
            "elastic", 2, 12, 8, **asked, **{"method.period": 3, "cluster.overlap": overlap}
        )
        one = np.array([1, 2, third, third + 1, third + 2, 2 * third])
        np.testing.assert_allclose(line.seconds, np.repeat(one, 2))
        np.testing.assert_array_equal(line.plan.exchange, ([False] * 4 + [True] * 2) * 2)
