"""What is refused before any work besides ranges and joins, and what deserves a word."""

import json

import flax.linen as nn
import jax
import numpy as np
import pytest

from configs import gpt, images, plan, resnet, text, tune
from configs.grids import meter
from optdyn.base.trees import bytes_of
from optdyn.experiment import Config
from optdyn.problem import shared_data
from optdyn.problem.data.arrays import make_dataset
from optdyn.report import report, tables
from optdyn.train import memory_checks, trainer
from optdyn.train.checks import check, check_parts
from optdyn.train.grid import Grid, named, resolve
from optdyn.train.warnings import probable_mistakes
from tests.test_config import refusal
from tests.test_grids import TABLES


def test_a_batch_has_each_example_once_at_most(config):
    one = {"data.train_examples": 50, "batch_size": 50}
    check(config(one))
    check(config(one | {"batch_size": 51, "data.replacement": True}))
    alike = config(one | {"batch_size": 51, "model.noise": 0.0})
    check(alike)  # one objective, without examples
    line = refusal(config(one | {"batch_size": 51}))
    assert line.startswith("config.batch_size = 51: must be at most 50")


TWO_GROUPS = {"method.name": "asynchronous", "method.groups": 2}


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"batch_size": 30}, 4),
        ({"batch_size": 36, "parallel.accumulation": 4}, 16),
        ({"batch_size": 30, **TWO_GROUPS, "cluster.nodes": 8}, 4),
    ],
)
@pytest.mark.parametrize("api", ["jit", "shard_map", "pmap"])
def test_a_batch_divides_over_all_devices_and_their_parts(config, monkeypatch, values, parts, api):
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    whole = {"method.name": "sync", "parallel.api": api} | values
    line = refusal(config(whole))
    size = values["batch_size"]
    assert line.startswith(f"config.batch_size = {size}: must be a multiple of {parts} ")
    check(config(whole | {"batch_size": 3 * parts}))


class Normed(nn.Module):
    """A layer of nothing but zeros at first, of which the others of a batch are not seen."""

    @nn.compact
    def __call__(self, x):
        norm = nn.GroupNorm(None, group_size=1, reduction_axes=(0, 1))
        return nn.Dense(8, kernel_init=nn.initializers.zeros)(norm(x.reshape(len(x), -1)))


def normed(classes):
    return [*((name, Normed()) for name in "abcd"), ("output", nn.Dense(classes))]


PIPELINE = {"method.name": "stale_pipeline", "parallel.api": "shard_map"}
PIPELINE |= {"cluster.devices_per_node": 1, "cluster.service.name": "constant"}
PARTS = [
    ({}, ""),
    ({"parallel.accumulation": 2}, "parallel.accumulation = 2: must be 1"),
    ({"parallel.api": "jit"}, ""),
    ({"parallel.api": "pmap"}, "parallel.api = 'pmap': must be '' or 'jit'"),
    ({"parallel.api": "shard_map", "parallel.devices": 1}, ""),
    (TWO_GROUPS, ""),
    ({**TWO_GROUPS, "parallel.api": "shard_map"}, "parallel.api = 'shard_map'"),
    ({"method.name": "daso", "parallel.api": "shard_map"}, ""),
    ({"method.name": "dynamic_batch"}, "method.name = 'dynamic_batch': must be another"),
    (PIPELINE, ""),
    (PIPELINE | {"method.pipeline": "2bw"}, "parallel.api = 'shard_map': must be '': the loss"),
]


def test_a_norm_over_the_batch_has_the_parts_of_the_simulation(config, mnist, monkeypatch):
    """It is known by what it does; a model whose examples are by themselves may be divided."""
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    values = {key: value for key, value in mnist.items() if key != "model.hidden"}
    values |= {"model.name": "tests.test_checks:normed", "batch_size": 16, "method.name": "sync"}
    values |= {"cluster.nodes": 2, "cluster.devices_per_node": 2}
    run = trainer.prepare(config(values))
    for more, words in PARTS:
        chosen = config(values | more)
        check(chosen)
        if words:
            line = refusal(chosen, lambda chosen: check_parts(chosen, run.data, run.params))
            assert line.startswith(f"config.{words}")
        else:
            check_parts(chosen, run.data, run.params)
    divided = config(values | {"parallel.accumulation": 2})
    assert "depends on the others" in refusal(divided, trainer.prepare)
    by_itself = mnist | {"parallel.accumulation": 2, "batch_size": 16}
    trainer.prepare(config(by_itself))


def test_a_batch_larger_than_what_is_loaded(config, mnist):
    values = {"data.train_examples": 0, "batch_size": 4004, "cluster.nodes": 1, "method.groups": 1}
    line = refusal(config(mnist | values), trainer.prepare)
    assert line.startswith("config.batch_size = 4,004: must be at most 4,000")


def test_what_cannot_fit_is_refused_with_its_bytes(config, mnist, monkeypatch):
    """The least memory that suffices is what the arrays are worth, and a byte less does not."""
    chosen = config(mnist | {"optimizer.momentum": 0.5})
    run = trainer.prepare(chosen)
    size = bytes_of(run.params)
    state = run.program.rule.init(run.params)
    assert bytes_of(state) > 5 * size  # four versions and the velocity
    need = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + 2 * size
    monkeypatch.setattr(memory_checks, "available", lambda: need)
    trainer.prepare(chosen)
    monkeypatch.setattr(memory_checks, "available", lambda: need - 1)
    line = refusal(chosen, trainer.prepare)
    assert f" 4 versions, and their optimizer's state need {need:,} bytes" in line


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"steps": 2**31 - 1}, "config.steps = 2,147,483,647, of 4 workers: their timeline"),
        (
            {"replicas.count": 2**31 - 1, "data.replacement": True},
            "config.steps = 60 x config.replicas.count",
        ),
        ({"cluster.nodes": 2**20}, "config.steps = 60, of 1,048,576 workers"),
        ({"batch_size": 2**30, "data.replacement": True}, "config.batch_size = 1,073,741,824"),
        ({"data.train_examples": 2**31 - 1}, "config.data.train_examples = 2,147,483,647"),
        (
            {"cluster.nodes": 2**20, "cluster.devices_per_node": 2},
            "config.cluster.nodes = 1048576: must be at most 524,288 with config.cluster.devices",
        ),
    ],
)
def test_arrays_that_nothing_holds_are_refused_before_they_are_made(
    config, values, name, monkeypatch
):
    monkeypatch.setattr(memory_checks, "available", lambda: 2**30)
    assert refusal(config(values)).startswith(name)


def test_the_timeline_takes_no_less_than_is_said(config):
    long = config({"steps": 20_000})
    run = trainer.prepare(long)
    kept = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(run.timeline))
    # Sorting them takes some copies besides.
    assert kept < memory_checks.UPDATE * long.steps < 6 * kept


@pytest.mark.parametrize(
    ("values", "good", "words"),
    [
        (
            {"optimizer.name": "adam", "optimizer.learning_rate": 0.2},
            {"optimizer.learning_rate": 0.003},
            "learning_rate = 0.2: adam",
        ),
        (
            {"optimizer.name": "adam", "optimizer.learning_rate": 0.2},
            {"optimizer.name": "sgd"},
            "learning_rate = 0.2: adam",
        ),
        ({"optimizer.warmup_steps": 60}, {"optimizer.warmup_steps": 59}, "warmup_steps = 60: not"),
        (
            {"method.name": "diloco", "method.period": 1000},
            {"method.period": 60},
            "period = 1,000: more than config.steps = 60",
        ),
        (
            {"method.name": "async_local_sgd", "method.period": 61},
            {"method.period": 60},
            "period = 61: more than config.steps = 60",
        ),
        (
            {"method.name": "diloco+async_local_sgd", "method.async_local_sgd.groups": 1},
            {"method.diloco.outer_momentum": 0.0},
            "has outer momenta of 0.9 and 0.9, which compound: steps become 100 times",
        ),
        (
            {"method.name": "slowmo+decoupled", "method.decoupled.groups": 1},
            {"method.slowmo.slow_momentum": 0.0},
            "has outer momenta of 0.5 and 0.9, which compound: steps become 20 times",
        ),
    ],
)
def test_what_a_run_is_too_short_for_and_momenta_that_compound_deserve_a_word(
    config, values, good, words
):
    (line,) = probable_mistakes(config(values))
    assert line.startswith("config.") and words in line and "\n" not in line
    assert not probable_mistakes(config(values | good))


def test_a_label_that_only_the_test_split_has_deserves_a_word(config, monkeypatch):
    x, label = np.ones((6, 3), np.float32), np.arange(6)
    chosen = config({"model.name": "mlp"})
    for train, words in ((label, []), (label % 4, ["has the labels (4, 5) of the test split"])):
        splits = {"train": {"x": x, "label": train}, "test": {"x": x, "label": label}}
        made = make_dataset(splits, 0, "here")
        monkeypatch.setattr(shared_data, "load", lambda _, made=made: made)
        found = probable_mistakes(chosen)
        assert len(found) == len(words) and all(word in found[0] for word in words)


def test_a_norm_of_blocks_and_another_points_loss_are_warned_of(config, mnist):
    clipped = mnist | {"optimizer.chain": ("clip_by_global_norm",)}
    clipped |= {"model.hidden": (4, 4), "optimizer.chain_options.max_norm": 1.0}
    assert not probable_mistakes(config(clipped))
    local = {"method.name": "local", "method.variant": "backprop"}
    local |= {"cluster.service.name": "constant"}
    (said,) = probable_mistakes(config(clipped | local))
    assert "is of the norm of a block" in said
    free = {"optimizer.name": "contrib.schedule_free_sgd"}
    (said,) = probable_mistakes(config(free))
    assert "where gradients are taken" in said


def test_a_network_beside_pieces_is_warned_of_and_costs_nothing(config):
    values = {"cluster.pieces.conv_compute": 1.0, "cluster.pieces.fc_network": 0.1}
    network = {"cluster.bandwidth": 1e6, "cluster.latency": 5.0, "cluster.seconds_per_example": 1.0}
    plain, other = (config(values | more) for more in ({}, network))
    said = probable_mistakes(other, network)
    assert len(said) == 3 and all("ignored, the seconds are those of" in line for line in said)
    assert not probable_mistakes(other)  # `optdyn profile` measures pieces of such a network
    ends = (each.timeline(steps_per_epoch=9, update_bytes=10**6).seconds for each in (plain, other))
    assert np.array_equal(*ends)


@pytest.mark.parametrize(
    ("key", "needed"),
    [("absence", "presence"), ("day", "diurnal"), ("bandwidth_variation", "regions")],
)
def test_a_number_that_another_switches_on_is_warned_of_and_changes_nothing(config, key, needed):
    values = {"cluster.nodes": 4, "cluster.bandwidth": 1e6, "cluster.latency": 0.1}
    plain, other = (config(values | more) for more in ({}, {f"cluster.{key}": 0.5}))
    (said,) = probable_mistakes(other, [f"cluster.{key}"])
    assert said == f"config.cluster.{key} = 0.5: ignored, as config.cluster.{needed} is 0"
    ends = (each.timeline(steps_per_epoch=9, update_bytes=10**6).seconds for each in (plain, other))
    assert np.array_equal(*ends)
    on = {needed: 1 if needed == "regions" else 0.5}
    needs = config(values | {f"cluster.{key}": 0.5} | {f"cluster.{k}": v for k, v in on.items()})
    assert not probable_mistakes(needs, [f"cluster.{key}"])


@pytest.mark.parametrize(
    ("rate", "status", "worse"),
    [(0.1, "completed", 0), (2.1, "completed", 1), (2.5, "diverged", 1)],
)
def test_a_loss_far_above_the_first_is_marked(config, tmp_path, rate, status, worse):
    """Gradient descent on curvature 1 multiplies the error by 1 - rate an update, 60 times.

    So a loss grows 9e4 times, by 1.1^120, or 1e21 times, by 1.5^120, which is absurd. Every run
    goes on to the floats of one that always had as many steps.
    """
    values = {"method.name": "sync", "cluster.nodes": 1, "optimizer.momentum": 0.0}
    values |= {"optimizer.learning_rate": rate}
    summary = trainer.train(config(values), tmp_path / "a")
    assert summary["status"] == status and summary.get("worse", False) == worse
    first, *_, last = map(json.loads, (tmp_path / "a" / "metrics.jsonl").open())
    assert (last["train_loss"] > 100 * first["train_loss"]) == worse
    assert (last["train_loss"] > 1e6 * max(first["train_loss"], 1)) == (status == "diverged")
    assert trainer.train(config(values), tmp_path / "a") == summary
    runs, _ = tables.load(tmp_path)
    assert ("worse" in runs and bool(runs["worse"][0])) == worse
    text = report.write(tmp_path).read_text()
    assert (f"{status}, worse" in text) == worse and ("over 100 times the first" in text) == worse
    longer = config(values | {"steps": 70})
    grown, whole = (trainer.train(longer, tmp_path / name) for name in ("a", "whole"))
    assert grown["parameters_crc32"] == whole["parameters_crc32"] != summary["parameters_crc32"]


def test_a_loss_that_comes_down_again_has_not_diverged(config, tmp_path, rows):
    """A rate of 4 multiplies the error by -3 for 20 updates, one of 1 then ends it at once."""
    chosen = config(
        {
            **{"method.name": "sync", "cluster.nodes": 1, "model.condition": 1.0},
            **{"optimizer.momentum": 0.0, "optimizer.learning_rate": 5.0},
            "optimizer.schedule": "piecewise",
            "optimizer.schedule_options": {"boundaries": (20,), "scales": (0.2,)},
        }
    )
    summary = trainer.train(chosen, tmp_path)
    losses = [row["train_loss"] for row in rows(tmp_path)]
    assert max(losses) > 1e6 * max(losses[0], 1) and losses[-1] <= losses[0]
    assert summary["status"] == "completed" and "worse" not in summary


ARGUMENTS = [
    *((images, "fashion_mnist"), (images, "cifar10"), (plan, "lenet"), (tune, "small,server")),
    *(
        (meter, "constant"),
        *{module: (module, table) for module, table in TABLES if table}.values(),
    ),
]


WRONG = [
    (text, "smal", "'smal': must be one of 'small', or left out; did you mean small?"),
    (gpt, "50M,real", "'50M': must be one of '10m', '50m', '124m'; did you mean 50m?"),
    (gpt, "50m,real", "'real': must be one of 'synthetic', or left out"),
    (resnet, "34", "'34': must be one of '18', '50'"),
    (resnet, "18,sintetic", "'imagenet2012', 'synthetic'; did you mean synthetic?"),
]


@pytest.mark.parametrize(("module", "name"), ARGUMENTS)
def test_an_argument_of_a_config_is_one_of_those_listed(module, name):
    module.get_config(name)
    for wrong in ("nosuch", "", f"{name},x", name[:-1]):
        assert name in refusal(wrong, module.get_config)


@pytest.mark.parametrize(("module", "wrong", "words"), WRONG)
def test_what_an_argument_must_be_is_in_the_refusal(module, wrong, words):
    line = refusal(wrong, module.get_config)
    assert line.startswith("config argument ") and line.endswith(words)


def test_bad_points_are_named():
    def resolved(values):
        config = Grid(Config(), [values])
        return [resolve(config, name, point) for name, point in named(config)]

    for values, words in (
        ({"steps": 2**40}, "grid: point steps=1099511627776: config.steps = "),
        ({"optimizer.learning_rate": 10**400, "name": "a"}, "grid: point a: "),
        ({"data.mean": ("x",), "name": "b"}, "grid: point b: config.data.mean = ('x',): must be"),
        ({"name": ".."}, "grid: a point is called '..'"),
        ({"name": ""}, "grid: a point is called ''"),
    ):
        assert refusal(values, resolved).startswith(words)
