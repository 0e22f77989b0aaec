"""The configuration: its defaults run, and its values go to JSON and back."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn import experiment
from optdyn.clock.cluster import Cluster
from optdyn.clock.network import COLLECTIVES
from optdyn.experiment import Config, ConfigError, differences, to_json
from optdyn.methods.averaging import DiLoCo
from optdyn.problem.models.convnets import NORMS, STEMS, ResNet
from optdyn.train.checks import check
from tests.train.runs import refusal as refused


def changed(values):
    """The default with values at dotted names, of any type, as from a careless file."""
    return Config().with_(values)


def checked(given):
    check(given if isinstance(given, Config) else changed(given))


def refusal(given, act=checked):
    return refused(act, given, error=ConfigError)


def test_the_default_can_run_and_is_frozen():
    config = Config()
    check(config)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 3
    check(config.with_({"optimizer.name": "adam", "optimizer.b1": 0.5}))


LOCAL = {"method.name": "local", "model.name": "resmlp", "cluster.service.name": "constant"}
PIECES = {"cluster.pieces.conv_compute": 1.0, "cluster.pieces.fc": 0.1}
BOUND = {"method.name": "asynchronous", "method.staleness_bound": 0}
GRID = {"cluster.nodes": 2, "cluster.devices_per_node": 2}
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
    {"cluster.service.name": "gamma", "cluster.service.variation": 0.0}
    | {"checkpoint_every": 0, "seed": 2**32 - 1, "model.hidden": ()},
    {"model.name": "cnn", "model.lowering": "gemm", "model.channels": (4,)},
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
    assert changed({}).methods.groups == 1
    assert changed({"method.name": "asynchronous", "method.groups": 3}).methods.groups == 3


def test_a_key_that_a_file_lacks_is_named():
    keys = json.loads(to_json(changed({"model.name": "quadratic"})))
    del keys["model"]["noise"]
    assert refusal(keys, experiment.read) == "config.json has no model.noise"


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
