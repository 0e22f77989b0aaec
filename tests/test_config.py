"""The configuration: its defaults run, and what cannot run is refused in one line."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn import setup
from optdyn.clock.network import COLLECTIVES
from optdyn.experiment import ConfigError, Experiment, differences, to_json
from optdyn.problem.models.resnet import NORMS, STEMS
from optdyn.train.checks import check

HUGE = float("inf")
NAN = float("nan")


def changed(values):
    """The default with values at dotted names, of any type, as from a careless file."""
    whole = Experiment().to_dict()
    for name, value in values.items():
        *path, last = name.split(".")
        part = whole
        for key in path:
            part = part[key]
        part[last] = value
    return ConfigDict(whole)


def refusal(config, act=lambda config: check(config)):
    with pytest.raises(ConfigError) as caught:
        act(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_default_can_run_and_is_locked():
    config = Experiment()
    check(config)
    with pytest.raises(AttributeError, match="learning_rat"):
        config = config.with_(
            {
                "optimizer.learning_rat": 0.1,
            }
        )
    with pytest.raises(AttributeError):
        config.nosuch = 1
    config = config.with_(
        {
            "optimizer.name": "adam",
            "optimizer.options.b1": 0.5,
        }
    )
    check(config)


AT_LEAST_ONE = (
    "steps",
    "batch_size",
    "log_every",
    "method.groups",
    "cluster.nodes",
    "cluster.devices_per_node",
    "replicas.block",
    "replicas.subspace",
    "model.dimension",
    "method.max_batches",
    "method.micro_batch",
    "parallel.accumulation",
)
AT_LEAST_ZERO = (
    "checkpoint_every",
    "data.train_examples",
    "data.image_size",
    "optimizer.warmup_steps",
    "optimizer.decay_steps",
    "replicas.count",
    "model.noise",
    "cluster.latency",
    "cluster.service.variation",
    "cluster.bandwidth",
    "cluster.local_latency",
    "cluster.local_bandwidth",
    "method.reset_batches",
    "method.warmup_epochs",
    "method.cooldown_epochs",
    "method.patience",
    "parallel.devices",
    *(f"cluster.pieces.{name}" for name in ("conv_compute", "conv_network", "fc", "fc_network")),
)
BAD = [
    *((name, value) for name in AT_LEAST_ONE for value in (0, -3, "many")),
    *((name, value) for name in AT_LEAST_ZERO for value in (-1, HUGE, NAN, None)),
    *((name, "nosuch") for name in ("model.name", "model.dtype", "model.lowering")),
    *((name, "nosuch") for name in ("method.name", "optimizer.schedule", "cluster.service.name")),
    *(("seed", value) for value in (-1, 2**32, "one")),
    *(("cluster.seconds_per_example", value) for value in (0.0, -1.0, HUGE, NAN)),
    *(("optimizer.decay_rate", value) for value in (0.0, -1.0, HUGE, NAN)),
    *(("optimizer.learning_rate", value) for value in (-0.1, HUGE, NAN, "fast")),
    *(("optimizer.momentum", value) for value in (1.0, -1.0, NAN)),
    *(("optimizer.name", value) for value in ("nosuch", "", "global_norm", "contrib.nosuch")),
    *(("model.condition", value) for value in (0.5, HUGE, NAN)),
    *(("model.hidden", value) for value in ((256, 0), ("wide",), 256)),
    *(("model.channels", value) for value in ((-6,), 6)),
    *(("replicas.matching", value) for value in ((0.5, 1.0), (NAN,), 0.5)),
    *(("cluster.speeds", value) for value in ((1.0, 2.0), (0.0,), (-1.0,), (HUGE,), ("fast",), 3)),
    *(("method.threshold", value) for value in (-0.1, 1.0, NAN)),
    *(("method.smoothing", value) for value in (-0.1, 1.0, NAN)),
    *(("method.wait", value) for value in (-1, 5)),
    ("method.staleness_bound", -2),
    ("method.delay_bound", -1),
    *(("cluster.disturbance_probability", value) for value in (-0.1, 1.1, NAN)),
    *((name, "nosuch") for name in ("method.transfer_dtype", "parallel.api", "cluster.split")),
    ("method.weights", "nosuch"),
    *(("method.reset_wait", value) for value in (-1, 5)),
    *(("cluster.overlap", value) for value in (-0.1, 1.1, NAN)),
    *(("data.augment", value) for value in ("nosuch", "flip_crop", None)),
    ("cluster.pieces", 3),
    ("cluster.pieces.nosuch", 3.0),
    *(("tune.target", value) for value in (HUGE, NAN, "low")),
    *(
        (name, value)
        for name in ("tune.seconds", "tune.epoch_seconds", "tune.probe_seconds")
        for value in (0.0, HUGE)
    ),
    *(("tune.probe_share", value) for value in (0.0, 1.1)),
    *(("tune.momenta", value) for value in ((), (0.0, 1.0), (NAN,), 0.9)),
    *(("tune.learning_rates", value) for value in ((), (0.1, 0.0), (HUGE,), 0.1)),
    ("tune.seeds", 0),
    ("model.lowering", "gemm,nosuch"),
    *(("plan.memory", value) for value in (0, -1, "much")),
    *(("plan.batches", value) for value in ((8, 0), 8, ("many",))),
    *(("plan.efficiency", value) for value in (0.0, 1.5, NAN)),
    *((f"plan.{name}", 0) for name in ("devices", "rounds")),
    *(("plan.noise_scale", value) for value in (-1.0, NAN, "low")),
    ("cluster", 3),
    ("optimizer.options", 3),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value}" for name, value in BAD])
def test_a_bad_value_is_refused_by_name(name, value):
    assert refusal(changed({name: value})).startswith(f"config.{name}")


LOCAL = {"method.name": "local", "model.name": "resmlp", "cluster.service.name": "constant"}
PIECES = {"cluster.pieces.conv_compute": 1.0, "cluster.pieces.fc": 0.1}
BOUND = {"method.name": "asynchronous", "method.staleness_bound": 0}
DROPPING = {"method.name": "ringmaster", "method.delay_bound": 2}
GRID = {"cluster.nodes": 2, "cluster.devices_per_node": 2}
COMBINATIONS = [
    (
        {"method.name": "asynchronous", "method.groups": 3, "cluster.nodes": 4},
        "method.groups",
    ),
    ({"cluster.nodes": 3, "cluster.speeds": (1.0, 2.0)}, "cluster.speeds"),
    ({**LOCAL, "cluster.overlap": 0.5}, "cluster.overlap"),
    ({**PIECES, "cluster.overlap": 0.5}, "cluster.overlap"),
    ({"method.name": "daso", "cluster.nodes": 3}, "batch_size"),
    ({"method.name": "daso", "cluster.service.name": "geometric"}, "cluster.service.name"),
    ({"parallel.devices": 3, "parallel.api": "jit"}, "batch_size"),
    ({"parallel.accumulation": 3}, "batch_size"),
    ({"method.name": "dynamic_batch", "parallel.api": "jit"}, "parallel.api"),
    ({"method.name": "daso", "parallel.api": "pmap", **GRID}, "parallel.api"),
    ({"method.name": "asynchronous", "parallel.devices": 2}, "parallel.devices"),
    ({"method.name": "dynamic_batch", "parallel.accumulation": 2}, "parallel.accumulation"),
    ({"parallel.api": "pmap", "parallel.shard_optimizer": True}, "parallel.shard_optimizer"),
    ({"method.name": "asynchronous+dynamic_batch"}, "method.name"),
    ({"method.name": "local+dynamic_batch"}, "method.name"),
    ({"method.name": "nosuch"}, "method.name"),
    ({"method.name": "daso+nosuch"}, "method.name"),
    ({"method.name": "no_such_file:METHOD"}, "method.name"),
    ({"method.name": "optdyn.methods.mix.daso:daso"}, "method.name"),
    ({"method.name": "daso+asynchronous", **GRID, "method.groups": 4}, "method.groups"),
    ({"method.name": "daso", "replicas.count": 3}, "replicas.count"),
    ({"parallel.api": "jit", "replicas.count": 3}, "replicas.count"),
    ({"data.augment": "flip", "replicas.count": 3}, "data.augment"),
    ({"data.streaming": True, "replicas.count": 3}, "data.streaming"),
    ({"cluster.disturbance_probability": 0.5}, "cluster.disturbance_probability"),
    ({"model.name": "transformer", "model.width": 30}, "model: transformer of width 30"),
    ({"model.name": "resnet", "model.channels": (12,)}, "model: resnet of 12 channels"),
    (
        {"model.name": "cnn", "model.lowering": "winograd"},
        "model: lowering 'winograd' of a convolution 5 x 5",
    ),
    (
        {"model.name": "resnet", "model.lowering": "winograd"},
        "model: lowering 'winograd' of a convolution 3 x 3 with strides 2 x 2",
    ),
    (LOCAL | {"cluster.service.name": "exponential"}, "cluster.service.name"),
    (LOCAL | {"cluster.speeds": (1.0,)}, "cluster.speeds"),
    (LOCAL | {"method.variant": "overlapping", "method.window": 9}, "method: window 9"),
    (LOCAL | {"model.name": "quadratic"}, "method: local parallelism"),
    (LOCAL | {"cluster.nodes": 3}, "cluster.nodes"),
    (LOCAL | {"cluster.nodes": 4, "method.variant": "overlapping"}, "cluster.nodes"),
    (LOCAL | {"cluster.nodes": 4, "method.variant": "chunked"}, "cluster.nodes"),
    (LOCAL | {"cluster.nodes": 2, "method.shared_heads": True}, "method.shared_heads"),
    (LOCAL | {"cluster.devices_per_node": 3}, "batch_size"),
    (LOCAL | {"cluster.nodes": 2, "batch_size": 6, "method.variant": "backprop"}, "batch_size"),
    (LOCAL | {"replicas.count": 3}, "replicas.count"),
    (LOCAL | {"parallel.api": "jit", "cluster.nodes": 2}, "parallel.api"),
    ({"cluster.pieces.fc": 0.1}, "cluster.pieces.conv_compute"),
    (PIECES | {"cluster.nodes": 2, "cluster.speeds": (1.0, 2.0)}, "cluster.speeds"),
    (PIECES | {"method.name": "daso"}, "cluster.pieces"),
    (PIECES | {"method.name": "dynamic_batch"}, "cluster.pieces"),
    (
        PIECES | {"cluster.service.name": "trace", "cluster.service.path": "a.csv"},
        "cluster.service.name",
    ),
    (
        PIECES | {"method.name": "asynchronous", "cluster.service.name": "geometric"},
        "cluster.service.name",
    ),
    ({"cluster.split": "proportional", "method.name": "daso"}, "cluster.split"),
    (LOCAL | {"cluster.split": "proportional"}, "cluster.split"),
    ({"cluster.service.name": "trace"}, "cluster.service.path"),
    ({"cluster.service.name": "measured"}, "cluster.service.name"),
    ({"method.name": "dynamic_batch", "cluster.service.name": "measured"}, "cluster.service.name"),
    (
        {
            "method.name": "dynamic_batch",
            "cluster.service.name": "measured",
            "parallel.api": "shard_map",
            "cluster.speeds": (1.0,),
        },
        "cluster.speeds",
    ),
    ({"cluster.service.name": "geometric"}, "cluster.service.name"),
    ({"method.staleness_bound": 0}, "method.staleness_bound"),
    (BOUND | {"cluster.service.name": "geometric"}, "method.staleness_bound"),
    (BOUND | PIECES, "method.staleness_bound"),
    (BOUND | {"replicas.count": 3}, "method.staleness_bound"),
    (DROPPING | {"replicas.count": 3}, "method.delay_bound"),
    (DROPPING | {"cluster.service.name": "geometric"}, "cluster.service.name"),
    (DROPPING | PIECES, "cluster.pieces"),
    (DROPPING | {"method.fresh": ("classifier",)}, "method.fresh"),
    (DROPPING | {"method.staleness_bound": 1}, "method.staleness_bound"),
    (
        DROPPING | {"method.name": "ringmaster+local", "method.snapshots": "host"},
        "method.snapshots",
    ),
    ({"optimizer.name": "adam", "optimizer.momentum": 0.5}, "optimizer.momentum"),
    ({"optimizer.options": {"b1": 0.5}}, "optimizer.options.b1"),
    ({"optimizer.name": "closed_loop", "method.name": "dynamic_batch"}, "method.name"),
    *(
        (
            {"optimizer.name": "soap", "cluster.nodes": 4, "cluster.devices_per_node": 4} | own,
            "optimizer.name = 'soap': must be another where nodes average their optimizers'",
        )
        for own in (
            {"method.name": "model_averaging", "method.inner_state": "averaged"},
            {"method.name": "des_loc"},
        )
    ),
    (
        {"optimizer.name": "closed_loop", "optimizer.options": {"gamma": -1.0}},
        "optimizer: closed_loop cannot be used (gamma -1.0: must be finite",
    ),
    (
        {"optimizer.name": "closed_loop", "optimizer.options": {"staleness": 0.5}},
        "optimizer: closed_loop cannot be used (staleness 0.5: must be 0 or more",
    ),
    ({"optimizer.options": {"momentum": 0.5}}, "optimizer.options.momentum"),
    ({"optimizer.options": {"learning_rate": 1.0}}, "optimizer.options.learning_rate"),
]


@pytest.mark.parametrize(("values", "name"), COMBINATIONS, ids=[name for _, name in COMBINATIONS])
def test_values_that_do_not_go_together(values, name):
    assert refusal(changed(values)).startswith(f"config.{name}")


GOOD = [
    {"method.name": "asynchronous", "method.groups": 4, "cluster.nodes": 2}
    | {"cluster.devices_per_node": 4, "cluster.service.name": "geometric"},
    {"method.groups": 3},  # not asynchronous: there is one group, whatever this says
    {"cluster.nodes": 3, "cluster.speeds": (1, 0.5, 2)},
    {"cluster.service.name": "trace", "cluster.service.path": "arrivals.csv"},
    BOUND | {"cluster.nodes": 4, "method.groups": 4},
    PIECES | {"cluster.service.name": "constant", "method.fresh": ("classifier",)},
    {"cluster.nodes": 2, "cluster.speeds": (1, 3), "cluster.split": "proportional"},
    {"optimizer.name": "rmsprop", "optimizer.momentum": -0.9, "optimizer.learning_rate": 0},
    {"optimizer.options": {"nesterov": True}},
    {"optimizer.name": "closed_loop", "optimizer.momentum": 0.9}
    | {"optimizer.options": {"gamma": 0.1, "staleness": 3}},
    {
        "checkpoint_every": 0,
        "seed": 2**32 - 1,
        "cluster.service.variation": 0.0,
        "model.hidden": (),
    },
    {"model.lowering": "gemm", "replicas.matching": (-0.5, 0.0)},
    LOCAL | {"cluster.nodes": 8, "cluster.devices_per_node": 4},
    LOCAL | {"cluster.nodes": 4, "method.variant": "chunked", "method.chunks": 8},
    LOCAL | {"method.shared_heads": True, "method.variant": "overlapping"},
    LOCAL | {"parallel.api": "jit"},
    {"method.name": "asynchronous", "parallel.api": "jit"},
    {"method.name": "daso", "parallel.api": "jit", **GRID},
    {"method.name": "daso+dynamic_batch", **GRID, "cluster.speeds": (1, 2, 3, 4)},
    {"method.name": "daso+asynchronous", **GRID, "method.groups": 2},
    {"method.name": "optdyn.methods.mix.daso:METHOD", **GRID},
]


@pytest.mark.parametrize("values", GOOD)
def test_values_that_can_run(values):
    check(changed(values))


def test_groups():
    """Only asynchronous groups arrive by themselves."""
    given = {"method.groups": 3}
    assert changed(given).methods.groups == 1
    given["method.name"] = "asynchronous"
    assert changed(given).methods.groups == 3


def test_unknown_and_missing_keys():
    assert refusal(changed({"optimizer.learning_rat": 0.1})) == (
        "config.optimizer.learning_rat: no such key"
    )
    assert refusal(changed({"nosuch": 1})) == "config.nosuch: no such key"
    config = changed({})
    del config.model.noise
    assert refusal(config).startswith("config.model.noise: missing")


def leaves(tree, prefix=""):
    """Dotted names of all values of a plain config."""
    names = []
    for key, value in tree.items():
        inner = isinstance(value, dict) and value
        names += leaves(value, f"{prefix}{key}.") if inner else [prefix + key]
    return names


@settings(deadline=None)  # a busy machine is not an error
@given(st.floats(), st.floats())
def test_learning_rate_and_momentum_are_any_number_in_range(rate, momentum):
    values = {"optimizer.learning_rate": rate, "optimizer.momentum": momentum}
    sane = all(number == 0 or 1e-30 <= abs(number) <= 1e30 for number in (rate, momentum))
    if sane and rate >= 0 and abs(momentum) < 1:
        check(changed(values))
    else:
        refusal(changed(values))


@settings(deadline=None)
@given(st.sets(st.sampled_from(leaves(Experiment().to_dict()))), st.booleans())
def test_differences_are_the_names_that_differ(names, swap):
    one, other = Experiment().to_dict(), changed(dict.fromkeys(names, "changed")).to_dict()
    if swap:
        one, other = other, one
    found = differences(one, other)
    assert set(found) == names and len(found) == len(names)
    assert not differences(one, one)


def test_a_key_of_one_side_differs():
    one = {"steps": 1, "model": {"name": "mlp"}}
    assert differences(one, {"steps": 1}) == ["model"]
    assert differences({"steps": 1, "model": {}}, one) == ["model.name"]


@pytest.mark.parametrize("values", GOOD)
def test_json_gives_the_config_back(values):
    """Sequences come back as lists; `check` and `differences` take either side of the trip."""
    config = changed(values)
    text = to_json(config)
    back = ConfigDict(json.loads(text))
    check(back)
    assert to_json(back) == text and text.endswith("}\n")
    assert not differences(json.loads(text), json.loads(to_json(back)))
    assert set(leaves(json.loads(text))) == set(leaves(config.to_dict()))


def test_choices_that_fields_declare_are_those_that_the_code_has():
    declared = {key: set(of.metadata.get("one_of", ())) for key, of in setup.every_key()}
    assert declared["model.norm"] == set(NORMS) and declared["model.stem"] == set(STEMS)
    assert declared["cluster.collective"] == set(COLLECTIVES)
