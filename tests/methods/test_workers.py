"""What methods whose workers have parameters of their own share."""

import jax
import numpy as np
import pytest

from optdyn import methods
from optdyn.experiment import ConfigError, default
from optdyn.methods.metered import SKETCH, sketch
from optdyn.methods.read.ad_psgd import ad_psgd
from optdyn.methods.read.async_local_sgd import async_local_sgd
from optdyn.methods.read.elastic import elastic
from optdyn.train.checks import check
from tests.methods import test_battery as battery
from tests.methods import workers
from tests.methods.nodes import BATCHES, START, flattened, loss, tree
from tests.methods.workers import CLOSE, events_of, line_of, ran
from tests.values import as_experiment

MAKERS = {"elastic": elastic, "async_local_sgd": async_local_sgd, "ad_psgd": ad_psgd}
sketched = jax.jit(jax.vmap(lambda way: sketch(way, way, SKETCH)))
gradients = jax.jit(jax.vmap(jax.grad(loss)))


def before(start, states):
    """The states that updates began with."""
    return jax.tree.map(lambda one, all: np.concatenate([one[None], all[:-1]]), start, states)


@pytest.mark.parametrize("name", MAKERS)
def test_the_meter_says_what_is_evaluated(name):
    """d_t of the center or the mean, g_t at what its worker had read, G_t at what is evaluated."""
    line = line_of(name, **{"strategy.period": 2})
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


def test_in_nodes_every_node_has_workers_of_its_own():
    """A merge reaches who has just read: at its limit a method is not seen beside that of nodes."""
    alone = battery.ran(battery.make_run("daso"))[1]
    for name in ("async_local_sgd", "ad_psgd"):
        one = battery.ran(battery.make_run(f"daso+{name}", battery.CASES[name].limit))[1]
        battery.close_parameters(one, alone)


def test_exchanges_in_nodes_and_between_them_are_counted():
    run = battery.make_run("model_averaging+elastic")
    state, info = battery.step(run.rule, run.state, *run.first)
    assert run.first[0].choice.inner.exchange.all() and run.first[0].choice.send.all()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(run.params))
    assert info["sent_bytes"] == 3 * size  # to the center and back; to the other node
    assert jax.tree.leaves(state.state.inner.workers)[0].shape[:2] == (2, 2)


def test_a_worker_is_no_group_of_shared_parameters():
    """No theory of stale gradients, replicas or plan takes it for one."""
    for name in MAKERS:
        assert methods.arrives(name) and not methods.is_simple(name)
        assert not methods.is_shared(name) and not methods.is_shared(f"daso+{name}")
    assert methods.is_shared("asynchronous+local") and methods.is_simple("asynchronous")


REFUSED = {
    "strategy.groups = 3: must divide the cluster's 4 workers": {"strategy.groups": 3},
    "strategy.elasticity = 2.0: must be from 0 to": {"strategy.elasticity": 2.0},
    "strategy.momentum_part = 1.5: must be from 0 to 1": {"strategy.momentum_part": 1.5},
    "strategy.momentum_delay = -1: must be at least 1": {"strategy.momentum_delay": -1},
    "strategy.staleness_bound: only of": {"strategy.staleness_bound": 2},
    "cluster.pieces: ": {"cluster.pieces.conv_compute": 1.0},
    "cluster.service = 'geometric': must be one of": {"cluster.service": "geometric"},
    "replicas.count: replicas are recorded": {"replicas.count": 2},
    "strategy.name = 'elastic': must be one of 'sync', 'asynchronous', 'ringmaster' with config."
    "optimizer.name = 'closed_loop', which is told": {"optimizer.name": "closed_loop"},
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_run_is_refused_in_a_line(line):
    config = default()
    own = {"strategy.name": "elastic", "cluster.nodes": 4, "cluster.service": "constant"}
    config.update_from_flattened_dict(own | REFUSED[line])
    with pytest.raises(ConfigError, match=r"^config\." + line.split(":")[0]) as refusal:
        check(as_experiment(config))
    assert line.partition(": ")[2] in str(refusal.value) and "\n" not in str(refusal.value)
