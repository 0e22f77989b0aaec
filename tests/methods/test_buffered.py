"""Updates of several arrivals, against a list of all past versions in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn import core, optimizers
from optdyn.methods import Event
from optdyn.methods.buffered import buffered
from optdyn.train import trainer
from optdyn.train.checks import check
from tests.methods import composed
from tests.methods.test_asynchronous import CONDITION, DIMENSION, QUADRATIC, H

CHECKPOINT_EVERY = 20

STEPS, K, BATCH, RATE, MU = 60, 3, 6, 0.05, 0.4
OPTIMA = np.random.default_rng(0).normal(0, 0.5, (STEPS, BATCH, DIMENSION)).astype(np.float32)
SGD = optimizers.optimizer("sgd", ("learning_rate", "momentum"))
RUN = {"method.name": "buffered", "cluster.nodes": 4, "method.groups": 4}


def line_of(config, **values):
    values = {f"method.{key}": value for key, value in values.items()}
    chosen = config(RUN | {"steps": STEPS, "batch_size": BATCH} | values)
    check(chosen)
    return chosen.timeline(steps_per_epoch=10, update_bytes=0)


def trained(method, line):
    """(STEPS, DIMENSION) parameters after each update, and losses."""
    hyper = {"learning_rate": np.full(STEPS, RATE, np.float32)}
    hyper["momentum"] = np.full(STEPS, MU, np.float32)
    events = Event(line.plan, hyper, line.staleness)

    def body(state, inputs):
        state, info = method.step(state, inputs[0], {"optimum": inputs[1]})
        return state, (state.params["x"]["x"], info["loss"])

    @jax.jit
    def whole(events, optima):
        start = method.init({"x": {"x": jnp.ones(DIMENSION)}})
        return jax.lax.scan(body, start, (events, optima))[1]

    return jax.device_get(whole(events, OPTIMA))


def made(line, arrivals=K):
    gradient, update = core.full_gradient(QUADRATIC.loss), core.single_optimizer(SGD)
    return trained(buffered(gradient, update, line.slots, arrivals), line)


@pytest.mark.parametrize("waiting", ["k_async", "k_batch_async"])
def test_an_update_is_the_mean_of_gradients_at_what_each_had_read(config, waiting):
    line = line_of(config, arrivals=K, waiting=waiting)
    x, losses = made(line)
    versions, v = [np.ones(DIMENSION)], np.zeros(DIMENSION)
    for t, xi in enumerate(OPTIMA.astype(np.float64)):
        read = np.array([versions[t - tau] for tau in line.staleness[t]])
        own = [xi[j::K] for j in range(K)]
        g = np.mean([H * (x - each.mean(0)) for x, each in zip(read, own, strict=True)], axis=0)
        each = [H @ ((x - its) ** 2).T for x, its in zip(read, own, strict=True)]
        np.testing.assert_allclose(losses[t], np.mean(each) / 2, rtol=1e-5)  # float32
        v = g + MU * v
        versions.append(versions[t] - RATE * v)
    # Float32 against float64 over 60 updates of numbers about 1, of condition number 10.
    np.testing.assert_allclose(x, versions[1:], atol=1e-5)
    assert CONDITION == 10 and line.staleness.max() > 1


@pytest.mark.parametrize(
    ("waiting", "arrivals", "groups"), [("k_sync", 3, 4), ("k_batch_sync", 3, 2), ("k_async", 2, 2)]
)
def test_who_waits_for_all_is_synchronous(config, waiting, arrivals, groups):
    """And where some are dropped it is synchronous SGD of those that are not."""
    line = line_of(config, arrivals=arrivals, groups=groups, waiting=waiting)
    sync = trained(composed.sync(QUADRATIC.loss, SGD), line)
    # The batch's gradient as a mean of means: float32 in another order.
    found = made(line, arrivals)
    np.testing.assert_allclose(found[0], sync[0], atol=1e-5)
    np.testing.assert_allclose(found[1], sync[1], rtol=1e-5)


def test_one_arrival_is_asynchronous_to_the_bit(config, tmp_path):
    one = trainer.train(config(RUN), tmp_path / "one")
    other = trainer.train(config(RUN | {"method.name": "asynchronous"}), tmp_path / "other")
    for key in ("parameters_crc32", "simulated_seconds", "staleness_histogram"):
        assert one[key] == other[key]


def test_a_run_resumes_and_the_meter_reads_it(config, tmp_path):
    """With late gradients compensated, by the means of what was read and of how late it is."""
    values = RUN | {"method.arrivals": 2, "method.waiting": "k_async", "steps": 120}
    values |= {"optimizer.chain": ("delay_compensation", "staleness_rate")}
    values |= {"probes.momentum": True, "probes.window": 60, "probes.every": 60}
    whole = trainer.train(config(values), tmp_path / "whole")
    trainer.train(config(values | {"steps": 60}), tmp_path / "parts")
    parts = trainer.train(config(values), tmp_path / "parts")
    assert parts["parameters_crc32"] == whole["parameters_crc32"]
    assert "implicit_momentum" in (tmp_path / "parts" / "metrics.jsonl").read_text()
