"""Workers with parameters of their own: what methods share, laws and seconds."""

from functools import cache

import jax
import numpy as np
import pytest

from optdyn import methods
from optdyn.methods.async_local_sgd import async_local_sgd
from optdyn.methods.compose import SKETCH, sketch
from optdyn.methods.workers import ElasticState, ad_psgd, elastic, peers
from tests.methods import test_battery as battery
from tests.methods import workers
from tests.methods.nodes import BATCHES, RATE, START, STEPS, P, flattened, loss, tree
from tests.methods.workers import CLOSE, WORKERS, events_of, line_of, ran

MAKERS = {"elastic": elastic, "async_local_sgd": async_local_sgd, "ad_psgd": ad_psgd}
sketched = jax.jit(jax.vmap(lambda way: sketch(way, way, SKETCH)))
gradients = jax.jit(jax.vmap(jax.grad(loss)))


def before(start, states):
    """The states that updates began with."""
    return jax.tree.map(lambda one, all: np.concatenate([one[None], all[:-1]]), start, states)


@pytest.mark.parametrize("name", MAKERS)
def test_the_meter_says_what_is_evaluated(name):
    """d_t of the center or the mean, g_t at what its worker had read, G_t at what is evaluated."""
    line = line_of(name, **{"method.period": 2})
    second = {key: leaf[::-1] for key, leaf in BATCHES.items()}
    metered = workers.made(MAKERS[name], meter=True)
    states, info = ran(metered, events_of(line), (BATCHES, second))
    started = before(metered.init(tree(START)), states)
    at, after = (jax.vmap(lambda state: state.params)(each) for each in (started, states))
    table = started.read if name == "ad_psgd" else started.workers
    read = jax.tree.map(lambda leaf: leaf[np.arange(len(line.worker)), line.worker], table)
    expected = {
        "displacement": jax.tree.map(np.subtract, after, at),
        "raw_step": jax.tree.map(np.negative, gradients(read, BATCHES)),
        "gradient": gradients(at, second),
    }
    for key, each in expected.items():
        np.testing.assert_allclose(info[key], sketched(each), **CLOSE, err_msg=key)
        assert np.abs(info[key]).max() > 1e-2
    # Where it exchanges a worker sends its 14 numbers and gets as many.
    exchanges = methods.load(name)().exchanged(line.plan)
    assert exchanges.sum() > 0 and (name == "ad_psgd") == exchanges.all()
    np.testing.assert_array_equal(info["sent_bytes"], exchanges * 2 * 4 * P)
    # The run is what it is without a meter.
    plain, _ = ran(workers.made(MAKERS[name]), events_of(line))
    unmetered = jax.vmap(lambda state: state.params)(plain)
    np.testing.assert_allclose(flattened(after), flattened(unmetered), **CLOSE)


def test_exchanges_in_nodes_and_between_them_are_counted():
    run = battery.make_run("model_averaging+elastic")
    state, info = battery.step(run.rule, run.state, *run.first)
    assert run.first[0].plan.inner.exchange.all() and run.first[0].plan.send.all()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(run.params))
    assert info["sent_bytes"] == 3 * size  # to the center and back; to the other node
    assert jax.tree.leaves(state.state.inner.workers)[0].shape[:2] == (2, 2)


def test_a_worker_is_no_group_of_shared_parameters():
    """No theory of stale gradients, replicas or plan takes it for one."""
    for name in MAKERS:
        alone, in_nodes = (methods.known_stack(one) for one in (name, f"daso+{name}"))
        assert alone.grouped and not alone.simple
        assert not alone.shared and not in_nodes.shared
    assert (
        methods.known_stack("asynchronous+local").shared
        and methods.known_stack("asynchronous").simple
    )


VALUES = {"method.period": 3, "method.elasticity": 1.2}
RNG = np.random.default_rng(3)
MANY = 4  # workers: on fewer a ring is complete
pulling = cache(lambda: workers.made(elastic))
meeting = cache(lambda: workers.made(ad_psgd, MANY))


def test_an_exchange_keeps_the_sum_of_all_and_the_pulling():
    """Where no gradient moves them: at rate 0, workers and center anywhere."""
    line = line_of("elastic", **VALUES | {"method.period": 1})
    start = pulling().init(tree(START))
    table, center = RNG.normal(size=(WORKERS, P)), RNG.normal(size=P)
    start = ElasticState(tree(np.float32(center)), tree(np.float32(table)), start.opt_state)
    states, _ = ran(pulling(), events_of(line, rate=0.0), state=start)
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
    start = pulling().init(tree(START))
    start = ElasticState(tree(np.float32(center)), tree(np.float32(table)), start.opt_state)
    events, pulls = events_of(line, rate=0.0), np.zeros(P)
    for i in range(WORKERS):
        t = np.flatnonzero(line.worker == i)[0]
        first = jax.tree.map(lambda leaf, t=t: leaf[t], (events, BATCHES))
        after, _ = pulling().step(start, *first)
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


def test_meeting_keeps_the_mean_and_brings_workers_together():
    """At rate 0, workers anywhere."""
    table = np.random.default_rng(3).normal(size=(MANY, P))
    start = meeting().init(tree(START))._replace(workers=tree(np.float32(table)))
    states, _ = ran(meeting(), events_of(line_of("ad_psgd", MANY), rate=0.0), state=start)
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
