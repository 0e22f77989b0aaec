"""A model's state, random numbers and averages of weights, under every method.

They are compared with loops of flax and optax themselves, with NumPy, or with the same run divided
in another way. The network is that of `tests/own/nets.py`.
"""

from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import optdyn as od
from optdyn.base import seeds
from optdyn.clock.timeline import Meeting, Shares, plan_of
from optdyn.core import Event, Rule
from optdyn.evidence import arms
from optdyn.evidence.trial import trial
from optdyn.methods import kept, pipeline
from optdyn.problem.models.adapters import from_moments, mean_of_rows, moments
from optdyn.problem.problem import STATE
from optdyn.train import trainer
from optdyn.train.loop import Hook
from optdyn.train.run import batches_of
from tests.methods.test_battery import CASES, NODES, assert_same
from tests.own import nets
from tests.train.runs import refusal
from tests.values import with_values

RUN = {
    **{"batch_size": 48, "steps": 10, "log_every": 1, "cluster.service.name": "constant"},
    **{"optimizer.learning_rate": 0.1, "optimizer.momentum": 0.5},
    **{"model.name": "tests.own.nets:make", "data.name": "tests.own.nets:data"},
}
CARRIED, LOCAL = {"evaluation.statistics": "carried"}, {"evaluation.statistics": "local"}
STILL = {"optimizer.learning_rate": 0.0}
FOUR = {"cluster.nodes": 4}
DRAWN = {"cluster.service.name": "exponential"}
GROUPS = {**FOUR, "method.name": "asynchronous", "method.groups": 4}
DILOCO = {**FOUR, "method.name": "diloco", "method.period": 4}
TOGETHER = {"model.norm_examples": 12}  # those of one worker of four


def chosen(*values):
    return with_values(od.Experiment(), RUN | {k: v for some in values for k, v in some.items()})


def battery(name, *values):
    own = {} if name in ("sync", "local") else dict(NODES)
    for part in name.split("+"):
        own |= CASES[part].values
    return chosen({"method.name": name}, own, *values)


class Watching(Hook):
    """Keeps the states at log points, and the losses of all batches."""

    def __init__(self):
        self.states, self.losses = [], []

    def chunk(self, chunk):
        self.run = chunk.run
        self.losses += chunk.infos.get("loss", np.zeros(0)).tolist()
        if chunk.row is not None:
            self.states.append(jax.device_get(chunk.full_state))

    def norms(self, t, row=...):
        """Returns running averages of the model at a log point, of all nodes or workers or one."""
        state = self.states[t]
        return norms(kept.model_state(getattr(state, "state", state)), row)


def norms(state, row=...):
    found = {name: state[name]["batch_stats"]["BatchNorm_0"] for name in ("first", "second")}
    return jax.tree.map(lambda leaf: np.asarray(leaf, float)[row], found)


@cache
def watched(config):
    hook = Watching()
    trained = config.train(hooks=[hook])
    assert trained.summary["status"] == "completed"
    return trained, hook


def union(norm):
    """Returns the mean and variance of all, from those of equal parts, (parts, ...)."""
    mean, square = norm["mean"].mean(0), (norm["var"] + norm["mean"] ** 2).mean(0)
    return {"mean": mean, "var": square - mean**2}


def unions(state):
    return {name: union(norm) for name, norm in state.items()}


def assert_near(one, other, relative=1e-6):
    """Within so much of an array's largest number, of which float32 rounds 6e-8."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=relative * max(np.abs(b).max(), 1e-30))


def forward(params, state, x, seed=None, decay=0.9):
    """Returns flax's own outputs and averages: in training with a seed, or in evaluation."""
    after = {}
    for number, (name, module) in enumerate(nets.make(nets.CLASSES, decay=decay)):
        mode = {} if isinstance(module, nn.Dense) else {"train": seed is not None}
        key = jax.random.fold_in(jax.random.key(0), 0 if seed is None else seed)
        more = {"rngs": {"dropout": jax.random.fold_in(key, number)}, "mutable": ["batch_stats"]}
        x, new = module.apply({"params": params[name], **state[name]}, x, **mode, **more)
        after[name] = dict(new)
    return x, after


def loss_of(outputs, label):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, label).mean()


# Training.


@pytest.mark.parametrize("name", [*CASES, "diloco+asynchronous", "diloco+elastic", "daso+local"])
def test_a_norm_and_dropout_are_trained_and_averages_are_none_of_training(name):
    """To half of log 5, the loss of who knows no more than that there are five classes.

    A norm over the batch does not read its averages: how they are had changes no parameter.
    """
    made = battery(name, {"steps": 80, "log_every": 80})
    found = made.train()
    for run in (found, made.with_(CARRIED).train(), made.with_(LOCAL).train()):
        assert run.log["train_loss"].iloc[-1] < np.log(nets.CLASSES) / 2
        assert_same(run.params, found.params)


def test_one_worker_is_flaxs_and_optaxs_own_loop():
    _, hook = watched(chosen({"steps": 50}, CARRIED))
    run, optimizer = hook.run, optax.sgd(0.1, 0.5)
    x, label = (run.data.train[name] for name in ("x", "label"))
    key = jax.random.fold_in(seeds.key(run.config.seed, "init"), 0)
    drawn = nets.Layer().init(key, x[:1], train=False)
    assert_same((run.params["first"], run.state["first"]), (drawn.pop("params"), drawn))

    @jax.jit
    def update(params, state, opt_state, x, label, seed):
        def loss(params):
            outputs, after = forward(params, state, x, seed)
            return loss_of(outputs, label), after

        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), state, opt_state, value

    params, state, opt_state = run.params, run.state, optimizer.init(run.params)
    for t, rows in enumerate(batches_of(run)(0, 50)):  # numbers of examples, and their seeds
        given = x[rows[:, 0]], label[rows[:, 0]], rows[0, 1]
        params, state, opt_state, value = update(params, state, opt_state, *given)
        assert_near((hook.states[t + 1].params, hook.losses[t]), (params, float(value)))
        assert_near(hook.norms(t + 1), norms(state))


# A state that is carried.


def batch_means(run):
    """Returns what the first norm sees of each batch at x_0."""
    dense = jax.device_get(run.params["first"]["Dense_0"])
    x = run.data.train["x"][batches_of(run)(0, run.config.steps)[..., 0]].astype(float)
    return (x @ dense["kernel"] + dense["bias"]).mean(axis=1)


def test_carried_averages_of_many_groups_do_not_swing_and_increments_would():
    """17 groups in turn, decay 0.9, nothing learned: they are the average over the arrivals.

    The naive way adds "new - read" to the newest: r_{t+1} = r_t + 0.1 (m - r_{t-16}).
    """
    groups = {"method.name": "asynchronous", "method.groups": 17, "cluster.nodes": 17}
    _, hook = watched(chosen(groups, STILL, CARRIED, {"steps": 800, "log_every": 100}))
    run, average, naive = hook.run, [np.zeros(8)], [np.zeros(8)]
    for t, mean in enumerate(batch_means(run)):
        average.append(0.9 * average[-1] + 0.1 * mean)
        naive.append(naive[-1] + 0.1 * (mean - naive[t - run.timeline.staleness[t]]))
    found = np.array([hook.norms(i)["first"]["mean"] for i in range(9)])
    assert_near(found, np.array(average[::100]), 1e-5)  # of ten roundings at a time
    assert set(run.timeline.staleness[17:].tolist()) == {16}
    grows = np.abs(np.roots([1, -1, *[0] * 15, 0.1])).max()  # of z^17 = z^16 - 0.1, an update
    spread = [np.linalg.norm(np.std(naive[i : i + 200], axis=0)) for i in (400, 600)]
    assert grows > 1 and spread[1] > 1.2 * spread[0]
    assert spread[1] > 5 * np.linalg.norm(np.std(average[400:], axis=0))


VARIANCES = {  # beside the means, as libraries and their readers call them
    "invariant": {"mean": "mean", "var": "var"},
    "bn/~/mean_ema": {"average": "mean", "counter": "count"},
    "bn/~/var_ema": {"average": "var", "counter": "count"},
    "norm": {"moving_mean": "mean", "moving_variance": "var"},
    "var": {"running_mean": "mean", "running_var": "var", "variational": "max"},
}


def count(x, axis=0):
    return 46_400 + int(1e4 * abs(np.sin(x[0, 0])))


@pytest.mark.parametrize("seed", range(6))
def test_the_mean_of_states_is_that_of_the_union(seed):
    """Also of years, whose squares float32 has no room for, and of counters, which have none."""
    rng, far = np.random.default_rng(seed), 2000.0 * (seed % 2)
    parts, n, d = rng.integers(1, 6), rng.integers(2, 9), rng.integers(1, 5)
    rows = rng.normal(rng.normal(far, 1, (parts, 1, d)), rng.uniform(0.1, 3), (parts, n, d))
    measures = {"mean": np.mean, "var": np.var, "max": np.max, "count": count}

    def state(x):
        types = {"count": np.int32}
        found = {k: np.asarray(f(x, axis=0), types.get(k, np.float32)) for k, f in measures.items()}
        return {name: {k: found[v] for k, v in norm.items()} for name, norm in VARIANCES.items()}

    states, whole = [state(x) for x in rows], state(rows.reshape(-1, d))
    whole["var"]["variational"] = np.float32(rows.max(1).mean(0))
    for name in ("mean", "var"):
        whole[f"bn/~/{name}_ema"]["counter"] = np.int32(np.round(np.mean([*map(count, rows)])))
    near = jax.tree.map(lambda leaf: leaf + np.asarray(leaf * 1e-4, leaf.dtype), states[0])
    total = jax.tree.map(
        lambda *leaves: jnp.mean(jnp.stack(leaves), 0), *(moments(one, near) for one in states)
    )
    rounded = 6e-8 * far  # of a mean; a variance has ten times that, as means are 3 apart
    for found in (
        from_moments(total, near, states[0]),
        mean_of_rows(jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)),
    ):
        for name, norm in VARIANCES.items():
            for k, of in norm.items():
                np.testing.assert_allclose(found[name][k], whole[name][k], 1e-5, 10 * rounded)
                assert found[name][k].dtype == whole[name][k].dtype, of


def test_nodes_states_meet_in_the_plain_mean_and_through_no_outer_momentum():
    """Every 4 updates; with 'local' never."""
    meeting, alone = (watched(chosen(DILOCO, which))[1] for which in (CARRIED, LOCAL))
    for t in range(4):
        assert_same(meeting.norms(t), alone.norms(t))
    for node in range(4):
        assert_near(meeting.norms(4, node), unions(alone.norms(4)))
    for hook, t in ((meeting, 3), (meeting, 5), (alone, 10)):
        assert np.ptp(hook.norms(t)["first"]["mean"], axis=0).min() > 0
    # An average is linear in means, so theirs does not depend on whether they met in between.
    mean, expected = (unions(hook.norms(8))["first"]["mean"] for hook in (meeting, alone))
    assert_near(mean, expected)


def test_only_nodes_that_are_there_are_in_the_mean_and_in_a_graph_none():
    rng, flag = np.random.default_rng(0), jnp.array([True])
    norm = {"mean": rng.normal(size=(4, 3)), "var": rng.uniform(1, 2, (4, 3))}
    norm = jax.tree.map(np.float32, norm)
    rule = kept.meeting(Rule(lambda params: params, lambda state, event, batch: (state, {})))

    def after(**plan):
        event = Event(Meeting(**{"send": flag, "receive": flag, "waited": 0} | plan), {})
        nodes = jax.vmap(lambda x: rule.step(kept.Carrying((), x), event, ())[0], axis_name="node")
        return nodes(norm).carried

    for rows, present in (([0, 1, 2, 3], None), ([0, 2], jnp.array([2.0, 0.0, 2.0, 0.0]))):
        mean = union({name: leaf[rows] for name, leaf in norm.items()})
        expected = {name: np.stack([leaf] * 4) for name, leaf in mean.items()}
        assert_near(after(present=present), expected)
    assert_same(after(receive=~flag), norm)
    assert_same(after(to=np.tile(np.arange(4)[:, None], 2)), norm)


def test_states_of_a_graphs_nodes_and_of_workers_stay_with_them():
    gossip = battery("gossip", {"method.graph": "ring"})
    one, other = (watched(gossip.with_(which))[1] for which in (CARRIED, LOCAL))
    for t in range(11):
        assert_same(one.norms(t), other.norms(t))
    assert np.ptp(one.norms(10)["first"]["mean"], axis=0).min() > 0
    trained, hook = watched(battery("elastic", CARRIED, DRAWN, STILL))
    means = batch_means(hook.run)
    for t, worker in enumerate(hook.run.timeline.worker):
        assert_same(hook.norms(t + 1, 1 - worker), hook.norms(t, 1 - worker))
        old, new = (hook.norms(i, worker)["first"]["mean"] for i in (t, t + 1))
        assert_near(new, 0.9 * old + 0.1 * means[t])
    assert_near(norms(trained.variables[""][STATE]), unions(hook.norms(10)))  # what is evaluated


@pytest.mark.parametrize("kind", ["local", *pipeline.KINDS])
def test_a_state_is_of_the_forward_pass_of_gradients_in_pieces(kind):
    """At x_t with local losses, and in a pipeline at what a stage reads; from its newest."""
    method = {"method.name": "stale_pipeline", "method.pipeline": kind, "cluster.nodes": 2}
    method |= {"method.micro_batches": 2, "model.norm_examples": 48}
    _, hook = watched(chosen({"method.name": "local"} if kind == "local" else method, CARRIED))
    run = hook.run
    for t, rows in enumerate(batches_of(run)(0, 10)):
        read = dict(hook.states[t].params)
        stale = () if kind == "local" else run.timeline.staleness[t]
        for name, late in zip(read, stale, strict=False):
            before, old = (hook.states[max(t - late - i, 0)].params[name] for i in (1, 0))
            reach = 0.5 - 0.5 ** (late + 1.0) if kind == "predict" else 0.0
            read[name] = jax.tree.map(lambda x, y, c=reach: x + 2 * c * (x - y), old, before)
        state = kept.model_state(hook.states[t])
        _, after = forward(read, state, run.data.train["x"][rows[:, 0]], rows[0, 1])
        assert_near(hook.norms(t + 1), norms(after))


def test_shares_of_a_batch_give_the_mean_of_their_micro_batches_states():
    """Each example counts once, with the state after its micro-batch; nothing is learned."""
    speeds = {"method.name": "dynamic_batch", "cluster.speeds": (1.0, 2.0, 3.0, 4.0), "steps": 20}
    _, hook = watched(chosen(FOUR, STILL, speeds, CARRIED))
    run, state = hook.run, kept.model_state(hook.states[19])
    shares, total = np.asarray(plan_of(run.timeline, Shares).shares)[19], 0.0
    for share, rows in zip(shares, np.split(batches_of(run)(19, 20)[0], 4), strict=True):
        for begin in range(0, share, 8):
            at = max(min(begin, share - 8), 0)
            x, seed = run.data.train["x"][rows[at : at + 8, 0]], rows[at, 1]
            _, after = forward(run.params, state, x, seed)
            total += min(share - begin, 8) * norms(after)["first"]["mean"]
    assert_near(hook.norms(20)["first"]["mean"], total / 48)


# Random numbers, and how many examples are normalized together.


def test_a_mask_is_of_its_batch_and_of_nothing_else():
    """Nothing is learned, so that a loss is what a batch and its masks make of it."""
    still = {**STILL, **TOGETHER, "model.options.rate": 0.5}
    two, elastic = {"method.groups": 2}, {"method.name": "elastic"}
    methods = FOUR, GROUPS | two, GROUPS | DRAWN, GROUPS | elastic, DILOCO, CARRIED
    run, expected = trainer.prepare(chosen(still)), watched(chosen(still))[1].losses
    for values in methods:
        found = watched(chosen(still, values))[1].losses
        np.testing.assert_allclose(found, expected, rtol=2e-6)  # means in another order
    problem, rows = run.program.problem, jnp.asarray(batches_of(run)(0, 2))
    # The same twelve examples four times, with the seeds of two batches.
    given = [rows[i].at[:, 0].set(jnp.tile(jnp.arange(12), 4)) for i in (0, 1, 0)]
    batches = [problem.batch(run.data.train, numbers) for numbers in given]
    first, other, again = (np.asarray(problem.outputs(run.params, batch)) for batch in batches)
    np.testing.assert_array_equal(first, again)
    assert len({part.tobytes() for y in (first, other) for part in np.split(y, 4)}) == 8


def test_augmentation_and_dropout_share_the_seeds_of_examples():
    still = {**STILL, **TOGETHER, "data.options.images": True, "data.augment": "flip"}
    one, other = (watched(chosen(still, values)) for values in ({}, GROUPS | DRAWN))
    np.testing.assert_allclose(one[1].losses, other[1].losses, rtol=2e-6)  # as above
    drawn, augmented, plain = (
        batches_of(trainer.prepare(chosen(values)))(0, 3)
        for values in (still, still | {"model.options.rate": 0.0}, {"model.options.rate": 0.0})
    )
    np.testing.assert_array_equal(drawn, augmented)
    np.testing.assert_array_equal(drawn[..., 0], plain)


def test_with_the_same_examples_together_methods_minimize_the_same_function():
    """And carry the same averages; without them fixed, they are those of a pass."""
    parts = {"parallel.accumulation": 4}
    nodes = {**DILOCO, "cluster.nodes": 2, "cluster.devices_per_node": 2, "method.period": 1}
    nodes |= {"method.outer_learning_rate": 1.0, "method.outer_momentum": 0.0}
    equal = {"method.name": "dynamic_batch", "method.adapt": False, "method.micro_batch": 12}
    whole = watched(chosen(TOGETHER, CARRIED))[0].variables[""]
    for values in (FOUR, parts | TOGETHER, GROUPS | {"method.groups": 1}, nodes, FOUR | equal):
        found = watched(chosen(values, CARRIED))[0].variables[""]
        # Sums of 48 in another order, an update, of ten; a bias before a norm has only these.
        jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=5e-6), found, whole)
    small, same, large = (watched(chosen(v))[0].params for v in (parts, parts | TOGETHER, {}))
    assert_same(small, same)
    gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), small, large)
    assert max(jax.tree.leaves(gaps)) > 1e-2


def test_a_norm_over_a_micro_batch_is_of_the_workers_own_examples():
    """Not of copies that fill up the longest share: its last micro-batch begins earlier."""
    speeds = {"method.name": "dynamic_batch", "cluster.speeds": (1.0, 2.0, 3.0, 4.0), "steps": 20}
    _, hook = watched(chosen(FOUR, STILL, speeds))
    run, problem = hook.run, hook.run.program.problem
    shares, total = np.asarray(plan_of(run.timeline, Shares).shares)[19], 0.0
    for share, rows in zip(shares, np.split(batches_of(run)(19, 20)[0], 4), strict=True):
        for begin in range(0, share, 8):
            at = max(min(begin, share - 8), 0)
            batch = problem.batch(run.data.train, jnp.asarray(rows[at : at + 8]))
            total += problem.each_loss(run.params, batch)[begin - at : share - at].sum()
    assert hook.losses[19] == pytest.approx(float(total) / 48, rel=1e-5)  # float32
    assert set(shares % 8) != {0}


def layers(more):
    norm = nn.GroupNorm(None, group_size=1, reduction_axes=(0, 1))  # without running averages
    return [nn.Dense(8), norm, nn.relu, more, nn.Dense(nets.CLASSES)]


class WithMode(nn.Sequential):
    def __call__(self, x, deterministic):
        return super().__call__(x)


@pytest.mark.parametrize("name", ["sync", "asynchronous", "diloco"])
def test_rate_0_and_no_averages_are_the_floats_of_a_plain_module(name):
    nothing = nn.Dropout(0.0, deterministic=False)
    modules = nn.Sequential(layers(nn.relu)), WithMode(layers(nn.relu)), WithMode(layers(nothing))
    first, *others = (battery(name).with_(model=net).train().params for net in modules)
    for params in others:
        assert_same(params, first)


# What is evaluated, and given back.


def recomputed(run, params):
    """Returns averages of norms over the run's batches, of E x and E x^2, by flax."""
    blank = jax.tree.map(jnp.zeros_like, run.program.problem.initial_state(seeds.key(0, ""), ROWS))
    batches = enumerate(run.norm_batches["x"])
    found = [forward(params, blank, x, seed, decay=0.0)[1] for seed, x in batches]
    means = unions(norms(jax.tree.map(lambda *leaves: np.stack(leaves), *found)))
    return blank | {k: {"batch_stats": {"BatchNorm_0": norm}} for k, norm in means.items()}


ROWS = nets.data()["train"]


@pytest.mark.parametrize("kind", ["ema", "lawa"])
@pytest.mark.parametrize("values", [{}, GROUPS, DILOCO], ids=["sync", "asynchronous", "diloco"])
def test_averages_are_those_of_the_trajectory_with_norms_of_their_own(values, kind):
    more = {"evaluation.average": kind, "evaluation.decay": 0.7, "evaluation.last": 4}
    trained, hook = watched(chosen(values, more, {"evaluation.batches": 5}))
    run, xs, prefix = hook.run, [state.params for state in hook.states], f"{kind}_"
    for t in range(1, len(xs)):
        weights = 0.7 ** np.arange(t)[::-1] if kind == "ema" else np.ones(min(t, 4))
        mean = partial(np.average, axis=0, weights=weights)
        last = xs[t + 1 - len(weights) : t + 1]
        average = jax.tree.map(lambda *leaves, mean=mean: mean(np.float64(leaves)), *last)
        found = run.evaluated(hook.states[t])
        assert_near({k: v for k, v in found[prefix].items() if k != STATE}, average)
        for name, params in {prefix: average, "": xs[t]}.items():
            logged = trained.log[f"{name}train_loss"].iloc[t]
            y, _ = forward(params, recomputed(run, params), ROWS["x"])
            # The decay is told from two steps of an average: 1e-7 over 1 - 0.9.
            assert logged == pytest.approx(float(loss_of(y, ROWS["label"])), rel=1e-5)
    first = trained.log.iloc[0]
    assert first[f"{prefix}train_loss"] == first["train_loss"]


@pytest.mark.parametrize("statistics", ["recomputed", "carried"])
@pytest.mark.parametrize("net", [nets.Net, nets.make])
def test_the_module_itself_has_the_logged_loss_and_accuracy(tmp_path, net, statistics):
    more = {"evaluation.statistics": statistics, "evaluation.average": "ema"}
    made = battery("diloco", more, {"evaluation.decay": 0.5, "log_every": 10}).with_(model=net)
    rows, runs = nets.data()["test"], [made.train(), made.train(tmp_path / "run")]
    assert runs[0].log["test_loss"].equals(runs[1].log["test_loss"])
    for trained in runs:
        for prefix, logged in {"": "test_", "ema_": "ema_test_"}.items():
            found, last = trained.restore(average=bool(prefix)), trained.log.iloc[-1]
            if net is nets.Net:
                y = nets.Net(nets.CLASSES).apply(found, rows["x"], train=False)
            else:
                y, _ = forward({k: v.pop("params") for k, v in found.items()}, found, rows["x"])
            right, loss = jnp.mean(y.argmax(axis=-1) == rows["label"]), loss_of(y, rows["label"])
            assert last[f"{logged}accuracy"] == pytest.approx(float(right), abs=1e-6)  # float32
            assert last[f"{logged}loss"] == pytest.approx(float(loss), rel=1e-5)


# Refusals.


MODULE = nnx.Sequential(  # with a stream of random numbers of its own
    nnx.Linear(nets.INPUTS, nets.CLASSES, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(0))
)
GRAPH, PARAMS, REST = nnx.split(MODULE, nnx.Param, ...)
SPECTRAL = nn.SpectralNorm(nn.Dense(nets.CLASSES))


class Batched(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(nets.CLASSES)(nn.BatchNorm(use_running_average=False)(x))


class Told(nn.Module):
    @nn.compact
    def __call__(self, x, is_train=False):
        return nn.Dense(nets.CLASSES)(nn.Dropout(0.5, deterministic=not is_train)(x))


class Asked(nn.Module):
    @nn.compact
    def __call__(self, x, mode):
        return nn.Dense(nets.CLASSES)(x)


class Drawing(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(nets.CLASSES)(nn.Dropout(0.5, deterministic=False)(x))


class Later(nn.Module):
    """A layer joins after some updates."""

    @nn.compact
    def __call__(self, x, train: bool):
        count = self.variable("counter", "updates", jnp.int32, 0)
        on = jnp.where(count.value < 5, 0.0, 1.0)
        count.value += train
        return nn.Dense(nets.CLASSES)(x[:, :1]) + on * nn.Dense(nets.CLASSES)(x)


class Bounded(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.relu(nn.SpectralNorm(nn.Dense(nets.CLASSES))(x, update_stats=train))


def spectral(classes, last=False):
    out = Bounded() if last else nn.Dense(classes)
    return [("first", Bounded()), ("second", Bounded()), ("out", out)]


def start(key, x):
    return nnx.to_pure_dict(PARAMS)


def cloned(params, x, train):
    net = nnx.clone(MODULE)
    nnx.update(net, params)
    net.train() if train else net.eval()
    return net(x)


def always(params, x, key, train):
    key = key if train else jax.random.key(0)
    return cloned(params, x * jax.random.bernoulli(key, 0.5, x.shape), False)


REFUSED = {
    "with the key that it is given, in training; of a key of its own all updates would have the "
    "same. Of a pair": {"model": (start, cloned)},
    "cannot be used": {"model": (start, lambda params, x: nnx.merge(GRAPH, params, REST)(x))},
    "In evaluation it must draw none": {"model": (start, always)},
    "= 'recomputed': must be 'carried': in training this model reads": {"model": SPECTRAL},
    "must be 'carried': in training this model reads its state": {"model": Later()},
    "model.norm_examples = 7: must divide 48": {"model.norm_examples": 7},
    "model.norm_examples = 24: must divide 12": {"parallel.accumulation": 4}
    | {"model.norm_examples": 24},
    "model.norm_examples = 0: must be given, as": {"cluster.nodes": 5},
    "must be evaluated example by example, with its running": {"model": Batched()},
    "what tells training from evaluation is one of train": {"model": Told()},
    "it is called with its input and, if it has it, train": {"model": Asked()},
    "in evaluation nothing is drawn, which an argument tells": {"model": Drawing()},
    "model.norm_examples = 16: must divide config.method.micro_batch = 8": {
        **{"model.norm_examples": 16, "method.name": "dynamic_batch"}
    },
    "model.norm_examples = 0: must be given, and at most 6, an equal share of": {
        **FOUR,
        **{"batch_size": 24, "method.name": "dynamic_batch"},
    },
    "model.norm_examples = 0: must be 2 or more: of config.batch_size = 4": {
        **FOUR,
        "batch_size": 4,
    },
    "must be a model whose last block has no state": CARRIED
    | {"method.name": "local", "model.name": f"{__name__}:spectral", "model.options.last": True},
}


@pytest.mark.parametrize("words", REFUSED)
def test_models_that_would_be_trained_wrongly_are_refused_in_a_line(words):
    assert words in refusal(chosen().with_(REFUSED[words]).train)


def test_what_reads_its_state_is_trained_where_it_is_carried():
    """And alike by methods that take the gradient in pieces, where these make one whole."""
    trained = chosen(CARRIED).with_(model=SPECTRAL).train()
    assert trained.log["train_loss"].iloc[-1] < 0.8 * trained.log["train_loss"].iloc[0]
    assert "needs config.evaluation.average" in refusal(trained.restore, True)
    pieces = {"method.micro_batch": 48}, {"method.variant": "backprop"}, {}
    names = "dynamic_batch", "local", "stale_pipeline"
    one = chosen(CARRIED, {"model.name": f"{__name__}:spectral"})
    expected = one.train().variables[""]
    for name, values in zip(names, pieces, strict=True):
        found = one.with_({"method.name": name} | values).train().variables[""]
        assert_near(found, expected)


def test_a_trial_is_judged_by_the_average_whose_decay_an_arm_may_tune():
    config = chosen(DILOCO, {"evaluation.average": "ema", "steps": 20, "log_every": 20})
    arm = arms.Arm(config, {"evaluation.decay": arms.momenta}, {"evaluation.decay": 0})
    point = arms.point(arm, (arms.rung(arms.momenta, 0.8),))
    curve = trial(config.with_(point))
    last = od.Experiment().with_(config.with_(point).to_dict()).train().log.iloc[-1]
    assert point["evaluation.decay"] == pytest.approx(0.8, abs=0.1) and last["step"] == 20
    assert curve.losses[-1] == pytest.approx(last["ema_train_loss"], rel=1e-6)
    assert curve.test["accuracy"] == last["ema_test_accuracy"]
    assert last["ema_train_loss"] != pytest.approx(last["train_loss"], rel=1e-3)


def test_a_network_computes_in_bfloat16_and_keeps_float32():
    half, whole = (
        watched(chosen({"model.compute_dtype": dtype}, CARRIED))[0]
        for dtype in ("bfloat16", "float32")
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(half.variables)} == {np.dtype("float32")}
    losses = [run.log["train_loss"].iloc[-1] for run in (half, whole)]
    assert 0 < abs(losses[0] / losses[1] - 1) < 0.02  # bfloat16 rounds 0.4 % of an activation
