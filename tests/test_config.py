"""The configuration: its defaults run, and what cannot run is refused in one line."""

import ast
import dataclasses
import json
import sys
from pathlib import Path

import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn import experiment, methods
from optdyn.base.errors import Join
from optdyn.cli.keys import keys
from optdyn.clock.cluster import Cluster
from optdyn.clock.network import COLLECTIVES
from optdyn.experiment import Config, ConfigError, differences, to_json
from optdyn.methods.averaging import DiLoCo
from optdyn.problem.models.convnets import NORMS, STEMS, ResNet
from optdyn.train.checks import check
from tests.conftest import RUN
from tests.methods.test_refused import ROWS, whole

HUGE = float("inf")
NAN = float("nan")


KEYS = keys()


def owned(name):
    """The values that give an experiment the key: the name of the first member that has it."""
    owners = KEYS[name][-1] if name in KEYS else ()
    section = name.rpartition(".")[0]
    return {f"{section}.name": owners[0]} if owners and owners[0] != "your own" else {}


def changed(values):
    """The default with values at dotted names, of any type, as from a careless file."""
    return Config().with_(values)


def checked(given):
    check(given if isinstance(given, Config) else changed(given))


def refusal(given, act=checked):
    with pytest.raises(ConfigError) as caught:
        act(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_default_can_run_and_is_frozen():
    config = Config()
    check(config)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 3
    check(config.with_({"optimizer.name": "adam", "optimizer.b1": 0.5}))


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
    "data.dirichlet",
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
    ("data.mean", (NAN,)),
    ("probes.window", 10),
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
    assert refusal(owned(name) | {name: value}).startswith(f"config.{name}")


LOCAL = {"method.name": "local", "model.name": "resmlp", "cluster.service.name": "constant"}
PIECES = {"cluster.pieces.conv_compute": 1.0, "cluster.pieces.fc": 0.1}
BOUND = {"method.name": "asynchronous", "method.staleness_bound": 0}
DROPPING = {"method.name": "ringmaster", "method.delay_bound": 2}
GRID = {"cluster.nodes": 2, "cluster.devices_per_node": 2}
SHARDS = {"data.dirichlet": 0.5, "cluster.nodes": 2}
ARRIVING = {"method.name": "asynchronous", "method.groups": 2}
RACE = {"method.name": "asynchronous", "cluster.service.name": "race"}
LOCAL_RACE = RACE | {"method.name": "async_local_sgd"}
STEPS = {"method.name": "async_local_sgd"}
METER = {"probes.momentum": True}
JOINED = {"method.name": "daso+asynchronous"}
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
    ({"method.name": "no_such_file:NAME"}, "method.name"),
    ({"method.name": "optdyn.methods.daso:Choice"}, "method.name"),
    (
        {"method.name": "daso+asynchronous", **GRID, "method.asynchronous.groups": 4},
        "method.asynchronous.groups",
    ),
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
        {"method.name": "ringmaster+local", "method.ringmaster.snapshots": "host"},
        "method.ringmaster.snapshots",
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
    ({"data.name": "text", "data.tokenizer": "nosuch"}, "data.tokenizer = 'nosuch': must be "),
    (
        {"cluster.nodes": 2**20, "cluster.devices_per_node": 2},
        "cluster.nodes = 1048576: must be at most ",
    ),
    ({"method.fresh": ("nosuch",)}, "method.fresh = ('nosuch',): must be of the blocks hidden0"),
    (
        {"method.name": "sync+buffered", "method.sync.fresh": ("classifier",)},
        "method.sync.fresh = ('classifier',): must be (), as ",
    ),
    (SHARDS | {"method.name": "dynamic_batch"}, "data.dirichlet = 0.5: needs nodes that wait"),
    (SHARDS | {"cluster.nodes": 3}, "batch_size = "),
    (SHARDS | ARRIVING | {"cluster.nodes": 4}, "data.dirichlet = 0.5: needs config.method.groups"),
    (
        SHARDS | ARRIVING | {"method.name": "buffered", "method.arrivals": 2},
        "data.dirichlet = 0.5: needs updates by the gradient of one group",
    ),
    (SHARDS | ARRIVING | RACE, "data.dirichlet = 0.5: needs service times that are drawn"),
    (SHARDS | ARRIVING | METER, "data.dirichlet = 0.5: excludes config.probes.momentum"),
    (SHARDS | {"replicas.count": 3}, "data.dirichlet = 0.5: excludes config.replicas.count"),
    (METER | {"replicas.count": 3}, "probes.momentum = True: excludes config.replicas.count"),
    ({"probes.steer": True}, "probes.steer = True: needs config.probes.momentum"),
    (METER | {"probes.steer": True, "optimizer.name": "adam"}, "probes.steer = True: needs"),
    ({"probes.similarity": True}, "probes.similarity = True: needs nodes with parameters of"),
    ({"probes.mean": True}, "probes.mean = True: needs nodes with parameters of"),
    (
        METER | {"probes.window": 54, "probes.every": 53},
        "probes.window = 54: must be at most config.probes",
    ),
    (
        METER | LOCAL | {"parallel.api": "shard_map", "cluster.nodes": 2},
        "probes.momentum = True: excludes blocks",
    ),
    (
        {"optimizer.name": "lion", "optimizer.momentum": 0.5},
        "optimizer.momentum = 0.5: must be 0: optax.lion has",
    ),
    ({"optimizer.chain": (3,)}, "optimizer.chain = (3,): must be names of transforms"),
    ({"optimizer.name": "optax:identity"}, "optimizer.name = 'optax:identity': must be a function"),
    (
        {"optimizer.chain": ("delay_compensation",), "optimizer.chain_options": {"nosuch": 1}},
        "optimizer.chain_options.nosuch: must be an argument of one transform, and is of 0 of",
    ),
    (
        {"replicas.matching": (0.5,), "optimizer.name": "adam"},
        "replicas.matching = (0.5,): needs config.optimizer.name = 'sgd'",
    ),
    (
        {"method.name": "slowmo", "optimizer.learning_rate": 0.0},
        "optimizer.learning_rate = 0.0: must be other than 0",
    ),
    (
        GRID | JOINED | {"cluster.server_bandwidth": 1.0},
        "cluster.server_bandwidth = 1.0: nodes that meet",
    ),
    (
        GRID | JOINED | {"cluster.presence": 1.0},
        "cluster.presence = 1.0: of nodes that compute as a whole",
    ),
    (
        STEPS | {"method.server": "adam", "method.momentum_part": 0.5},
        "method.momentum_part = 0.5: must be 0 with",
    ),
    (
        LOCAL_RACE | {"method.server": "heloco", "method.age_decay": 0.5},
        "method.age_decay = 0.5: must be 0 with",
    ),
    (
        LOCAL_RACE | {"optimizer.warmup_steps": 5},
        "cluster.service.name = 'race': config.optimizer.schedule must",
    ),
    (
        LOCAL_RACE | {"optimizer.chain": ("staleness_rate",)},
        "cluster.service.name = 'race': config.optimizer.chain: local",
    ),
    (LOCAL_RACE | METER, "cluster.service.name = 'race': config.probes.momentum must"),
    (RACE | {"method.fresh": ("hidden0",)}, "method.fresh = ('hidden0',): of a real server they"),
    (
        RACE | {"method.name": "asynchronous+local", "method.asynchronous.fresh": ("classifier",)},
        "method.asynchronous.fresh = ('classifier',): in a race groups must",
    ),
    (
        RACE | METER | {"method.fresh": ("classifier",), "probes.steer": True},
        "method.fresh = ('classifier',): in a race config.probes.steer",
    ),
    (
        RACE | {"method.snapshots": "bfloat16"},
        "cluster.service.name = 'race': config.method.snapshots must",
    ),
    (RACE | {"parallel.api": "jit"}, "cluster.service.name = 'race': config.parallel must"),
    (RACE | {"replicas.count": 3}, "cluster.service.name = 'race': config.replicas.count must"),
    (RACE | {"data.streaming": True}, "cluster.service.name = 'race': config.data.streaming must"),
    (
        PIECES | {"method.name": "asynchronous+local"},
        "cluster.pieces = Pieces(...): no block of local",
    ),
    (METER | {"optimizer": optax.adam(0.1)}, "probes.momentum = True: needs the"),
]


@pytest.mark.parametrize(("values", "name"), COMBINATIONS, ids=[name for _, name in COMBINATIONS])
def test_values_that_do_not_go_together(values, name):
    assert refusal(values).startswith(f"config.{name}")


def test_every_join_is_reached(monkeypatch):
    """Each row of the joins, of the experiment and of the methods, is wrong in one of the cases."""
    reached = set()

    def new(cls, key, wrong, said, made=Join.__new__):
        if wrong:
            frame = sys._getframe(1)
            reached.add((frame.f_code.co_filename, frame.f_lineno))
        return made(cls, key, wrong, said)

    monkeypatch.setattr(Join, "__new__", new)
    cases = [values for values, _ in COMBINATIONS]
    cases += [owned(name) | {name: value} for name, value in BAD]
    for values in cases:
        refusal(values)
    run = changed(RUN)
    for name, values, _ in ROWS:
        refusal(whole(name, values), lambda given: check(run.with_(given)))
    missed = [
        f"{path}:{call.lineno}: {ast.unparse(call)}"
        for path in [experiment.__file__, *map(str, Path(methods.__file__).parent.rglob("*.py"))]
        for call in ast.walk(ast.parse(Path(path).read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Join"
        if not {(path, line) for line in range(call.lineno, call.end_lineno + 1)} & reached
    ]
    assert not missed


GOOD = [
    {"method.name": "asynchronous", "method.groups": 4, "cluster.nodes": 2}
    | {"cluster.devices_per_node": 4, "cluster.service.name": "geometric"},
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
        "cluster.service.name": "gamma",
        "cluster.service.variation": 0.0,
        "model.hidden": (),
    },
    {"model.name": "cnn", "model.lowering": "gemm", "replicas.matching": (-0.5, 0.0)},
    LOCAL | {"cluster.nodes": 8, "cluster.devices_per_node": 4},
    LOCAL | {"cluster.nodes": 4, "method.variant": "chunked", "method.chunks": 8},
    LOCAL | {"method.shared_heads": True, "method.variant": "overlapping"},
    LOCAL | {"parallel.api": "jit"},
    {"method.name": "asynchronous", "parallel.api": "jit"},
    {"method.name": "daso", "parallel.api": "jit", **GRID},
    {"method.name": "daso+dynamic_batch", **GRID, "cluster.speeds": (1, 2, 3, 4)},
    {"method.name": "daso+asynchronous", **GRID, "method.asynchronous.groups": 2},
    {"method.name": "optdyn.methods.daso:DASO", **GRID},
]


def test_groups():
    """Only asynchronous groups arrive by themselves."""
    assert changed({}).methods.groups == 1
    assert changed({"method.name": "asynchronous", "method.groups": 3}).methods.groups == 3


def test_unknown_and_missing_keys():
    wrong = refusal({"optimizer.learning_rat": 0.1})
    assert wrong == "config.optimizer has no key 'learning_rat'; did you mean learning_rate?"
    assert refusal({"nosuch": 1}) == "config has no key 'nosuch'"
    assert refusal({"steps.a": 1}) == "config.steps has no keys of its own"
    held = json.loads(to_json(changed({"model.name": "quadratic"})))
    del held["model"]["noise"]
    assert refusal(held, experiment.read) == "config.json has no model.noise"


def test_a_key_of_another_member_says_whose_it_is():
    for values, said in (
        ({"method.period": 3}, "config.method.period: 'sync' has no such key, which is of "),
        ({"model.channels": (3,)}, "config.model.channels: 'mlp' has no such key, which is of cnn"),
        ({"optimizer.b1": 0.9}, "config.optimizer.b1: 'sgd' has no such key, which is of adam"),
        (
            {"cluster.service.variation": 0.3},
            "config.cluster.service.variation: 'exponential' has no such key, which is of gamma",
        ),
        ({"data.tokenizer": "byte"}, "config.data.tokenizer: 'mnist5k' has no such key, which is"),
        (
            {"data.name": "kjv", "data.augment": "flip"},
            "config.data.augment: 'kjv' has no such key, which is of folder, mnist5k and tfds",
        ),
        (
            {"method.name": "diloco+local", "method.period": 3},
            "config.method.period: 'diloco+local' has no such key; say config.method.diloco.period",
        ),
        (
            {"method.name": "diloco+local", "method.diloco.perid": 3},
            "config.method.diloco has no key 'perid'; did you mean period?",
        ),
    ):
        assert refusal(values).startswith(said)


def test_another_name_begins_with_its_defaults_and_keeps_what_is_given():
    wide = changed({"model.name": "cnn", "model.channels": (3,), "model.hidden": (5,)})
    assert wide.with_({"model.name": "mlp"}).model.hidden == (256, 256)
    assert wide.with_({"model.hidden": (7,), "model.name": "mlp"}).model.hidden == (7,)
    assert wide.with_({"model.name": "cnn"}).model == wide.model
    joined = changed({"method.name": "diloco+local", "method.diloco.period": 3})
    assert joined.method.of(DiLoCo).period == 3
    assert joined.with_({"method.name": "diloco"}).method.of(DiLoCo).period == 8


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
        refusal(values)


@settings(deadline=None)
@given(st.sets(st.sampled_from(leaves(Config().to_dict()))), st.booleans())
def test_differences_are_the_names_that_differ(names, swap):
    one, other = Config().to_dict(), Config().to_dict()
    for name in names:
        *path, last = name.split(".")
        part = other
        for key in path:
            part = part[key]
        part[last] = "changed"
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
def test_values_that_can_run_and_come_back_from_json(values):
    config = changed(values)
    check(config)
    text = to_json(config)
    back = experiment.read(json.loads(text)) if ":" not in config.method.name else config
    assert back == config and hash(back) == hash(config)
    assert to_json(back) == text and text.endswith("}\n")
    assert set(leaves(json.loads(text))) == set(leaves(config.to_dict()))
    assert Config().with_(config.changed_keys()) == config


def test_choices_that_fields_declare_are_those_that_the_code_has():
    fields = ResNet.field_table() | Cluster.field_table()
    declared = {key: set(of.metadata.get("one_of", ())) for key, of in fields.items()}
    assert declared["norm"] == set(NORMS) and declared["stem"] == set(STEMS)
    assert declared["collective"] == set(COLLECTIVES)
