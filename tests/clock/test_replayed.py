"""The trace of a run gives back its own timeline, of every method and whatever it decides."""

import jax
import numpy as np
import pytest

from optdyn.clock.timeline import TimelineError
from optdyn.experiment import ConfigError
from tests.clock.lines import arrays
from tests.clock.recorded import config_of, line_of, record, replayed
from tests.methods import test_battery as battery

BOUNDED = {"method.staleness_bound": 1}
DROPPING = {"method.groups": 2, "method.delay_bound": 1}
MORE = {
    "bounded": ("asynchronous", BOUNDED),
    "geometric": ("asynchronous", {"cluster.service.name": "geometric"}),
    "bounded+local": ("asynchronous+local", BOUNDED),
    "bounded in nodes": ("daso+asynchronous", BOUNDED),
    "k_sync": ("buffered", {"method.waiting": "k_sync", "method.arrivals": 2}),
    "k_async in nodes": (
        "diloco+buffered",
        {"method.waiting": "k_async"} | {"method.arrivals": 2},
    ),
    "too old": ("ringmaster", DROPPING | {"method.groups": 4, "method.delay_bound": 2}),
    "too old, local": ("ringmaster+local", DROPPING),
    "too old in nodes": ("daso+ringmaster", DROPPING),
    "too old in nodes, local": ("diloco+ringmaster+local", DROPPING),
    "nothing is too old": ("ringmaster", {"method.delay_bound": 0}),
    "one group": ("ringmaster", {"method.groups": 1}),
    "streaming": (
        "diloco",
        {"method.fragments": 3, "method.period": 6, "method.delay": 1},
    ),
    "volunteers": ("model_averaging", {"cluster.presence": 0.2, "cluster.absence": 0.1}),
    "gossiping volunteers": ("gossip", {"cluster.presence": 0.2, "cluster.absence": 0.1}),
    "push": ("gossip", {"method.graph": "push"}),
    "dropped messages": (
        "decoupled",
        {"method.period": 2, "method.quorum": 1, "cluster.latency": 0.03},
    ),
}
FURTHER = ("elastic+local", "async_local_sgd+local", "buffered+local", "diloco+async_local_sgd")
FURTHER += ("gossip+ad_psgd", "slowmo+elastic", "daso+buffered", "gossip+dynamic_batch")
CASES = MORE | {name: (name, {}) for name in (*battery.EVERY, *FURTHER)}


@pytest.mark.parametrize("case", CASES)
def test_a_trace_gives_back_its_own_timeline(tmp_path, case):
    """So a replay has the floats of its run: it is the same program, given the same."""
    name, values = CASES[case]
    config = config_of(name, **values)
    line = line_of(config)
    record(line, tmp_path / "trace.csv")
    again = line_of(replayed(config, tmp_path / "trace.csv"))
    both = [arrays(each)._replace(seconds=None) for each in (line, again)]
    assert jax.tree.structure(both[0]) == jax.tree.structure(both[1])
    jax.tree.map(np.testing.assert_array_equal, *both)
    for a, b in zip(jax.tree.leaves(both[0]), jax.tree.leaves(both[1]), strict=True):
        assert a.dtype == b.dtype
    assert line.slots == again.slots or case == "geometric"
    # Its seconds are those that were measured: here two pieces of a second each.
    np.testing.assert_allclose(again.seconds, np.arange(1, 41) / 20)


def test_fewer_steps_are_the_first_ones(tmp_path):
    """Also where a message is under way at the end."""
    config = config_of("daso", **{"method.warmup_epochs": 0, "method.wait": 1})
    record(line_of(config), tmp_path / "trace.csv")
    again = replayed(config, tmp_path / "trace.csv")
    whole = line_of(again)
    for steps in range(1, 40):
        first = line_of(again.with_(steps=steps))
        np.testing.assert_array_equal(first.plan.waited, whole.plan.waited[:steps])


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("diloco", {"method.period": 4}, r"update 2 has control\.send.* = 1: must be"),
        ("diloco", {"method.outer_momentum": 0.5}, r"control\.outer_momentum = 0\.9: must"),
        ("elastic", {"method.period": 3}, r"control\.exchange = 1: must be"),
        ("ad_psgd", {"seed": 7}, r"control\.peer = . and by|control\.peer = "),
        ("diloco", {"method.name": "slowmo"}, r"control\.outer_learning_rate is of another"),
        ("daso", {"method.name": "gossip"}, r"control\.send is of another method"),
        ("dynamic_batch", {"batch_size": 25}, r"control\.shares = .*must be 25 in sum"),
        ("asynchronous+local", {"model.hidden": (7,)}, r"needs the columns control\.worker\.0 to"),
        ("ringmaster", {"method.delay_bound": 1}, r"worker . is too old to apply"),
        ("ringmaster", {"method.delay_bound": 3}, r"worker . is not too old to apply"),
        ("ringmaster", {"method.delay_bound": 0}, r"control\.dropped is of another method"),
        ("asynchronous", {"method.name": "ringmaster"}, r"columns control\.dropped\.0 to \.1"),
        ("buffered", {"method.arrivals": 2}, r"needs the columns control\.worker\.0 to \.1"),
    ],
)
def test_a_trace_of_another_run_is_refused(tmp_path, name, other, message):
    groups = {"cluster.nodes": 4, "method.groups": 4} if name == "ad_psgd" else {}
    record(line_of(config_of(name, **groups)), tmp_path / "trace.csv")
    wrong = config_of(other.get("method.name", name), **groups | other)
    wrong = replayed(wrong, tmp_path / "trace.csv")
    with pytest.raises((TimelineError, ConfigError), match=message) as caught:
        line_of(wrong)
    assert "\n" not in str(caught.value)
