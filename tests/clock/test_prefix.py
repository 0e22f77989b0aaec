"""A longer run begins with the shorter one, or is known not to."""

from itertools import pairwise

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn import methods
from optdyn.experiment import Config
from optdyn.train import program

EPOCH, BATCH, WORKERS = 7, 24, 4
GROUPS = {"method.name": "asynchronous", "method.groups": 4}
NODES = {"cluster.nodes": 2, "cluster.devices_per_node": 2}
LAWS = ("constant", "exponential", "lognormal", "gamma")
DRAWN = {
    **{
        f"{name}, {law}": {**values, "cluster.service.name": law}
        for name, values in {
            "sync": {},
            "groups": GROUPS,
            "stale synchronous": {**GROUPS, "method.staleness_bound": 1},
            "ringmaster": {**GROUPS, "method.name": "ringmaster", "method.delay_bound": 2},
        }.items()
        for law in LAWS
    },
    "geometric": {**GROUPS, "cluster.service.name": "geometric"},
    "unlike speeds": {**GROUPS, "cluster.speeds": (1.0, 2.0, 3.0, 9.0)},
    "server": {
        **GROUPS,
        "cluster.pieces.conv_compute": 0.1,
        "cluster.pieces.conv_network": 0.01,
        "cluster.pieces.fc": 0.03,
    },
    "dynamic_batch": {"method.name": "dynamic_batch", "cluster.speeds": (1.0, 2.0, 3.0, 9.0)},
    "disturbed": {"method.name": "dynamic_batch", "cluster.disturbance_probability": 0.4},
    "pipeline": {"method.name": "local", "cluster.devices_per_node": 1, "cluster.nodes": 2},
    "filled pipeline": {
        "method.name": "local",
        "method.variant": "backprop",
        "cluster.nodes": 2,
        "cluster.devices_per_node": 1,
    },
    "local groups": {"method.name": "asynchronous+local", "method.asynchronous.groups": 4},
}
# What ends a run in its own way: the last exchange of nodes, and epochs that wait for it.
ENDING = {
    "daso": {**NODES, "method.name": "daso", "method.warmup_epochs": 1},
    "daso+dynamic_batch": {
        **NODES,
        "method.name": "daso+dynamic_batch",
        "method.daso.warmup_epochs": 1,
    },
    "model_averaging": {**NODES, "method.name": "model_averaging", "method.period": 8},
    "fragments": {
        **NODES,
        "method.name": "model_averaging",
        "method.period": 6,
        "method.fragments": 2,
        "method.delay": 2,
    },
    "model_averaging+asynchronous": {
        **NODES,
        "method.name": "model_averaging+asynchronous",
        "method.asynchronous.groups": 2,
    },
}


def config_of(values, steps, seed=0):
    config = Config(batch_size=BATCH, steps=steps, seed=seed)
    base = {"cluster.devices_per_node": WORKERS, "model.hidden": (5, 5, 5)}
    return config.with_({**base, **values})


@pytest.fixture(scope="module")
def network():
    """What clocks ask for that reckon with operations."""

    def of(config):
        whole = program.problem_of(config, 5)
        images = {"image": np.zeros((1, 3, 3, 1), np.uint8), "label": np.zeros(1, np.int32)}
        params = jax.eval_shape(whole.init, jax.random.key(0), images)
        return methods.ModelInfo(whole, params, images)

    return of


def line_of(config, network, known=()):
    """As far as the log of the epochs that are `known` decides it."""
    return config.timeline(
        steps_per_epoch=EPOCH,
        update_bytes=1000,
        network=network(config),
        epochs=[{"train_loss": loss} for loss in known],
    )


def assert_begins(longer, shorter, steps):
    """All arrays, to the bit."""
    ours, theirs = (jax.tree.leaves(line._replace(slots=0)) for line in (longer, shorter))
    for a, b in zip(ours, theirs, strict=True):
        if np.ndim(a):
            np.testing.assert_array_equal(np.asarray(a)[:steps], np.asarray(b)[:steps])


@pytest.mark.parametrize("name", DRAWN)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_longer_runs_begin_with_shorter_ones(network, name, one, other, seed):
    short, long = sorted((one, other))
    lines = [line_of(config_of(DRAWN[name], n, seed), network) for n in (short, long)]
    assert len(lines[0].seconds) == short and len(lines[1].seconds) == long
    assert_begins(*reversed(lines), short)
    assert lines[0].slots == lines[1].slots


def test_also_beyond_what_is_drawn_at_a_time(network, monkeypatch):
    monkeypatch.setattr("optdyn.clock.arrivals.BLOCK", 16)
    for name in ("groups, exponential", "stale synchronous, lognormal"):
        lines = [line_of(config_of(DRAWN[name], n), network) for n in (20, 150, 151, 400)]
        for short, long in pairwise(lines):
            assert_begins(long, short, len(short.seconds))


def test_a_recorded_trace_is_read_from_its_beginning(network, tmp_path):
    rng = np.random.default_rng(0)
    workers = np.concatenate([np.arange(4), rng.integers(0, 4, 96)])
    table = pd.DataFrame({"worker": workers, "seconds": np.sort(rng.uniform(0, 9, 100))})
    table.to_csv(tmp_path / "trace.csv", index=False)
    values = {
        **GROUPS,
        "cluster.service.name": "trace",
        "cluster.service.path": str(tmp_path / "trace.csv"),
    }
    lines = [line_of(config_of(values, n), network) for n in (30, 100)]
    assert_begins(*reversed(lines), 30)


@pytest.mark.parametrize("name", ENDING)
def test_what_ends_a_run_in_its_own_way_is_alike_before_that(network, name):
    """And not to the end, so that a finished one is rightly refused more steps."""
    losses = [0.9**epoch for epoch in range(9)]
    lines = [line_of(config_of(ENDING[name], n), network, losses) for n in (60, 120)]
    before = 7 if "daso" in name else 50  # warm-up; beyond it daso cools down to the end
    assert_begins(*reversed(lines), before)
    with pytest.raises(AssertionError):
        assert_begins(*reversed(lines), min(60, len(lines[0].seconds)))
