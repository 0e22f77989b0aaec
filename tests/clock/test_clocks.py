"""The battery of clocks: each against the one by hand, and what all of them owe."""

from functools import cache
from itertools import pairwise

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.base.errors import ConfigError
from optdyn.base.trees import bytes_of
from optdyn.clock.service import Constant, Exponential, Gamma, LogNormal
from optdyn.clock.timeline import Arrival, TimelineError, entries_at
from optdyn.train import program
from optdyn.train.checks import check
from tests.clock import by_hand
from tests.clock.lines import arrays, begins_with, versions_read
from tests.clock.recorded import config_of, line_of, network_of, record, replayed
from tests.methods import test_battery as battery

FOUR = {"nodes": 4, "devices_per_node": 1, "speeds": ()}
TWICE = FOUR | {"devices_per_node": 2, "local_latency": 1e-3, "local_bandwidth": 2e6}
SLOW = {"latency": 0.01, "bandwidth": 1e5}
FAR = tuple(tuple(0.01 * abs(i - 2 * j) for j in range(4)) for i in range(4))
WIDE = ((0, 1e5, 9e4, 8e4), (7e4, 0, 1e3, 2e4), (5e4, 4e4, 0, 0), (3e4, 2e5, 6e4, 0))
CLUSTERS = {
    "free": FOUR | {"speeds": (1.0, 2.0, 3.0, 6.0)},
    "ring": TWICE | SLOW | {"service": Exponential()},
    "tree": FOUR | SLOW | {"nodes": 6, "collective": "tree", "service": Gamma(0.5)},
    "server": TWICE | SLOW | {"collective": "server", "service": LogNormal(2.0)},
    "overlapping": FOUR
    | {"latency": 1e-3, "bandwidth": 1e6, "overlap": 0.5, "service": Gamma(2.0)},
    "unlike links": FOUR | {"latencies": FAR, "bandwidth": 1e5, "speeds": (1.0, 2.0, 3.0, 4.0)},
    "unlike widths": FOUR | {"bandwidths": WIDE, "collective": "tree"},
    "regions": TWICE | SLOW | {"regions": 3, "bandwidth_variation": 1.0},
    "hours": TWICE | SLOW | {"regions": 2, "diurnal": 0.6, "day": 0.3},
    "volunteers": FOUR
    | {"presence": 0.1, "absence": 0.07, "latency": 5e-3, "service": Exponential()},
    "one link": FOUR | {"server_bandwidth": 1e5, "service": Exponential()},
    "divided": FOUR | SLOW | {"split": "proportional", "speeds": (1.0, 2.0, 4.0, 5.0)},
    "disturbed": FOUR
    | {"disturbances": ((1, 0, 1, 3.0), (1, 1, 3, 2.0)), "disturbance_probability": 0.3}
    | {"disturbance_seconds": (0.01, 0.05)},
    "stages": TWICE | SLOW | {"nodes": 2},
    "unlike stages": FOUR | {"nodes": 2, "latencies": ((0.0, 0.02), (0.01, 0.0))},
}
BOUNDED = {"method.staleness_bound": 1}
DROPPING = {"method.groups": 2, "method.delay_bound": 1}
PIECES = {"cluster.pieces.conv_compute": 0.03, "cluster.pieces.conv_network": 0.005}
PIECES |= {"cluster.pieces.fc": 0.004, "cluster.pieces.fc_network": 0.002}
MERGED = PIECES | {"method.fresh": ("classifier",)}
TOP_K = {"method.compression": "top_k", "method.compression_share": 0.3}
CASES = {
    "bounded": ("asynchronous", BOUNDED),
    "bounded+local": ("asynchronous+local", BOUNDED),
    "bounded in nodes": ("daso+asynchronous", BOUNDED),
    "merged server": ("asynchronous", MERGED),
    "unmerged server": ("asynchronous", PIECES),
    "merged, synchronous": ("sync", MERGED),
    "compressed groups": ("asynchronous", TOP_K),
    **{
        waiting: ("buffered", {"method.waiting": waiting, "method.groups": 4, "method.arrivals": 2})
        for waiting in ("k_sync", "k_batch_sync", "k_async")
    },
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
    "all alike": ("async_local_sgd", {"method.steps_by_speed": False, "method.period": 3}),
    "dropped messages": (
        "decoupled",
        {"method.period": 2, "method.quorum": 1, "cluster.latency": 0.03},
    ),
    "streaming": (
        "diloco",
        {"method.fragments": 3, "method.period": 6, "method.delay": 1},
    ),
    "signs": ("diloco", {"method.compression": "sign", "method.fragments": 2}),
    "averaged state": ("slowmo", {"method.inner_state": "averaged"}),
    "half the bytes": (
        "daso",
        {"method.blocking_dtype": "bfloat16", "method.max_batches": 3, "method.wait": 2},
    ),
    "volunteers": ("model_averaging", {"cluster.presence": 0.2, "cluster.absence": 0.1}),
    "gossiping volunteers": ("gossip", {"cluster.presence": 0.2, "cluster.absence": 0.1}),
    "push": ("gossip", {"method.graph": "push"}),
    "after an update": ("gossip", {"method.gossip_order": "adapt", "method.graph": "random"}),
    "top_k of neighbours": (
        "gossip",
        TOP_K | {"method.gossip_order": "adapt", "method.graph": "ring"},
    ),
    "a graph of meetings": ("diloco+gossip", {"method.diloco.period": 3}),
    "filled": ("local", {"method.variant": "backprop", "method.micro_batches": 3}),
    "2bw": ("stale_pipeline", {"method.pipeline": "2bw", "method.micro_batches": 4}),
}
FURTHER = ("elastic+local", "async_local_sgd+local", "buffered+local", "diloco+async_local_sgd")
FURTHER += ("slowmo+elastic", "daso+buffered", "gossip+dynamic_batch")
CASES["gossip+ad_psgd"] = ("gossip+ad_psgd", {"method.graph": "ring"})
CASES |= {name: (name, {}) for name in (*battery.EVERY, *FURTHER)}
HERE = [case for case in CASES if ":" not in case]  # the clocks of others' files are theirs


@cache
def of(case, where):
    """The config of a case on such a cluster, whose keys go before its own; None if refused."""
    name, values = CASES[case]
    values = {k: v for k, v in values.items() if "cluster" not in k or "pieces" in k}
    run = {"batch_size": 48, "steps": 25, "cluster.speeds": ()}
    config = battery.config_of(name, run | values)
    own = {"service": Constant(), "nodes": 4} | CLUSTERS[where]
    config = config.with_(cluster=config.cluster.with_(**own))
    try:
        check(config)
    except ConfigError:
        return None
    return config


def places(case):
    return [where for where in CLUSTERS if of(case, where)]


def timeline(config):
    """The timeline of a config, its model and the bytes of an update."""
    model = network_of(program.problem_of(config, battery.CLASSES))
    size = bytes_of(model.params)
    return line_of(config, size), model, size


@pytest.mark.parametrize("case", HERE)
def test_it_is_the_clock_by_hand(case):
    assert len(places(case)) >= (1 if "filled" in case else 2)
    for where in places(case):
        config = of(case, where)
        line, model, size = timeline(config)
        seconds, groups, late = by_hand.clock(config, model, line, size)
        # Sums of some tens of float64 numbers in another order.
        np.testing.assert_allclose(line.seconds, seconds, rtol=1e-10, err_msg=where)
        if groups is None:
            continue
        workers = getattr(line.plan, "worker", line.worker)
        np.testing.assert_array_equal(np.reshape(workers, groups.shape), groups, where)
        if not {"ringleader", "decoupled"} & {config.method.name}:  # tests/methods has theirs
            np.testing.assert_array_equal(np.reshape(line.staleness, late.shape), late, where)


DRAWN = {"service"}  # clusters that have a law of their own, by which times are drawn
ENDS = 12  # updates at the end, where all nodes meet and learners send no more


@pytest.mark.parametrize("case", HERE)
@given(st.data())
@settings(max_examples=3)
def test_what_all_clocks_owe(case, data):
    """Order, the staleness of what is in the slots, and a longer run that begins likewise."""
    drawn = [where for where in places(case) if DRAWN & CLUSTERS[where].keys()]
    where = data.draw(st.sampled_from(drawn or places(case)))
    seed, steps = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(1, 40))
    config = of(case, where).with_(seed=seed)
    short, long = (timeline(config.with_(steps=n))[0] for n in (steps, steps + 30))
    late = short.staleness.reshape(steps, -1)
    assert len(short.seconds) == steps and late.dtype.kind == "i"
    assert np.isfinite(short.seconds).all() and np.diff(short.seconds, prepend=0.0).min() >= 0
    # The first meeting of eager messages has nothing of a meeting before.
    assert late.min() >= 0 and (case == "eager" or (late <= np.arange(steps)[:, None]).all())
    plan = short.plan
    if isinstance(plan, Arrival) and plan.write.ndim == 1:
        assert max(plan.read.max(), plan.write.max()) < short.slots
        for read, own in zip(plan.read.reshape(steps, -1).T, late.T, strict=True):
            held = versions_read(read, plan.write, short.slots)
            np.testing.assert_array_equal(held, np.arange(steps) - own)
    if config.methods.mix or config.method.name == "decoupled":
        steps = max(steps - ENDS, 0)
        short = entries_at(arrays(short), slice(steps))
    elif not config.methods.stages:
        assert short.slots == long.slots
    begins_with(long, short)


LONGER = ("seconds_per_example", "latency", "local_latency", "latencies", "day", "presence")
LONGER += ("absence", "disturbance_seconds")
NARROWER = ("bandwidth", "local_bandwidth", "bandwidths", "server_bandwidth")


def times(value, factor):
    if isinstance(value, tuple):
        return tuple(times(one, factor) for one in value)
    return value * factor


@pytest.mark.parametrize("case", [case for case in HERE if "server" not in case])
def test_where_all_takes_four_times_as_long_so_does_a_run(case):
    """To the bit, as no float is rounded otherwise; but light is not slower."""
    for where in places(case):
        config = of(case, where)
        cluster = config.cluster
        if cluster.regions or cluster.pieces.conv_compute:
            continue
        values = {key: times(getattr(cluster, key), 4.0) for key in LONGER}
        values |= {key: times(getattr(cluster, key), 0.25) for key in NARROWER}
        one, four = (
            timeline(own)[0] for own in (config, config.with_(cluster=cluster.with_(**values)))
        )
        np.testing.assert_array_equal(four.seconds, 4 * one.seconds, where)
        np.testing.assert_array_equal(four.staleness, one.staleness, where)


@pytest.mark.parametrize("law", ["exponential", "lognormal"])
def test_also_beyond_what_is_drawn_at_a_time(law, monkeypatch):
    monkeypatch.setattr("optdyn.clock.arrivals.BLOCK", 16)
    for case in ("asynchronous", "bounded"):
        values = {"cluster.service.name": law}
        lines = [
            line_of(config_of(*CASES[case][:1], **CASES[case][1] | values, steps=n))
            for n in (20, 150, 151, 400)
        ]
        for short, long in pairwise(lines):
            begins_with(long, short)


@pytest.mark.parametrize("case", [*CASES, "geometric"])
def test_a_trace_gives_back_its_own_timeline(tmp_path, case):
    """So a replay has the floats of its run: it is the same program, given the same."""
    name, values = CASES.get(case, ("asynchronous", {"cluster.service.name": "geometric"}))
    if "pieces" in str(values):
        pytest.skip("a server's queue is in no trace")
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
        (
            "diloco",
            {"method.period": 4},
            r"update 2 has control\.send.* = 1: must be 0 by the config",
        ),
        ("diloco", {"method.outer_momentum": 0.5}, r"control\.outer_momentum = 0\.9: must be 0\.5"),
        ("elastic", {"method.period": 3}, r"control\.exchange = 1: must be 0 by the config"),
        ("ad_psgd", {"seed": 7}, r"control\.peer = . and by|control\.peer = "),
        ("diloco", {"method.name": "slowmo"}, r"control\.outer_learning_rate is of another"),
        ("daso", {"method.name": "gossip"}, r"control\.send is of another method"),
        ("dynamic_batch", {"batch_size": 25}, r"control\.shares = .*must be 25 in sum"),
        ("asynchronous+local", {"model.hidden": (7,)}, r"needs the columns control\.worker\.0 to"),
        ("ringmaster", {"method.delay_bound": 1}, r"gradient of worker . is too old to apply"),
        ("ringmaster", {"method.delay_bound": 3}, r"gradient of worker . is not too old to apply"),
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
