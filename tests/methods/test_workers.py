"""What methods whose workers have parameters of their own share."""

import jax
import numpy as np
import pytest

from optdyn import methods
from optdyn.methods.async_local_sgd import async_local_sgd
from optdyn.methods.compose import SKETCH, sketch
from optdyn.methods.workers import ad_psgd, elastic
from tests.methods import test_battery as battery
from tests.methods import workers
from tests.methods.nodes import BATCHES, START, flattened, loss, tree
from tests.methods.workers import CLOSE, events_of, line_of, ran

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
        alone, in_nodes = (methods.seen(one) for one in (name, f"daso+{name}"))
        assert alone.grouped and not alone.simple
        assert not alone.shared and not in_nodes.shared
    assert methods.seen("asynchronous+local").shared and methods.seen("asynchronous").simple
