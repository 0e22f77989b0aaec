"""AD-PSGD against lists in float64, and what meeting keeps."""

from functools import cache

import jax
import numpy as np
import pytest

from optdyn.methods.workers import ad_psgd, peers
from tests.methods import workers
from tests.methods.nodes import RATE, START, STEPS, P, flattened, tree
from tests.methods.workers import CLOSE, events_of, line_of, ran, reference

MANY = 4  # workers: on fewer a ring is complete
method = cache(lambda: workers.made(ad_psgd, MANY))


@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_every_update_equals_the_reference(graph):
    line = line_of("ad_psgd", MANY, **{"method.graph": graph})

    def arrival(now, i, t, step):
        j = line.plan.numbers["peer"][t]
        way = step()  # at what it had read, whatever others made of it since
        now.x[j] = met = (now.x[i] + now.x[j]) / 2
        now.x[i] = now.read[i] = met + way
        now.shown = np.mean(now.x, axis=0)

    states, info = ran(method(), events_of(line))
    x, shown = reference(line, arrival)
    np.testing.assert_allclose(flattened(states.workers), x, **CLOSE)
    means = jax.vmap(lambda state: state.params)(states)
    np.testing.assert_allclose(flattened(means), shown, **CLOSE)
    assert (info["sent_bytes"] == 2 * 4 * P).all()
    assert line.staleness.max() >= 3


def test_meeting_keeps_the_mean_and_brings_workers_together():
    """At rate 0, workers anywhere."""
    table = np.random.default_rng(3).normal(size=(MANY, P))
    start = method().init(tree(START))._replace(workers=tree(np.float32(table)))
    states, _ = ran(method(), events_of(line_of("ad_psgd", MANY), rate=0.0), state=start)
    means = flattened(states.workers).mean(axis=1)
    # Numbers of about one, an ulp (1e-7) in each of 32 meetings.
    np.testing.assert_allclose(means, np.tile(table.mean(0), (STEPS, 1)), rtol=0, atol=5e-6)
    spread = np.ptp(flattened(states.workers), axis=1).max(axis=1)
    assert (np.diff(spread) <= 0).all() and spread[-1] < 0.05 * spread[0]


def test_a_ring_meets_neighbours_and_a_complete_graph_all_others():
    worker = np.random.default_rng(1).integers(0, 5, 5000)
    for graph, ways in (("ring", {1, 4}), ("complete", {1, 2, 3, 4})):
        met = peers(worker, 5, graph, np.random.default_rng(2))
        away = (met - worker) % 5
        assert set(away) == ways
        # Counts of 5000 draws: binomial, of a deviation of 35 at most; five of them.
        counts = np.bincount(away)[sorted(ways)]
        assert np.abs(counts - 5000 / len(ways)).max() < 175
        shorter = peers(worker[:99], 5, graph, np.random.default_rng(2))
        np.testing.assert_array_equal(shorter, met[:99])


def test_alone_a_worker_meets_itself_and_sends_nothing():
    line = line_of("ad_psgd", 1)
    assert not line.plan.numbers["peer"].any()
    _, info = ran(workers.made(ad_psgd, 1), events_of(line, RATE))
    assert not info["sent_bytes"].any()
