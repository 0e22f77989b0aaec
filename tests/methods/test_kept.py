"""A model's state, random numbers and averages of weights, under every method.

What they are compared with is flax's and optax's own loop, NumPy, or the same run divided in
another way. Networks are those of `tests/own/nets.py`.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optdyn as od
from optdyn.base import seeds
from optdyn.clock.timeline import Meeting
from optdyn.core import Event, Rule
from optdyn.methods import kept
from optdyn.problem.models.adapters import from_moments, moments
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
NET = {"model.name": "tests.own.nets:net"}
CARRIED = {"evaluation.statistics": "carried"}
LOCAL = {"evaluation.statistics": "local"}
FOUR = {"cluster.nodes": 4}
DILOCO = {"method.name": "diloco", "method.period": 4, **FOUR}


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


def watched(config):
    hook = Watching()
    trained = config.train(hooks=[hook])
    assert trained.summary["status"] == "completed"
    return trained, hook


def carried_of(hook):
    """Returns the model's state at all log points, rows of nodes if these have each one."""
    return [kept.model_state(getattr(state, "state", state)) for state in hook.states]


def assert_near(one, other, relative):
    """Within so much of the largest number of an array."""
    assert jax.tree.structure(one) == jax.tree.structure(other)

    def near(a, b):
        np.testing.assert_allclose(a, b, rtol=0, atol=relative * max(np.abs(b).max(), 1e-30))

    jax.tree.map(near, one, other)


# Every method.


@pytest.mark.parametrize("name", [*CASES, "diloco+asynchronous", "diloco+elastic", "daso+local"])
def test_a_norm_and_dropout_are_trained_and_averages_are_none_of_training(name):
    """Half of log 5, the loss of who knows only that there are five classes.

    A norm over the batch does not read its averages: how they are had changes no parameter.
    """
    made = battery(name, {"steps": 80, "log_every": 80})
    found = made.train()
    apart = {"dynamic_batch", "stale_pipeline", "local"} & set(name.split("+"))
    if apart:
        assert "'recomputed' with config.method.name" in refusal(made.with_(CARRIED).train)
    others = [] if apart else [made.with_(CARRIED).train(), made.with_(LOCAL).train()]
    for run in (found, *others):
        assert run.log["train_loss"].iloc[-1] < np.log(nets.CLASSES) / 2
        assert_same(run.params, found.params)


# One worker.


def by_linen(run, modules, steps):
    """Returns flax's and optax's own loop over a run's batches: parameters, averages, losses."""
    optimizer, data = optax.sgd(0.1, 0.5), run.data.train

    @jax.jit
    def update(params, stats, opt_state, x, label, seed):
        key = jax.random.fold_in(jax.random.key(0), seed)

        def loss(params):
            h, after = x, {}
            for number, (name, module) in enumerate(modules):
                more = {} if isinstance(module, nn.Dense) else {"train": True}
                rngs = {"dropout": jax.random.fold_in(key, number)}
                variables = {"params": params[name], **stats[name]}
                h, new = module.apply(variables, h, rngs=rngs, mutable=["batch_stats"], **more)
                after[name] = dict(new)
            return optax.softmax_cross_entropy_with_integer_labels(h, label).mean(), after

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), stats, opt_state, value

    params, stats, found = run.params, run.state, []
    opt_state = optimizer.init(params)
    for rows in batches_of(run)(0, steps):  # numbers of examples, and their seeds
        x, label = (data[name][rows[:, 0]] for name in ("x", "label"))
        *now, value = update(params, stats, opt_state, x, label, rows[0, 1])
        params, stats, opt_state = now
        found.append((params, stats, float(value)))
    return found


@pytest.mark.parametrize("name", ["net", "make"])
def test_one_worker_is_the_librarys_own_loop(name):
    steps = 50
    made = chosen({"model.name": f"tests.own.nets:{name}", "steps": steps}, CARRIED)
    trained, hook = watched(made)
    modules = nets.make(nets.CLASSES) if name == "make" else [("model", nets.Net())]
    key, x = seeds.key(made.seed, "init"), hook.run.data.train["x"][:1]
    module = modules[0][1]
    drawn = module.init(jax.random.fold_in(key, 0), x, train=False)
    assert_same(hook.run.params[modules[0][0]], drawn["params"])
    assert_same(hook.run.state[modules[0][0]], {"batch_stats": drawn["batch_stats"]})
    expected = by_linen(hook.run, modules, steps)
    states = zip(hook.states[1:], carried_of(hook)[1:], hook.losses, strict=True)
    for (state, carried, loss), theirs in zip(states, expected, strict=True):
        # float32, whose rounding is 1e-7 of a number
        assert_near((state.params, carried, loss), theirs, 1e-6)
    if name == "net":  # and what is logged is the module's own evaluation
        params, stats, _ = expected[-1]
        data = hook.run.data.train
        y = module.apply({"params": params["model"], **stats["model"]}, data["x"], train=False)
        loss = optax.softmax_cross_entropy_with_integer_labels(y, data["label"]).mean()
        assert trained.log["train_loss"].iloc[-1] == pytest.approx(float(loss), rel=1e-5)


# What carries a state.


def test_carried_averages_of_many_groups_do_not_swing_and_increments_would():
    """17 groups in turn: each reads what 16 updates have gone over since, decay 0.9, no learning.

    The naive way adds "new - read" to the newest: r += 0.1 (m - r_16 updates ago), which diverges.
    """
    groups = {"method.name": "asynchronous", "method.groups": 17, "cluster.nodes": 17}
    still = {"optimizer.learning_rate": 0.0, "steps": 800, "log_every": 100}
    _, hook = watched(chosen(groups, still, CARRIED))
    run = hook.run
    assert set(run.timeline.staleness[17:].tolist()) == {16}
    dense = jax.device_get(run.params["first"]["Dense_0"])
    x = run.data.train["x"][batches_of(run)(0, 800)[..., 0]].astype(float)
    batch_means = (x @ dense["kernel"] + dense["bias"]).mean(axis=1)
    average, naive = [np.zeros(8)], [np.zeros(8)]
    for t, mean in enumerate(batch_means):
        average.append(0.9 * average[-1] + 0.1 * mean)
        naive.append(naive[-1] + 0.1 * (mean - naive[t - run.timeline.staleness[t]]))
    found = [s["first"]["batch_stats"]["BatchNorm_0"]["mean"] for s in carried_of(hook)]
    # float32: ten roundings are remembered at a time, of 1e-7 each
    assert_near(np.array(found), np.array(average[::100]), 1e-5)
    settled = np.std(average[400:], axis=0)
    assert (np.std(naive[400:], axis=0) > 5 * settled).all()
    grows = np.abs(np.roots([1, -1, *[0] * 15, 0.1])).max()  # of z^17 = z^16 - 0.1, an update
    widths = [np.linalg.norm(np.std(naive[i : i + 200], axis=0)) for i in (400, 600)]
    assert grows > 1 and widths[1] > 1.2 * widths[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_mean_of_states_is_that_of_the_union(seed):
    rng = np.random.default_rng(seed)
    parts, n, d = rng.integers(1, 6), rng.integers(2, 9), rng.integers(1, 5)
    rows = rng.normal(rng.normal(size=d), rng.uniform(0.1, 3), (parts, n, d)).astype(np.float32)
    rows += rng.normal(size=(parts, 1, d)).astype(np.float32)  # means of parts differ
    states = [
        {"norm": {"mean": x.mean(0), "var": x.var(0)}, "steps": jnp.int32(7), "scale": x.max(0)}
        for x in rows
    ]
    total = jax.tree.map(lambda *leaves: jnp.mean(jnp.stack(leaves), 0), *map(moments, states))
    found = from_moments(total, states[0])
    union = rows.reshape(-1, d)
    expected = {"mean": union.mean(0), "var": union.var(0)}
    # E x^2 - (E x)^2 of float32, where E x^2 is up to a hundred times the variance
    assert_near(found["norm"], expected, 1e-5)
    assert found["steps"] == 7 and found["steps"].dtype == jnp.int32
    np.testing.assert_allclose(found["scale"], rows.max(1).mean(0), rtol=1e-6)


def mean_of_rows(state, rows=slice(None)):
    """Returns NumPy's mean of nodes' batch statistics, of x and x^2, (nodes, ...) -> (...)."""

    def mean(norm):
        first, square = norm["mean"][rows], norm["var"][rows] + norm["mean"][rows] ** 2
        return {"mean": first.mean(0), "var": square.mean(0) - first.mean(0) ** 2}

    norms = {name: block.get("batch_stats", {}) for name, block in state.items()}
    return {name: {k: mean(v) for k, v in norm.items()} for name, norm in norms.items()}


def stats(state, row=slice(None)):
    norms = {name: block.get("batch_stats", {}) for name, block in state.items()}
    return jax.tree.map(lambda leaf: leaf[row], norms)


def test_nodes_states_meet_in_the_plain_mean_and_through_no_outer_momentum():
    """Every 4 updates; alone they stay apart. Between meetings they are each node's own."""
    carried, alone = (carried_of(watched(chosen(DILOCO, which))[1]) for which in (CARRIED, LOCAL))
    for t in range(4):
        assert_same(carried[t], alone[t])
    assert np.ptp(alone[4]["first"]["batch_stats"]["BatchNorm_0"]["mean"], axis=0).min() > 0
    expected = mean_of_rows(alone[4])
    for node in range(4):
        assert_near(stats(carried[4], node), expected, 1e-6)  # float32
    assert np.ptp(carried[5]["first"]["batch_stats"]["BatchNorm_0"]["mean"], axis=0).min() > 0
    # Averages of means are linear: whether they meet in between does not change their mean.
    later = [mean_of_rows(states[8])["first"]["BatchNorm_0"]["mean"] for states in (carried, alone)]
    assert_near(*later, 1e-6)


def test_only_nodes_that_are_there_are_in_the_mean_and_neighbours_in_a_graph_have_none():
    rng = np.random.default_rng(0)
    norm = {"mean": rng.normal(size=(4, 3)), "var": rng.uniform(1, 2, (4, 3))}
    state = {"first": {"batch_stats": {"norm": jax.tree.map(np.float32, norm)}}}
    flag, two = jnp.array([True]), jnp.array([2.0, 0.0, 2.0, 0.0])
    rule = kept.meeting(Rule(lambda params: params, lambda state, event, batch: (state, {})))

    def after(**plan):
        plan = Meeting(**{"send": flag, "receive": flag, "waited": np.zeros(1, int)} | plan)
        step = partial(rule.step, event=Event(plan, {}), batch=())
        found = jax.vmap(lambda carried: step(kept.Carrying((), carried))[0], axis_name="node")
        return found(state).carried

    for present, rows in ((None, slice(None)), (two, [0, 2])):
        for node in range(4):
            found = stats(after(present=present), node)
            assert_near(found, mean_of_rows(state, rows), 1e-6)  # float32
    assert_same(after(receive=~flag), state)
    assert_same(after(to=np.tile(np.arange(4)[:, None], 2)), state)


def test_states_of_a_graphs_nodes_and_of_workers_stay_with_them():
    gossip = battery("gossip", {"method.graph": "ring"})
    carried, alone = (carried_of(watched(gossip.with_(which))[1]) for which in (CARRIED, LOCAL))
    for one, other in zip(carried, alone, strict=True):
        assert_same(one, other)
    assert np.ptp(carried[-1]["first"]["batch_stats"]["BatchNorm_0"]["mean"], axis=0).min() > 0
    trained, hook = watched(battery("elastic", CARRIED, {"cluster.service.name": "exponential"}))
    rows = carried_of(hook)
    for t, worker in enumerate(hook.run.timeline.worker):
        assert_same(stats(rows[t + 1], 1 - worker), stats(rows[t], 1 - worker))
        one, other = (stats(rows[i], worker)["first"]["BatchNorm_0"]["mean"] for i in (t, t + 1))
        assert (one != other).all()
    # What is evaluated is their mean.
    assert_near(stats(trained.variables[""][STATE]), mean_of_rows(rows[-1]), 1e-6)


# Random numbers.

METHODS = {
    "sync": {},
    "four workers": FOUR,
    "two groups": {**FOUR, "method.name": "asynchronous", "method.groups": 2},
    "four groups, drawn": {**FOUR, "method.name": "asynchronous", "method.groups": 4}
    | {"cluster.service.name": "exponential"},
    "elastic": {**FOUR, "method.name": "elastic", "method.groups": 4},
    "diloco": DILOCO,
    "carried": CARRIED,
}


def test_a_mask_is_of_its_batch_and_of_nothing_else():
    """Nothing is learned, so that a loss is what a batch and its masks make of it."""
    still = {"optimizer.learning_rate": 0.0, "model.norm_examples": 12, "model.options.rate": 0.5}
    losses = {name: watched(chosen(still, values))[1].losses for name, values in METHODS.items()}
    for name, found in losses.items():
        np.testing.assert_allclose(found, losses["sync"], rtol=2e-6, err_msg=name)  # float32 sums
    run = trainer.prepare(chosen(still))
    problem, rows = run.program.problem, jnp.asarray(batches_of(run)(0, 2))
    # The same twelve examples four times, with the seeds of two batches.
    given = [rows[i].at[:, 0].set(jnp.tile(jnp.arange(12), 4)) for i in (0, 1)]
    batches = [problem.batch(run.data.train, numbers) for numbers in (*given, given[0])]
    first, other, again = (np.asarray(problem.outputs(run.params, batch)) for batch in batches)
    np.testing.assert_array_equal(first, again)
    assert len({part.tobytes() for y in (first, other) for part in np.split(y, 4)}) == 8
    blocks = [block for _, block in problem.blocks]
    keys = {jax.random.key_data(b.key(jnp.int32(s))).tobytes() for b in blocks for s in (0, 1)}
    assert len(keys) == 2 * len(blocks)


# How many examples are normalized together.

TOGETHER = {"model.norm_examples": 12}
DIVIDED = {
    "four workers": FOUR,
    "accumulated": {"parallel.accumulation": 4, **TOGETHER},
    "one group of four": {**FOUR, "method.name": "asynchronous"},
    "diloco of period 1": {**DILOCO, "method.period": 1}
    | {"method.outer_learning_rate": 1.0, "method.outer_momentum": 0.0},
    "dynamic_batch": {**FOUR, "method.name": "dynamic_batch", "method.adapt": False}
    | {"method.micro_batch": 12},
}


def test_with_the_same_examples_together_methods_minimize_the_same_function():
    # Sums of 48 gradients in another order, 5e-7 an update of size 1e-1, of ten; as in
    # `test_layouts.py`.
    whole = chosen(TOGETHER).train().params
    for values in DIVIDED.values():
        found = chosen(values).train().params
        jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=5e-6), found, whole)
    parts = {"parallel.accumulation": 4}
    small, same, large = (chosen(v).train().params for v in (parts, parts | TOGETHER, {}))
    assert_same(small, same)
    gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), small, large)
    assert max(jax.tree.leaves(gaps)) > 1e-2


class Plain(nn.Module):
    """A norm over the batch without running averages."""

    more: bool

    @nn.compact
    def __call__(self, x):
        return self.layers(x, False)

    def layers(self, x, deterministic):
        x = nn.relu(nn.GroupNorm(None, group_size=1, reduction_axes=(0, 1))(nn.Dense(8)(x)))
        if self.more:
            x = nn.Dropout(0.0, deterministic=deterministic)(x)
        return nn.Dense(nets.CLASSES)(x)


class WithMode(Plain):
    @nn.compact
    def __call__(self, x, deterministic):
        return self.layers(x, deterministic)


@pytest.mark.parametrize("name", ["sync", "asynchronous", "diloco"])
def test_without_draws_and_state_floats_are_those_of_the_module_without_a_mode(name):
    found = [
        battery(name).with_(model=net).train().params
        for net in (Plain(False), Plain(True), WithMode(True))
    ]
    for params in found[1:]:
        assert_same(params, found[0])


# Averages of the parameters, and recomputed averages of norms.


def recomputed(run, params):
    """Returns by linen the means over k batches of x and of x^2, of `nets.Net`."""
    net, found, numbers = nets.Net(decay=0.0), [], run.norm_batches["x"]
    for k, x in enumerate(numbers):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), k), 0)
        variables = {"params": params["model"], **run.program.problem.blocks[0][1].blank(x)}
        given = {"rngs": {"dropout": key}, "mutable": ["batch_stats"]}
        found.append(net.apply(variables, x, train=True, **given)[1])
    rows = jax.tree.map(lambda *leaves: np.stack(leaves).astype(float), *found)
    layers = {f"Layer_{i}": rows["batch_stats"][f"Layer_{i}"]["BatchNorm_0"] for i in (0, 1)}
    means = {name: {"batch_stats": {"BatchNorm_0": norm}} for name, norm in layers.items()}
    means = mean_of_rows(means)
    return {"batch_stats": means}


def loss_of(params, stats, rows):
    y = nets.Net().apply({"params": params["model"], **stats}, rows["x"], train=False)
    return float(optax.softmax_cross_entropy_with_integer_labels(y, rows["label"]).mean())


AVERAGED = {
    "sync": {},
    "asynchronous": {**FOUR, "method.name": "asynchronous", "method.groups": 4},
    "diloco": DILOCO,
}


@pytest.mark.parametrize("kind", ["ema", "lawa"])
@pytest.mark.parametrize("name", AVERAGED)
def test_averages_are_those_of_the_trajectory_with_averages_of_norms_of_their_own(name, kind):
    more = {"evaluation.average": kind, "evaluation.decay": 0.7, "evaluation.last": 4}
    more |= {"evaluation.batches": 5}
    trained, hook = watched(chosen(NET, AVERAGED[name], more))
    run, rows = hook.run, hook.run.data.train
    xs = [state.params for state in hook.states]
    for t in range(1, len(xs)):
        weights = 0.7 ** np.arange(t)[::-1] if kind == "ema" else np.ones(t)[-4:]
        history = xs[1 : t + 1][-len(weights) :]

        def mean(*leaves, weights=weights):
            return np.tensordot(weights / weights.sum(), np.stack(leaves).astype(float), 1)

        expected = jax.tree.map(mean, *history)
        found = run.evaluated(hook.states[t])
        average = {k: v for k, v in found[f"{kind}_"].items() if k != STATE}
        assert_near(average, expected, 1e-6)  # float32
        logged = trained.log[f"{kind}_train_loss"].iloc[t]
        # a decay is told from two steps of an average: 1e-7 over 1 - 0.9
        assert logged == pytest.approx(loss_of(expected, recomputed(run, expected), rows), rel=1e-5)
        loss = loss_of(xs[t], recomputed(run, xs[t]), rows)
        assert trained.log["train_loss"].iloc[t] == pytest.approx(loss, rel=1e-5)
    first = trained.log.iloc[0]
    assert first[f"{kind}_train_loss"] == first["train_loss"]
    assert_same(trained.variables[f"{kind}_"], jax.device_get(found[f"{kind}_"]))


# What is given back.


@pytest.mark.parametrize("name", ["net", "make"])
@pytest.mark.parametrize("statistics", ["recomputed", "carried"])
def test_the_module_itself_has_the_logged_accuracy(tmp_path, name, statistics):
    values = {"model.name": f"tests.own.nets:{name}", "steps": 40, "log_every": 40}
    more = {"evaluation.statistics": statistics, "evaluation.average": "ema"}
    made = battery("diloco", values, more, {"evaluation.decay": 0.5})
    rows = nets.data()["test"]
    for trained in (made.train(), made.train(tmp_path / "run")):
        for prefix in ("", "ema_"):
            found, h = trained.restore(average=bool(prefix)), rows["x"]
            if name == "net":
                h = nets.Net().apply(found, h, train=False)
            else:
                for block, module in nets.make(nets.CLASSES):
                    more = {} if isinstance(module, nn.Dense) else {"train": False}
                    h = module.apply(found[block], h, **more)
            last, accuracy = trained.log.iloc[-1], np.mean(np.argmax(h, axis=-1) == rows["label"])
            loss = optax.softmax_cross_entropy_with_integer_labels(h, rows["label"]).mean()
            assert last[f"{prefix}test_accuracy"] == pytest.approx(float(accuracy), abs=1e-6)
            assert last[f"{prefix}test_loss"] == pytest.approx(float(loss), rel=1e-5)  # float32
    assert "needs config.evaluation.average" in refusal(battery("sync").train().restore, True)
