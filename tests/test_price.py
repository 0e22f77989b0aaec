"""`optdyn price`: the trainer's own seconds, closed forms, and the table that it prints."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from optdyn import price, strategies, trainer
from optdyn.config import usual
from optdyn.experiment import Cluster, Data, Model
from optdyn.launch import price as command
from optdyn.values import ConfigError

STEP, SIZE, NODES = 0.5, 124e6, 64
FIXED = Cluster(nodes=NODES, service="constant")


def experiment(name, cluster=FIXED, period=0):
    config = price.step_of(usual().with_(cluster=cluster), STEP)
    return price.with_method(config, name, period)


def test_seconds_are_those_of_a_run(tmp_path):
    """The very timeline that a run has, of groups, nodes, workers and shares."""
    cluster = Cluster(nodes=4, service="lognormal", variation=0.3, bandwidth=1e6, latency=1e-3)
    model, data = Model("mlp", hidden=(8,)), Data(train_examples=400, train_evaluated=10)
    small = usual().with_(model=model, data=data, cluster=cluster, batch_size=16)
    shapes = price.of_model(small)
    names = ("sync", "asynchronous", "buffered", "diloco", "gossip", "elastic", "ad_psgd")
    for name in names:
        config = price.with_method(small, name)
        steps = max(price.STEPS, 8 * price.PERIODS) * strategies.groups_of(config)
        run = trainer.prepare(config.with_(steps=steps))
        found = price.price(config, shapes)
        assert found.seconds == float(run.timeline.seconds[-1]) / steps
        assert found.staleness == pytest.approx(float(run.timeline.staleness.mean()))


def test_a_ring_of_equal_workers_has_a_closed_form():
    """An update takes a step and 2 (n - 1) messages of an n-th of the parameters, in a row."""
    shapes = price.of_parameters(SIZE)
    for gigabits in (0.1, 10):
        exchange = 2 * (NODES - 1) / NODES * shapes.bytes / (gigabits * price.GIGABIT)
        for name, period in (("sync", 1), ("model_averaging", 1), ("diloco", 32)):
            config = experiment(name, FIXED.with_(bandwidth=gigabits * price.GIGABIT), period)
            found = price.price(config, shapes)
            assert found.seconds == pytest.approx(STEP + exchange / period, rel=1e-9)
            assert found.computing == pytest.approx(STEP / found.seconds, rel=1e-9)
            assert found.waiting == pytest.approx(0, abs=1e-9)
            assert found.sent_bytes == pytest.approx(shapes.bytes / period, rel=1e-9)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_the_bandwidth_that_is_needed_is_the_closed_forms(share):
    shapes = price.of_parameters(SIZE)
    found = price.needed(experiment("sync"), shapes, share)
    bytes_a_second = 2 * (NODES - 1) / NODES * shapes.bytes / (STEP * (1 / share - 1))
    assert found == pytest.approx(bytes_a_second / price.GIGABIT, rel=price.RATIO - 1)


def test_stragglers_bound_what_a_network_can_do():
    """Synchronous workers of log-normal times wait for one another, asynchronous ones do not."""
    drawn = FIXED.with_(service="lognormal", variation=0.3)
    shapes = price.of_parameters(SIZE)
    assert price.needed(experiment("sync", drawn), shapes, 0.9) == math.inf
    assert price.needed(experiment("asynchronous", drawn), shapes, 0.9) < 1e3
    free = price.price(experiment("asynchronous", drawn), shapes)
    assert free.waiting < 0.02 and abs(free.staleness - (NODES - 1)) < 1
    # E max of 64 log-normal times of 30 %, by their quantiles: the mean of a sample of 20,000.
    sigma = math.sqrt(math.log(1 + 0.3**2))
    draws = np.exp(sigma * np.random.default_rng(0).normal(size=(20_000, NODES)) - sigma**2 / 2)
    waits = price.price(experiment("sync", drawn), shapes)
    assert 1 - waits.waiting == pytest.approx(1 / draws.max(axis=1).mean(), rel=0.01)


def test_a_worker_has_as_many_examples_by_every_method():
    config = price.step_of(usual().with_(cluster=replace(FIXED, devices_per_node=4, workers=0)), 1)
    for name in strategies.built_in():
        one = price.with_method(config, name)
        workers = 256 // strategies.groups_of(one) // one.strategy.methods.get("arrivals", 1)
        if one.strategy.methods.mix:
            workers = 256
        assert one.batch_size == workers


def test_the_size_of_a_model_is_not_the_memory_of_its_price():
    """Shapes have no arrays: 124 billion parameters cost what 124 million do."""
    shapes = price.of_parameters(124e9)
    assert shapes.bytes == pytest.approx(4 * 124e9, rel=1e-6)
    assert price.price(experiment("diloco", period=8), shapes).computing > 0


def test_the_command_prints_a_table_and_says_what_has_no_price(capsys, tmp_path, monkeypatch):
    rows = list(
        command.rows(experiment("sync"), price.of_parameters(1e6), ["sync", "local"], [1.0])
    )
    lines = list(command.table(rows, [1.0]))
    assert "gradients of the whole model" in lines[-1] and len(lines) == 4
    assert json.loads(json.dumps(rows))  # plain values
    with pytest.raises(ConfigError, match="whole model"):
        price.price(experiment("local"), price.of_parameters(1e6))
