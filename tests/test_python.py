"""`import optdyn`: experiments as values train to the floats of the command, and own loops too."""

import copy
import inspect
import json
import pickle
import pydoc

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
import scipy
from flax import nnx

import optdyn
from optdyn import methods
from optdyn.base import in_memory, lookup
from optdyn.base.errors import ConfigError, InputError
from optdyn.cli import app
from optdyn.cli import train as train_command
from optdyn.cli.comparison import Comparison
from optdyn.cli.python import Trained
from optdyn.evidence.intervals import ratio
from optdyn.experiment import read, to_json
from optdyn.implicit_momentum.moments import FEWEST
from optdyn.methods.setup import SHORTEST
from optdyn.report import efficiency
from optdyn.train import trainer
from tests.own import nets
from tests.own_flags import called
from tests.train.runs import refusal


def base(**more):
    values = {
        "model": optdyn.Quadratic(dimension=6, noise=0.5),
        "data": optdyn.MNIST5k(train_examples=100),
        "optimizer": optdyn.SGD(learning_rate=0.05, momentum=0.3),
        "cluster": optdyn.Cluster(workers=4, service=optdyn.Exponential()),
        **{"batch_size": 4, "steps": 60, "log_every": 20},
    }
    return optdyn.Experiment(**values | more)


def test_it_is_the_run_that_the_command_makes(tmp_path, monkeypatch):
    chosen = base(method=optdyn.Asynchronous(groups=4))
    found = chosen.train(tmp_path / "python")
    keys = {
        **{"model.name": "quadratic", "model.dimension": 6, "model.noise": 0.5, "batch_size": 4},
        **{"data.train_examples": 100, "optimizer.learning_rate": 0.05, "steps": 60},
        **{"optimizer.momentum": 0.3, "cluster.nodes": 4, "log_every": 20},
        **{"method.name": "asynchronous", "method.groups": 4},
    }
    (tmp_path / "empty.py").write_text("from optdyn.experiment import Config as get_config\n")
    given = [f"--config.{key}={value}" for key, value in keys.items()]
    for workdir in ("command", "python"):
        line = [f"--config={tmp_path / 'empty.py'}", *given, f"--workdir={tmp_path / workdir}"]
        with called(monkeypatch, "optdyn", line), pytest.raises(SystemExit) as ended:
            app.run(train_command.main)
        assert ended.value.code == 0
    wanted = json.loads((tmp_path / "command" / "summary.json").read_text())
    assert found.summary["parameters_crc32"] == wanted["parameters_crc32"]
    assert chosen.train().summary["parameters_crc32"] == wanted["parameters_crc32"]
    np.testing.assert_array_equal(chosen.timeline().seconds[-1], wanted["simulated_seconds"])


def test_a_comparison_is_of_the_runs_alone():
    arms = {"sync": base(), "async": base(method=optdyn.Asynchronous(groups=4))}
    adam = base(optimizer=optdyn.Adam(0.05, b1=0.5), batch_size=2)
    found = optdyn.compare(arms, steps=40, seeds=iter((0, 3)))
    with_adam = optdyn.compare({"adam": adam, "sync": arms["sync"]}, steps=40, seeds=(0, 3))
    for runs, one in (
        (found["sync"], arms["sync"]),
        (found["async"], arms["async"]),
        (with_adam["adam"], adam),
    ):
        for run, seed in zip(runs.runs, (0, 3), strict=True):
            alone = one.with_(seed=seed, steps=40).train()
            assert run.summary["parameters_crc32"] == alone.summary["parameters_crc32"]
    for name in arms:
        assert found[name][0].experiment.seed == 0 and len(found[name]) == 2
    assert list(found) == ["sync", "async"]
    table = found.table()
    assert list(table.index) == ["sync", "async"] and (table["seeds"] == 2).all()
    assert table.loc["sync", "updates_ratio"] == 1 and np.isfinite(table["seconds"]).all()
    ends = ["updates_low", "updates_high", "seconds_low", "seconds_high"]
    assert table[ends].isna().all(axis=None)  # two seeds hold the truth in every other study
    assert "sync without intervals, for which 2 is few" in str(found) and "[" not in str(found)
    more = optdyn.compare({"a": base(), "b": arms["async"]}, steps=40, seeds=range(5))
    table = more.table()
    assert (table["seconds_low"] <= table["seconds_ratio"]).all()
    assert (table["updates_least"] < table["updates_most"]).all()
    assert table.loc["a", ["updates_low", "updates_high"]].tolist() == [1, 1]  # over itself
    arms = ([efficiency.to_target(run.log, more.target)[0] for run in more[n].runs] for n in "ba")
    _, low, high = ratio(*arms)  # of the seeds alone
    assert table.loc["b", "updates_low"] < low and high < table.loc["b", "updates_high"]
    assert "with 95 % intervals" in str(more) and "a smaller log_every leaves" in str(more)
    head, _, titles, sync, late = str(found).splitlines()
    assert "medians of 2 seeds, and times those of sync" in head and titles.startswith(" ")
    updates, seconds_each, seconds = map(float, sync.split()[1:])
    assert updates * seconds_each == pytest.approx(seconds, rel=0.01)  # of three digits
    assert late.startswith("async") and late.count("times)") == 2
    assert found.plot().axes[0].get_legend_handles_labels()[1] == ["sync", "async"]


@pytest.mark.parametrize("seeds", [5, 7])
def test_the_last_values_of_a_metric_are_medians_with_bootstrap_intervals(seeds):
    """Whose ends are order statistics: of n values redrawn, k of them lie below the median."""
    rng = np.random.default_rng(0)
    ends = {name: rng.normal(size=seeds) for name in ("first", "other")}
    ends["lost"] = ends["first"]

    def run(seed, name):
        log = pd.DataFrame({"step": [0, 1], "test_accuracy": [0.1, ends[name][seed]]})
        status = "diverged" if (name, seed) == ("lost", 1) else "completed"
        return Trained(base(seed=seed), log, {"status": status}, None, {})

    found = Comparison({name: tuple(run(i, name) for i in range(seeds)) for name in ends})
    table = found.metric("test_accuracy")
    half = (seeds - 1) // 2
    below = scipy.stats.binom.sf(half, seeds, np.arange(1, seeds + 1) / seeds)
    last = np.argmax(below > 0.025)  # a redrawn median is at most this value often enough
    differences = ends["other"] - ends["first"]
    for values, row in (
        (ends["first"], table.loc["first", ["median", "low", "high"]]),
        (ends["other"], table.loc["other", ["median", "low", "high"]]),
        (differences, table.loc["other", ["difference", "difference_low", "difference_high"]]),
    ):
        ranks = np.sort(values)
        expected = [np.median(values), ranks[last], ranks[-1 - last]]
        np.testing.assert_allclose(row.to_numpy(float), expected, rtol=1e-12)
    assert table.loc["first", "difference":"difference_high"].tolist() == [0, 0, 0]
    assert table.loc["lost"].isna().sum() == 6 and (table["seeds"] == seeds).all()
    with pytest.raises(ConfigError, match="metric = 'accuracy': must be one of 'seed', 'step'"):
        found.metric("accuracy")
    few = Comparison({name: runs[:4] for name, runs in found.runs.items()}).metric("test_accuracy")
    assert few.loc["first", ["low", "high"]].isna().all() and np.isfinite(
        few.loc["other", "median"]
    )


def test_a_run_says_in_a_line_what_it_is_and_a_plot_which_columns_there_are():
    run = base(steps=20, method=optdyn.Asynchronous(groups=4)).train()
    assert repr(run).startswith("Trained(asynchronous, seed 0: completed after 20 updates, ")
    found = optdyn.compare({"a": base()}, steps=20, seeds=[0])
    with pytest.raises(ConfigError, match="x = 'seconds': must be one of 'seed', 'step'"):
        found.plot(x="seconds")


def test_the_rate_of_an_optax_optimizer_is_nobodys_and_not_0():
    run = base(optimizer=optax.sgd(0.1, momentum=0.9), steps=20).train()
    same = base(optimizer=optdyn.SGD(learning_rate=0.1, momentum=0.9), steps=20).train()
    assert run.log[["learning_rate", "momentum"]].isna().all(axis=None)
    assert run.log["train_loss"].tolist() == same.log["train_loss"].tolist()
    assert same.log["learning_rate"].tolist()[-1] == 0.1


def test_the_meter_is_read_though_it_was_not_asked_for():
    chosen = base(
        model=optdyn.Quadratic(noise=0.02),
        optimizer=optdyn.SGD(learning_rate=0.02),
        method=optdyn.Asynchronous(groups=4),
        data=optdyn.MNIST5k(train_examples=100, replacement=True),
        steps=400,
    )
    reading = optdyn.momentum(chosen.train())
    assert any(low < 0.75 < high for low, high in reading.pieces)  # 1 - 1/g
    assert not reading.rejected and reading.strength > 0
    assert optdyn.momentum(base(steps=40).train()).says_nothing


def test_the_meter_reads_raw_steps_under_any_optimizer():
    """A chain of optax has a rate of its own, by which steps were once divided: it was 0."""
    probes = optdyn.Probes(momentum=True, window=400)
    for optimizer in (
        optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.02)),
        optdyn.SGD(0.02, chain=(optax.clip_by_global_norm(1.0),)),
        optdyn.Adam(1e-3),
    ):
        chosen = base(optimizer=optimizer, steps=400, method=optdyn.Asynchronous(groups=4))
        run = chosen.with_(cluster=optdyn.Cluster(nodes=4), probes=probes).train()
        reading = optdyn.momentum(run)
        assert any(low < 0.75 < high for low, high in reading.pieces)


class Line(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1, use_bias=False, kernel_init=nn.initializers.zeros)(x)


def test_an_optax_optimizer_may_be_of_this_models_parameters_alone():
    """Labels in the form of the parameters, as of a layer that is kept as it is."""
    model = optdyn.MLP(hidden=(4,))
    start = trainer.prepare(base(model=model)).params
    labels = {name: jax.tree.map(lambda _, n=name: n, block) for name, block in start.items()}
    by_label = {"hidden0": optax.sgd(0.1), "classifier": optax.set_to_zero()}
    chosen = base(model=model, optimizer=optax.multi_transform(by_label, labels), steps=2)
    params = chosen.train().params
    moved = {
        name: optax.tree.norm(optax.tree.sub(start[name], params[name]), ord="inf")
        for name in labels
    }
    assert moved["hidden0"] > 1e-3 and moved["classifier"] == 0
    other = optax.multi_transform(by_label, {"hidden1": "hidden0"})
    with pytest.raises(ConfigError, match=r"cannot be used .*1 child keys hidden1"):
        base(model=model, optimizer=other).train()
    # Where blocks have optimizers of their own, each is asked.
    by_block = chosen.with_(
        method=optdyn.Local(), cluster=optdyn.Cluster(service=optdyn.Constant())
    )
    with pytest.raises(ConfigError, match=r"cannot be used .*2 child keys"):
        by_block.train()


def test_modules_functions_arrays_losses_and_optimizers_of_ones_own():
    """A module and the same as two functions, by SGD of optax and by a traced rate: one result."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5], np.float32)
    pair = (lambda key, x: {"w": jnp.zeros((x.shape[-1], 1))}, lambda params, x: x @ params["w"])

    def squares(outputs, batch):
        return jnp.sum((outputs - batch["y"]) ** 2, axis=1)

    ends = []
    for model in (Line(), pair):
        for optimizer in (optax.sgd(0.05), optdyn.SGD(0.05)):
            made = optdyn.Experiment(
                model=model, optimizer=optimizer, loss=squares,
                batch_size=8, steps=80, log_every=40,
            )  # fmt: skip
            found = made.with_(data={"x": x, "y": y}).train()
            ends.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found.params)]))
            assert found.log["train_loss"].iloc[-1] < 1e-2 * found.log["train_loss"].iloc[0]
    for end in ends:  # float32, 80 updates
        np.testing.assert_allclose(end, ends[0], rtol=1e-5)
        np.testing.assert_allclose(end, [1.0, -2.0, 0.5], atol=0.05)


class Dropping(nnx.Module):
    def __init__(self, rngs):
        self.line = nnx.Linear(3, 1, rngs=rngs)
        self.drop = nnx.Dropout(0.5, broadcast_dims=(0, 1), rngs=rngs)

    def __call__(self, x):
        return self.drop(self.line(x))


def test_a_pair_that_hides_a_state_of_random_numbers_is_refused():
    """They would be the same at every update, and with `broadcast_dims` of every example."""
    graph, _, rest = nnx.split(Dropping(nnx.Rngs(0)), nnx.Param, ...)
    init = lambda key, x: nnx.state(Dropping(nnx.Rngs(key)), nnx.Param)  # noqa: E731
    apply = lambda params, x: nnx.merge(graph, params, rest, copy=True)(x)  # noqa: E731
    data = {"x": np.ones((8, 3), np.float32), "y": np.ones((8, 1), np.float32)}
    with pytest.raises(ConfigError, match="must draw random numbers only with the key"):
        optdyn.Experiment(model=(init, apply), data=data, batch_size=4, steps=2).train()


def test_linens_batch_norm_in_a_pair_is_the_norm_over_the_batch():
    """Against the equation: a pair without a state normalizes by the batch in evaluation, too."""
    net = nn.Sequential([nn.Dense(4), nn.BatchNorm(use_running_average=False), nn.Dense(2)])
    by_linen = (
        lambda key, x: net.init(key, x)["params"],
        lambda params, x: net.apply({"params": params}, x, mutable=["batch_stats"])[0],
    )

    def by_hand(params, x):
        one, norm, two = (params[f"layers_{i}"] for i in range(3))
        h = x @ one["kernel"] + one["bias"]
        h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5) * norm["scale"] + norm["bias"]
        return h @ two["kernel"] + two["bias"]

    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    values = {"data": {"x": x, "label": (x[:, 0] > 0).astype(np.int32)}, "batch_size": 16}
    ends = [
        optdyn.Experiment(model=pair, steps=20, log_every=20, **values).train().log["train_loss"]
        for pair in (by_linen, (by_linen[0], by_hand))
    ]
    np.testing.assert_allclose(*ends, rtol=1e-5)


def line(x, **values):
    """A line that is to give the first number of each example."""
    return optdyn.Experiment(model=Line(), data={"x": x, "y": x[:, 0]}, batch_size=4, **values)


def test_arrays_are_those_of_when_the_experiment_was_made():
    """Written into later they are other data; the same numbers again are the same data."""
    x = np.random.default_rng(0).normal(size=(32, 2)).astype(np.float32)
    data, model = {"x": x, "y": x[:, 0].copy()}, Line()

    def made(of):
        return optdyn.Experiment(model=model, data=of, batch_size=4, steps=4, log_every=4)

    before, first = made(data), made(data).train()
    data["y"] *= -1.0
    after = made(data)
    assert after != before and before == made({"x": x.copy(), "y": x[:, 0].copy()})
    assert before.train().summary["parameters_crc32"] == first.summary["parameters_crc32"]
    assert after.train().summary["parameters_crc32"] != first.summary["parameters_crc32"]


def test_a_pickle_of_an_experiment_has_its_arrays_and_functions(monkeypatch):
    x = np.random.default_rng(0).normal(size=(20, 3))
    given = {"x": x, "label": (x[:, 0] > 0).astype(int)}
    pair = nets.start, nets.outputs
    made = optdyn.Experiment(model=pair, data=given, batch_size=4, steps=4)
    kept, wanted = pickle.dumps(made), made.train().summary["parameters_crc32"]
    assert pickle.loads(kept) == made  # by the same name, as its numbers are the same
    monkeypatch.delattr(in_memory, made.data.name.rpartition(":")[2])  # as in another process
    monkeypatch.setattr(in_memory, "_names", {})
    found = pickle.loads(kept)
    assert found == made and found.train().summary["parameters_crc32"] == wanted
    with pytest.raises(ConfigError, match="an optax transformation of an experiment: cannot be"):
        pickle.dumps(made.with_(optimizer=optax.sgd(0.1)))
    assert copy.deepcopy(made.with_(optimizer=optax.sgd(0.1))).optimizer.name


def test_metrics_and_transforms_of_a_chain_may_be_things_themselves():
    def far(outputs, batch):
        return jnp.abs(outputs - batch["y"])[:, 0]

    clipped = optdyn.SGD(0.1, chain=(optax.clip_by_global_norm(0.5),))
    once = {"optimizer": clipped, "metrics": (far,), "steps": 1, "log_every": 1}
    found = line(np.ones((32, 1), np.float32), **once).train()
    assert found.log["test_far"].tolist() == pytest.approx([1.0, 0.95])  # a step of 0.1 * 0.5


def test_ones_own_loop_over_rule_and_clock_makes_the_floats_of_the_trainer():
    chosen = base(method=optdyn.Asynchronous(groups=4), steps=30, batch_size=2)
    from optdyn.train.run import batches_of

    run = trainer.prepare(chosen)
    batches = {k: v[batches_of(run)(0, 30)] for k, v in run.data.train.items()}
    method = optdyn.Asynchronous(groups=4)
    clock = optdyn.timeline(method, chosen.cluster, steps=30, batch_size=2, update_bytes=24)
    np.testing.assert_array_equal(clock.seconds, run.timeline.seconds)
    rule = optdyn.rule(method, run.program.problem.loss, optax.sgd(0.05, 0.3), clock.slots)
    state = rule.init(run.params)

    def step(state, update):
        return rule.step(state, *update)

    state, infos = jax.lax.scan(step, state, (clock.events, batches))
    found = jax.tree.leaves(state.params)
    wanted = jax.tree.leaves(chosen.train().params)
    for one, other in zip(found, wanted, strict=True):  # another program: sums in another order
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    assert infos["loss"].shape == (30,)


GROUPED = {"asynchronous", "ringmaster", "ringleader", "buffered", "mindflayer", "elastic"}
GROUPED |= {"ad_psgd", "async_local_sgd", "decoupled"}
LAYERED = ("local", "stale_pipeline")  # whose seconds are those of the model's layers

TREE = type("Tree", (), {"__module__": "equinox._module", "__call__": print})()

BAD = {
    "Cluster.workers": lambda: optdyn.Cluster(workers=3, devices_per_node=2),
    "at least 1": lambda: optdyn.Cluster(workers=0),  # a count that was computed, say
    "workers = 8: must be nodes * devices": lambda: optdyn.Cluster(workers=8, nodes=3),
    "DiLoCo has no field 'perod'; did you mean": lambda: optdyn.DiLoCo(perod=3),
    "config.method = 'diloco': must be of type Method, such as DiLoCo(...)": lambda: (
        optdyn.Experiment(method="diloco")
    ),
    "makes it: model=od.from_nnx(lambda rngs: Linear(..., rngs=rngs))": lambda: base(
        model=nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    ),
    "Dropping is of flax.nnx, so it must be given by a function that": lambda: base(model=Dropping),
    "makes it: model=od.from_equinox(lambda key: Tree(..., key=key))": lambda: base(model=TREE),
    "Tree is of equinox, so it must be given by a": lambda: base(model=(TREE, "its state")),
    "config.cluster = 3: must be of type Cluster": lambda: optdyn.Experiment(cluster=3),
    "delay = 8: must be": lambda: optdyn.DiLoCo(period=8, delay=8),  # unlike decoupled learners
    "set of config.data given as arrays has": lambda: base(
        model=Line(), data={"x": np.ones((4, 1)), "y": np.ones(3)}
    ).train(),
    "experiments = (Experiment(...),): must be a dict": lambda: optdyn.compare([base()]),
    "compare: 'two' must be of type Experiment, not int": lambda: optdyn.compare(
        {"one": base(), "two": 3}, seeds=[0]
    ),
    "must be a method that only reads older versions": lambda: optdyn.rule(
        optdyn.DiLoCo(), jnp.sum, optax.sgd(0.1)
    ),
    "must be a dict of blocks, such as {'all': params}, not of type": lambda: optdyn.rule(
        optdyn.Asynchronous(groups=2), jnp.sum, optax.sgd(0.1)
    ).init(jnp.zeros(3)),
    "must divide": lambda: optdyn.timeline(
        optdyn.Asynchronous(groups=3), optdyn.Cluster(workers=4), 10
    ),
    "update_bytes = -8: must be at least 0": lambda: optdyn.timeline(
        optdyn.Sync(), optdyn.Cluster(), 10, update_bytes=-8
    ),
    # Arguments of other names, too many, too few, or of another kind.
    "config has no key 'nosuch'": lambda: base().with_(nosuch=3),
    "Cluster has no field 'node'; did you mean nodes?": lambda: optdyn.Cluster(node=4),
    "Gamma has no field 'varied'": lambda: optdyn.Gamma(varied=2.0),
    "compare has no argument 'seed'; did you mean seeds?": lambda: optdyn.compare({}, seed=[0]),
    "compare: missing a required argument: 'experiments'": lambda: optdyn.compare(steps=3),
    "DiLoCo: its fields are given by name": lambda: optdyn.DiLoCo(8),
    "seeds = 5: must be a sequence of seeds, as range(5)": lambda: optdyn.compare(
        {"a": base()}, seeds=5
    ),
    "workdir = 5: must be a text, a path or None": lambda: base().train(workdir=5),
    "penalty = 3: must be a text or a path": lambda: base().which("runs", 3),
    "method = 'local': must be of type Method, such as Local(...)": lambda: (
        optdyn.DiLoCo() + "local"
    ),
    "i = 'x': must be a whole number": lambda: optdyn.Comparison({"a": ()})["a"]["x"],
    "experiment = 'snc': must be one of 'sync'; did you mean sync?": lambda: optdyn.Comparison(
        {"sync": ()}
    )["snc"],
    "config.cluster.pieces = 3: must be of type Pieces": lambda: optdyn.Cluster(pieces=3),
    "devices_per_node = '2': must be": lambda: optdyn.Cluster(workers=4, devices_per_node="2"),
    "config.optimizer = SGD: must be of type Optimizer, such as SGD(...)": lambda: base(
        optimizer=optdyn.SGD
    ),
    # Whole experiments, and what was given itself, are told in few words.
    "config.steps = Experiment(...): must be a whole number": lambda: base(steps=base()),
    "compare: Experiment(...) must be of type Experiment, not str": lambda: optdyn.compare(
        {base(): "a"}
    ),
    "config.optimizer given as a function: must be a function with an argument": lambda: base(
        optimizer=lambda rate: optax.sgd(rate)
    ).train(),
}


@pytest.mark.parametrize("words", BAD)
def test_what_cannot_be_is_refused_in_a_line(words):
    assert words in refusal(BAD[words])


def test_values_are_frozen_and_changed_by_copies():
    cluster = optdyn.Cluster(workers=8, devices_per_node=2, service=optdyn.Gamma(0.5))
    assert (cluster.nodes, cluster.service) == (4, optdyn.Gamma(variation=0.5))
    assert cluster.with_(nodes=2).nodes == 2 and cluster.with_(latency=1).latency == 1.0
    assert cluster.with_(workers=4).nodes == 2
    with pytest.raises(AttributeError):
        cluster.nodes = 3
    assert optdyn.Decoupled(period=8, delay=8).delay == 8
    clip = optax.clip_by_global_norm(0.1)  # a tuple, but of functions
    assert optdyn.SGD(chain=clip).chain == optdyn.SGD(chain=[clip]).chain
    one, same, other = (base(method=optdyn.Asynchronous(groups=g)) for g in (2, 2, 4))
    assert len({one, same, other}) == 2
    joined = optdyn.DASO(wait=0) + optdyn.Local()
    assert (joined.name, joined.by_section["daso"].wait) == ("daso+local", 0)


def test_joined_methods_have_each_their_own_numbers():
    method = optdyn.DiLoCo(period=2) + optdyn.AsyncLocalSGD(groups=2)
    cluster = optdyn.Cluster(nodes=2, devices_per_node=2)
    chosen = base(method=method, cluster=cluster)
    nodes, workers = chosen.methods.members
    assert (nodes.period, workers.period, workers.groups) == (2, 8, 2)
    keys = {"method.diloco.period": 2, "method.async_local_sgd.groups": 2}
    named = base(cluster=cluster).with_({"method.name": "diloco+async_local_sgd", **keys})
    assert named == chosen and keys.items() <= chosen.changed_keys().items()


def test_a_thing_has_one_name_and_an_importable_one_its_own():
    thing = object()
    assert in_memory.name_of(thing) == in_memory.name_of(thing)
    assert in_memory.name_of(optax.sgd) == f"{optax.sgd.__module__}:sgd"
    assert in_memory.name_of("mlp") == "mlp"
    made = [optdyn.Experiment(optimizer=optax.lion(rate)) for rate in (0.01, 0.01, 0.02)]
    assert len({experiment.optimizer.name for experiment in made}) == 3
    first, again, other = map(lookup.fingerprint, made)
    assert first == again != other and first.startswith("config.optimizer ")


def test_a_name_that_another_process_wrote_is_not_what_has_it_here():
    made = base(loss=lambda outputs, batch: outputs[:, 0])
    lookup.user_objects(made, lookup.MODEL)
    keys = json.loads(to_json(made.with_(code=lookup.fingerprint(made))))
    assert keys["loss"] == made.loss and read(keys).loss == made.loss
    with pytest.raises(ConfigError, match="a file runs no code by itself"):
        read(keys | {"code": "config.loss 0123456789ab"})


def test_what_is_made_again_alike_goes_on(tmp_path):
    cell = """
class Net(nn.Module):
    width: int = 4

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.Dense(self.width)(x))

rows = np.linspace(-1, 1, 60).reshape(20, 3)
given = {"x": rows, "label": (rows[:, 0] > 0).astype(int)}
made = dict(model=Net(), data=given, optimizer=optax.adam(0.01), loss=lambda o, b: o[:, 0] ** 2)
"""
    names = {"nn": nn, "np": np, "optax": optax, "__name__": "cells"}
    found = []
    for steps in (10, 20):
        exec(cell, names)
        made = optdyn.Experiment(**names["made"], batch_size=4, log_every=10, steps=steps)
        found.append(made.train(tmp_path / "run"))
    assert [len(run.log) for run in found] == [2, 3]
    for old, new, what in (
        ("= 4", "= 5", "config.model"),
        ("(nn.Dense", "(2 * nn.Dense", "config.model"),
        ("(-1", "(-2", "config.data"),
        ("0.01", "0.02", "config.optimizer"),
        ("** 2", "** 4", "config.loss"),
    ):
        exec(cell.replace(old, new), names)
        other = optdyn.Experiment(**names["made"], batch_size=4, log_every=10, steps=30)
        with pytest.raises(InputError, match=f"last started with another {what}; give") as caught:
            other.train(tmp_path / "run")
        assert "\n" not in str(caught.value)


def _of_pandas(array):
    return pd.Series(array) if array.ndim == 1 else pd.DataFrame(array)


def test_tables_of_pandas_are_the_data_that_they_hold():
    x = np.linspace(-1, 1, 60).reshape(20, 3)
    label = (x[:, 0] > 0).astype(int)
    names = [
        optdyn.Experiment(data={"x": table(rows), "label": table(label)}).data.name
        for rows in (x, 2 * x)
        for table in (np.asarray, _of_pandas, np.ndarray.tolist)
    ]
    assert len(set(names[:3])) == len(set(names[3:])) == 1 and names[0] != names[3]


def test_every_run_gives_its_parameters_also_the_mean_of_workers_without_a_server():
    chosen = base(method=optdyn.ADPSGD(groups=4), steps=20)
    run = chosen.train()
    loss = float(run.log["train_loss"].iloc[-1])  # of the mean, on the noiseless quadratic's data
    start = float(run.log["train_loss"].iloc[0])
    (params,) = jax.tree.leaves(run.params)
    assert params.shape == (6,) and loss < start
    again = base(method=optdyn.ADPSGD(groups=4), steps=20, log_every=10).train()
    np.testing.assert_array_equal(params, jax.tree.leaves(again.params)[0])


def test_a_run_that_diverges_is_infinite_and_named():
    """The loss at which others are compared is theirs, not the start of what blew up."""
    arms = {"good": base(), "bad": base(optimizer=optdyn.SGD(learning_rate=1e30))}
    found = optdyn.compare(arms, seeds=[0, 1])
    table, text = found.table(), str(found)
    good = [run.log["train_loss"].min() for run in found["good"].runs]
    assert found.target == max(good)
    assert table.loc["bad", ["updates", "seconds", "loss"]].tolist() == [np.inf] * 3
    assert table["diverged"].tolist() == [0, 2] and "2 of 2 runs of bad diverged" in text
    assert "nan" not in text
    lost = optdyn.compare({"bad": arms["bad"]}, seeds=[0])
    assert np.isnan(lost.target) and "1 of 1 runs of bad diverged" in str(lost)


def test_a_run_without_one_finite_loss_is_shown():
    run = base(loss=lambda outputs, batch: jnp.nan * outputs[:, 0]).train()
    assert run.diverged and "diverged after 0 updates" in repr(run)
    assert run.log["train_loss"].dtype == float and run.log["train_loss"].isna().all()


@pytest.mark.parametrize("name", methods.built_in())
def test_the_clock_of_every_method_needs_no_model_or_says_so(name):
    """Of one array it is that of the same bytes of a model; layers are not made up."""
    method = methods.load(name)(**({"groups": 2} if name in GROUPED else {}))
    cluster = optdyn.Cluster(nodes=2, bandwidth=1e6, latency=1e-3, service=optdyn.Constant())
    try:
        clock = optdyn.timeline(method, cluster, steps=20, update_bytes=4000)
    except ConfigError as error:
        assert name in LAYERED and "depend on the model" in str(error)
    else:
        seconds = clock.timeline.seconds
        assert name not in LAYERED and np.isfinite(seconds).all() and (np.diff(seconds) >= 0).all()


def test_a_clock_of_nodes_has_their_messages():
    """By hand: a ring of 4 sends 6 messages of a quarter of 4,000 bytes, after every 5 updates."""
    cluster = optdyn.Cluster(nodes=4, bandwidth=1e6, service=optdyn.Constant())
    free = optdyn.timeline(optdyn.ModelAveraging(period=5), cluster, steps=20)
    line = optdyn.timeline(optdyn.ModelAveraging(period=5), cluster, steps=20, update_bytes=4000)
    ring = 6 * 1000 / 1e6
    gap = line.timeline.seconds - free.timeline.seconds
    # float64 sums of seconds; the message that has no byte is made of one number.
    np.testing.assert_allclose(gap[4::5], ring * np.arange(1, 5), rtol=0, atol=1e-4)
    parts = optdyn.timeline(
        optdyn.DiLoCo(period=5, fragments=2), cluster, steps=20, update_bytes=4000
    )
    assert parts.timeline.seconds[-1] > free.timeline.seconds[-1]


def test_a_rate_that_only_optax_knows_is_refused_where_a_method_scales_by_it():
    for method in (optdyn.SlowMo(), optdyn.DeMo()):
        with pytest.raises(ConfigError, match=r"learning_rate = 0\.0: must be other than 0"):
            base(method=method, optimizer=optax.sgd(0.1)).train()
    kept = [
        base(method=optdyn.DeMo(signed=False), optimizer=of, steps=5).train().params
        for of in (optax.sgd(0.1), optdyn.SGD(learning_rate=0.1, momentum=0.0))
    ]
    for one, other in zip(*map(jax.tree.leaves, kept), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)  # float32, five updates


def test_a_label_that_no_output_is_for_is_refused():
    """Its cross-entropy would be NaN, and the run diverged without a word why."""
    x = np.zeros((16, 3), np.float32)
    values = {"model": nn.Sequential([nn.Dense(2)]), "optimizer": optax.sgd(0.1), "steps": 2}
    fits, other = (
        base(data={"x": x, "label": (np.arange(16) % 2 + first).astype(np.int32)}, **values)
        for first in (0, 5)
    )
    assert np.isfinite(fits.train().log["train_loss"]).all()
    with pytest.raises(ConfigError, match="has 2 outputs, and the data 7 classes"):
        other.train()


def test_numbers_of_numpy_and_jax_are_numbers():
    same = base(method=optdyn.Asynchronous(groups=4), batch_size=8)
    given = base(method=optdyn.Asynchronous(groups=np.int64(4)), batch_size=jnp.int32(8))
    assert given == same and type(given.batch_size) is int
    speeds = optdyn.Cluster(nodes=2, speeds=np.array([1.0, 0.5]), latency=np.float32(0.5))
    assert speeds == optdyn.Cluster(nodes=2, speeds=(1.0, 0.5), latency=0.5)
    with pytest.raises(ConfigError, match="must be a whole number"):
        optdyn.DiLoCo(period=np.float32(3.5))


def test_links_between_nodes_are_none_of_the_groups_inside():
    """A matrix of equal latencies is that latency, also where groups of a node are asynchronous."""
    method = optdyn.DiLoCo(period=4) + optdyn.Asynchronous(groups=2)
    cluster = optdyn.Cluster(nodes=2, devices_per_node=2)
    rows = cluster.with_(latencies=((0.0, 0.01), (0.01, 0.0)))
    lines = [
        base(method=method, cluster=of).timeline() for of in (rows, cluster.with_(latency=0.01))
    ]
    np.testing.assert_allclose(lines[0].seconds, lines[1].seconds, rtol=1e-12)  # float64 sums


def test_public_names_have_a_docstring_and_are_found():
    classes = {methods.load(name).__name__ for name in methods.built_in()}
    assert classes <= set(optdyn.__all__) <= set(dir(optdyn))
    for column in ("`worker`", "`seconds`", "`version`", "`control.*`"):
        assert column in optdyn.Trace.__doc__
    assert SHORTEST == FEWEST + 4  # the meter is not imported where keys are listed
    for name in optdyn.__all__:
        assert getattr(optdyn, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        optdyn.nosuch  # noqa: B018


def test_what_is_chosen_has_its_fields_in_its_signature_each_with_its_words():
    for kind in (optdyn.DiLoCo, optdyn.MLP, optdyn.Gamma, optdyn.Cluster, optdyn.AdamW):
        names = [name for name in kind.field_table() if name != "pieces"]
        assert set(names) <= set(inspect.signature(kind).parameters)
        page = pydoc.render_doc(kind, renderer=pydoc.plaintext).replace("|", " ")
        for name in names:
            about = kind.field_table()[name].metadata.get("about", "")
            assert " ".join(about.split()) in " ".join(page.split())


def test_an_experiment_prints_one_screen_of_what_differs():
    chosen = base(
        model=Line(), method=optdyn.DiLoCo(period=3) + optdyn.Asynchronous(groups=2), loss=jnp.sum
    )
    lines = str(chosen).splitlines()
    assert len(lines) < 24 and any("method.diloco.period" in line for line in lines)
    assert not any("in_memory" in line for line in lines)
    assert str(optdyn.Experiment()) == "Experiment()"


def test_what_is_hardly_meant_is_warned_of_at_the_users_line():
    doubtful = base(cluster=optdyn.Cluster(workers=4, absence=5.0), steps=20)
    for act in (lambda: doubtful.train(), lambda: optdyn.compare({"one": doubtful}, seeds=(0, 1))):
        with pytest.warns(UserWarning, match="cluster.absence = 5: ignored") as warned:
            act()
        assert [warning.filename for warning in warned] == [__file__]
    slow = base(method=optdyn.DiLoCo(period=30))  # of 60 updates, but for the comparison's own
    with pytest.warns(UserWarning, match="period = 30: more than config.steps = 20"):
        optdyn.compare({"one": slow}, steps=20, seeds=[0])
