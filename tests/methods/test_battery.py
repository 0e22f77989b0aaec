"""What every update rule owes, run over all methods and all that go together.

A new method joins by adding its line to `CASES`. A pair is tested at both limits: with one of the
two doing nothing it is the other. What it is between them, and that it trains, is in
`test_equations.py`, of all pairs.
"""

import itertools
import re
import sys
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optdyn import optimizers
from optdyn.clock.timeline import Shares, padded_share, plan_of, split_batches
from optdyn.experiment import Config, ConfigError
from optdyn.methods import Event, MethodStack, ModelInfo, Rule, built_in, compose, messages
from optdyn.train import devices as parallel
from optdyn.train import program
from optdyn.train.checkpoints import Checkpoints
from tests.blocks import ROOT, blocks
from tests.values import with_values

STEPS, BATCH, CLASSES = 12, 24, 5
EPOCH = 4  # updates


class MethodCase(NamedTuple):
    values: dict  # of the config, for it to be itself
    limit: dict | None  # those with which it is the synchronous rule
    bits: bool = False  # to the bit
    like: str = ""  # a method of the same piece and clock, whose pairs are run for this one too


NODES = {"cluster.nodes": 2, "cluster.devices_per_node": 2}
ONE = {"cluster.nodes": 1, "cluster.devices_per_node": 4}
CASES = {
    "sync": MethodCase({}, None),
    "asynchronous": MethodCase({"method.groups": 2}, {"method.groups": 1}, bits=True),
    "elastic": MethodCase({"method.groups": 2, "method.period": 2}, None, like="asynchronous"),
    "async_local_sgd": MethodCase(
        {"method.groups": 2, "method.period": 2},
        {"method.groups": 1, "method.period": 1}
        | {"method.outer_learning_rate": 1.0, "method.outer_momentum": 0.0},
        like="asynchronous",
    ),
    "decoupled": MethodCase(
        {"method.groups": 2, "method.period": 2, "method.fragments": 2},
        None,
        like="asynchronous",
    ),
    "ad_psgd": MethodCase({"method.groups": 2}, {"method.groups": 1}, like="asynchronous"),
    "buffered": MethodCase(
        {"method.groups": 2, "method.arrivals": 3},
        {"method.groups": 1, "method.arrivals": 1},
        bits=True,
        like="asynchronous",
    ),
    "mindflayer": MethodCase(
        {"method.groups": 2, "method.arrivals": 3, "method.allotted": 1.5},
        {"method.groups": 1, "method.arrivals": 1, "method.allotted": 0.0},
        bits=True,
        like="asynchronous",
    ),
    "ringmaster": MethodCase(
        {"method.groups": 2, "method.delay_bound": 2, "cluster.speeds": (2.0, 3.0, 3.0, 3.0)},
        {"method.groups": 1},
        bits=True,
        like="asynchronous",
    ),
    "ringleader": MethodCase(
        {"method.groups": 2, "cluster.speeds": (2.0, 3.0, 3.0, 3.0)},
        {"method.groups": 1},
        bits=True,
        like="asynchronous",
    ),
    "daso": MethodCase(
        {"method.warmup_epochs": 1, "method.cooldown_epochs": 0, "method.max_batches": 2},
        {**ONE, "method.wait": 0},
    ),
    "model_averaging": MethodCase({"method.period": 3}, ONE),
    "diloco": MethodCase(
        {"method.period": 3},
        {**ONE, "method.outer_learning_rate": 1.0, "method.outer_momentum": 0.0},
        like="model_averaging",
    ),
    "des_loc": MethodCase({"method.period": 2}, ONE, like="model_averaging"),
    "slowmo": MethodCase(
        {"method.period": 3}, {**ONE, "method.slow_momentum": 0.0}, like="model_averaging"
    ),
    "sparseloco": MethodCase(
        {"method.period": 3, "method.compression_share": 0.5},
        {**ONE, "method.outer_learning_rate": 1.0, "method.compression_share": 1.0},
        like="model_averaging",
    ),
    "eager": MethodCase(
        {"method.period": 3},
        {**ONE, "method.outer_learning_rate": 1.0, "method.outer_momentum": 0.0},
        like="model_averaging",
    ),
    "sparta": MethodCase({"method.averaged_share": 0.3}, ONE, like="model_averaging"),
    "demo": MethodCase(
        {"method.coefficients": 2, "method.chunk": 4, "method.signed": False},
        ONE | {"method.coefficients": 4096, "method.signed": False},
        like="model_averaging",
    ),
    "gossip": MethodCase({"method.graph": "one_peer"}, ONE, like="model_averaging"),
    "gasloc": MethodCase(
        {"method.period": 3, "method.graph": "one_peer"},
        {**ONE, "method.outer_learning_rate": 1.0, "method.outer_momentum": 0.0},
        like="model_averaging",
    ),
    "dynamic_batch": MethodCase({"cluster.speeds": (1.0, 2.0, 3.0, 4.0)}, {"method.adapt": False}),
    "stale_pipeline": MethodCase({}, ONE, bits=True),
    "local": MethodCase({"method.variant": "greedy"}, {"method.variant": "backprop"}),
}
# Those of the guide to adding, which are files of a reader's own.
GUIDE = ROOT / "research" / "optdyn" / "methods" / "adding.md"
EXAMPLES = {
    "loscar:Loscar": MethodCase(
        {"method.period": 3, "method.delay": 1, "method.share": 0.5}, ONE, like="model_averaging"
    ),
    "adacomm:AdaComm": MethodCase({"method.period": 3}, ONE, like="model_averaging"),
}
FOLDER = TemporaryDirectory()  # gone with this process
sys.path.insert(0, FOLDER.name)
for block in blocks(GUIDE):
    if block.file.removesuffix(".py") in [name.partition(":")[0] for name in EXAMPLES]:
        Path(FOLDER.name, block.file).write_text(block.text)
CASES |= EXAMPLES


def go_together(name):
    try:
        return bool(MethodStack.named(name))
    except ConfigError:
        return False


PLAIN, *OTHERS = (name for name in CASES if name not in EXAMPLES)
PAIRED = [name for name in OTHERS if not CASES[name].like]
PAIRS = tuple(filter(go_together, map("+".join, itertools.combinations(PAIRED, 2))))
THREE = ("daso+asynchronous+local",)
EVERY = (*CASES, *PAIRS, *THREE)
MESSAGES = {name: {"compression": name} for name in messages.COMPRESSIONS if name} | {
    "E3M0": {"compression_bits": 4},
    "3 bits": {"compression_bits": 3},
    "top_k of 2 bits": {"compression": "top_k", "compression_bits": 2},
}
STREAMING = {
    "method.period": 4,
    "method.fragments": 2,
    "method.delay": 1,
    "method.mixing": 0.25,
}
AGES = {"method.age_decay": 0.3, "method.age_cutoff": 4.0}
VARIANTS = {  # of a method, by keys that make another rule of it
    "fresh": ("asynchronous", {"method.fresh": ("classifier",)}),
    "all fresh": ("asynchronous", {"method.fresh": ("hidden0", "hidden1", "classifier")}),
    "overlapping": ("local", {"method.variant": "overlapping", "method.window": 2}),
    "correcting": ("diloco", {"method.merging": "correct", "method.delay": 1}),
    **{
        f"{server} server": ("async_local_sgd", AGES | {"method.server": server})
        for server in ("adam", "heloco")
    },
    **{
        f"{state} {name}": (name, {"method.inner_state": state})
        for state in ("averaged", "reset")
        for name in ("asynchronous+model_averaging", "diloco+local")
    },
    **{f"streaming {name}": (name, STREAMING) for name in EVERY if "model_averaging" in name},
    **{
        f"{kind} messages": (
            "diloco",
            {f"method.{key}": value for key, value in {"compression_rank": 1, **keys}.items()},
        )
        for kind, keys in MESSAGES.items()
    },
}

MODEL = {"name": "mlp", "hidden": (7, 6), "dtype": "float32"}
OPTIMIZERS = {"sgd": ("learning_rate", "momentum"), "adam": ("learning_rate",)}


class RuleRun(NamedTuple):
    """A rule with a state to start from and a run's inputs, (STEPS, ...) each."""

    rule: Rule
    params: dict
    events: Event
    batches: dict

    @property
    def state(self):
        return init(self.rule, self.params)

    @property
    def first(self):
        """Event and batch of the last update, which reads something else than version 0."""
        return at((self.events, self.batches), -1)


def config_of(name, values=()):
    """Constant service, so that arrivals are the same however they are drawn."""
    usual = {"batch_size": BATCH, "steps": STEPS, "cluster.service.name": "constant"}
    name, variant = VARIANTS.get(name, (name, {}))
    parts = name.split("+")
    own = {} if set(parts) <= {"sync", "local"} else dict(NODES)
    for part in parts:
        own |= CASES[part].values
    own |= variant | {
        "method.name": name,
        **{f"model.{k}": v for k, v in MODEL.items()},
        **dict(values),
    }
    return with_values(Config(), usual | own)


@cache  # one rule a set of arguments: `step` and `scan` below compile once for all tests
def make_rule(asked, whole, optimizer, slots, loss):
    whole = whole._replace(losses=partial(loss, whole.losses))
    rule = optimizers.optimizer(optimizer, OPTIMIZERS[optimizer])
    return parallel.make(lambda rule: lambda *_: None, asked, whole, rule, slots)[0]


def weighted(losses, outputs, batch):
    """All examples weigh 1, but where a test has them weigh nothing."""
    return batch["weight"] * losses(outputs, batch)


def make_run(name, values=(), *, seed=0, optimizer="sgd", loss=weighted):
    config = config_of(name, {**dict(values), "seed": seed})
    whole, rng = program.problem_of(config, CLASSES), np.random.default_rng(seed)
    hyper = {
        "learning_rate": rng.uniform(0.02, 0.1, STEPS),
        "momentum": rng.uniform(-0.6, 0.6, STEPS),
    }
    batches = {
        "image": rng.integers(0, 256, (STEPS, BATCH, 3, 3, 1), dtype=np.uint8),
        "label": rng.integers(0, CLASSES, (STEPS, BATCH), dtype=np.int32),
        "weight": np.ones((STEPS, BATCH), np.float32),
    }
    shapes = jax.eval_shape(whole.init, jax.random.key(0), at(batches, 0))

    def draw(path, leaf):  # the same values wherever a block or head is
        own = np.random.default_rng([seed, *jax.tree_util.keystr(path).encode()])
        return jnp.asarray(own.normal(0, 0.3, leaf.shape), leaf.dtype)

    params = jax.tree_util.tree_map_with_path(draw, shapes)
    model_info = ModelInfo(whole, params, at(batches, 0))
    known = {"steps_per_epoch": EPOCH, "update_bytes": 0, "model_info": model_info}
    ends = [{"train_loss": 1.0}] * (STEPS // EPOCH)
    line = config.timeline(epochs=ends, **known)
    divided = plan_of(line, Shares)
    if divided:  # each device is given its own
        shares = divided.shares
        own = split_batches(np.tile(np.arange(BATCH), (STEPS, 1)), shares, padded_share(shares))
        batches = jax.tree.map(lambda leaf: leaf[np.arange(STEPS)[:, None], own], batches)
    events = Event(
        jax.tree.map(jnp.asarray, line.plan),
        {name: jnp.asarray(hyper[name], jnp.float32) for name in OPTIMIZERS[optimizer]},
        jnp.asarray(line.staleness),
    )
    rule = make_rule(program._layout_request(config), whole, optimizer, line.slots, loss)
    return RuleRun(rule, params, events, jax.tree.map(jnp.asarray, batches))


def at(tree, index):
    """Cut by NumPy: JAX would compile a program for every shape."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[index]), tree)


@partial(jax.jit, static_argnums=0)
def init(rule, params):
    return rule.init(params)


@partial(jax.jit, static_argnums=0)
def step(rule, state, event, batch):
    return rule.step(state, event, batch)


@partial(jax.jit, static_argnums=0)
def scan(rule, state, events, batches):
    """The state after the run, and (STEPS, ...) losses and parameters."""

    def body(state, inputs):
        state, info = step(rule, state, *inputs)
        return state, (info["loss"], state.params)

    return jax.lax.scan(body, state, (events, batches))


def ran(run):
    """The same, by a program of one update, which all tests share."""
    state, history = run.state, []
    for t in range(STEPS):
        state, info = step(run.rule, state, *at((run.events, run.batches), t))
        history.append((info["loss"], state.params))
    return state, jax.tree.map(lambda *leaves: np.stack(leaves), *history)


def assert_same(one, other):
    """Same tree, same bits."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def assert_close(one, other):
    # Sums of products in float32 in another order: some ulp (1e-7) an update, over twelve updates.
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6), one, other)


# `make test-slow` alone runs most messages, which one piece makes, and in some tests pairs, whose
# pieces do not know of one another.
SOME = [
    pytest.param(name, marks=[pytest.mark.slow] * name.endswith("messages"))
    for name in VARIANTS
    if name != "top_k messages"
]
every = pytest.mark.parametrize("name", [*EVERY, "top_k messages", *SOME])
pieces = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in PAIRS)) for n in (*EVERY, *VARIANTS)],
)


def test_every_method_has_a_case_and_pairs_run_or_are_refused_in_a_line():
    assert set(CASES) == {*built_in(), *EXAMPLES}
    apart = set(map("+".join, itertools.combinations(PAIRED, 2))) - set(PAIRS)
    assert {"asynchronous+dynamic_batch", "dynamic_batch+local"} <= apart
    assert {"asynchronous+local", "asynchronous+daso", "daso+dynamic_batch"} <= set(PAIRS)
    for name in apart:
        with pytest.raises(ConfigError, match=rf"config.method.name = '{re.escape(name)}': \w"):
            MethodStack.named(name)
    for name, like in ((name, case.like) for name, case in CASES.items() if case.like):
        for other in set(PAIRED) - {like}:
            assert go_together(f"{name}+{other}") == go_together(f"{like}+{other}")
        over_graph = name == "gossip"  # of nodes that meet now and then
        assert go_together(f"{name}+{like}") == over_graph
    with pytest.raises(ConfigError, match="'nosuch': must be one of sync, ad_psgd"):
        MethodStack.named("nosuch")
    assert MethodStack.named(PLAIN).simple


STATES = [(name, "sgd") for name in EVERY] + [(name, "adam") for name in CASES]
STATES += [
    pytest.param(name, "sgd", marks=[pytest.mark.slow] * name.endswith(("bits messages", "E3M0")))
    for name in VARIANTS
]


@pytest.mark.parametrize(("name", "optimizer"), STATES)
def test_the_state_keeps_its_shapes_and_dtypes(name, optimizer):
    """So that it can be carried by `lax.scan`; what it says of itself are float32 scalars."""
    run = make_run(name, optimizer=optimizer)
    state = jax.eval_shape(run.rule.init, run.params)
    after, info = step.eval_shape(run.rule, state, *run.first)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
    methods = config_of(name).methods.members
    assert set(info) == {"loss"}.union(*(method.info for method in methods))
    assert {(leaf.shape, leaf.dtype) for leaf in info.values()} == {((), jnp.dtype("float32"))}
    params = jax.eval_shape(lambda state: state.params, state)
    assert jax.tree.structure(params) == jax.tree.structure(run.params)


@pieces
def test_a_step_is_pure_and_jit_equals_no_jit(name):
    """Same inputs, same outputs, and the inputs are left as they were.

    Where each kind of updates is: at the end of the first epoch and after it.
    """
    run = make_run(name)
    state = run.state
    assert_same(run.rule.init(run.params), state)
    for t in range(2 * EPOCH + 1):
        inputs = state, *at((run.events, run.batches), t)
        before, jitted = jax.device_get(inputs), step(run.rule, *inputs)
        if t >= EPOCH - 1:
            plain = run.rule.step(*inputs)
            assert_close(jitted, plain)
            assert_same(run.rule.step(*inputs), plain)
            assert_same(jax.device_get(inputs), before)
        state = jitted[0]
    assert_close(scan(run.rule, run.state, run.events, run.batches), ran(run))


@pieces
def test_vmap_equals_a_loop(name):
    """Replicas with their own parameters, arrivals, hyperparameters and batches."""
    runs = [make_run(name, seed=seed) for seed in range(3)]
    rule = runs[0].rule

    inputs = [(run.state, run.events, run.batches) for run in runs]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *inputs)
    together = jax.vmap(partial(scan, rule))(*stacked)
    for i, one in enumerate(inputs):
        assert_close(at(together, i), scan(rule, *one))


@every
def test_a_run_in_two_parts_equals_the_whole(name):
    """The state is all there is to resume from, to the bit, and a checkpoint keeps all of it."""
    run = make_run(name)

    def advance(state, start, stop):
        for t in range(start, stop):
            state, _ = step(run.rule, state, *at((run.events, run.batches), t))
        return state

    half = advance(run.state, 0, STEPS // 2)
    with TemporaryDirectory() as workdir, Checkpoints(Path(workdir)) as checkpoints:
        checkpoints.save(STEPS // 2, half)
        _, kept = checkpoints.restore(jax.tree.map(jnp.zeros_like, half))
    assert_same(kept, half)
    assert_same(advance(kept, STEPS // 2, STEPS), advance(run.state, 0, STEPS))


@every
def test_nothing_recompiles_when_only_numbers_change(name):
    traces = []

    def loss(losses, outputs, batch):
        traces.append(name)
        return weighted(losses, outputs, batch)

    runs = [make_run(name, seed=seed, loss=loss) for seed in range(3)]
    results, counts = [], []
    for run in runs:
        results.append(ran(run))
        counts.append(len(traces))
    assert counts[0] > 0 and set(counts) == {counts[0]}
    # And the numbers were not compiled in either.
    losses = [np.asarray(result[1][0]) for result in results]
    assert not np.array_equal(losses[0], losses[1])


LIMITS = [name for name, case in CASES.items() if case.limit]


def test_with_all_blocks_fresh_it_is_synchronous():
    assert_same(ran(make_run("all fresh"))[1], ran(make_run("sync"))[1])


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_limit_is_synchronous(name, optimizer):
    sync = ran(make_run("sync", optimizer=optimizer))
    limit = ran(make_run(name, CASES[name].limit, optimizer=optimizer))
    same = assert_same if CASES[name].bits else close_parameters
    same(limit[1], sync[1])
    # Beyond the limit it is something else, or the equality says nothing; shares never are seen.
    if optimizer == "sgd":
        beyond = ran(make_run(name))[1][0]
        assert (name == "dynamic_batch") != (np.abs(beyond - sync[1][0]).max() > 1e-4)


ALL = tuple(filter(go_together, map("+".join, itertools.combinations(OTHERS, 2))))
BOTH = [
    pytest.param(pair, name, marks=[pytest.mark.slow] * (pair not in PAIRS))
    for pair in ALL
    for name in pair.split("+")
    if CASES[name].limit
]


@pytest.mark.parametrize(("pair", "name"), BOTH)
def test_a_pair_with_one_at_its_limit_is_the_other(pair, name):
    (other,) = set(pair.split("+")) - {name}
    limit = CASES[name].limit
    groups = {"method.groups": 2} if "cluster.nodes" in limit else {}
    one = ran(make_run(pair, limit | groups))
    # A key that both methods have is one key, with the value that the pair has.
    both = {k: v for part in pair.split("+") for k, v in CASES[part].values.items()}
    alone = ran(make_run(other, both | limit | groups))
    close_parameters(one[1], alone[1])
    # And with neither at its limit it is none of the two.
    if "dynamic_batch" not in pair:
        both = ran(make_run(pair))[1][0]
        assert np.abs(both - alone[1][0]).max() > 1e-4


def close_parameters(one, other):
    """Losses and the parameters that both have; heads are only where gradients are local."""
    kept = {name: other[1][name] for name in one[1] if name in other[1]}
    assert kept
    assert_close((one[0], {name: one[1][name] for name in kept}), (other[0], kept))


KEEPS = optax.GradientTransformationExtraArgs(
    lambda params: jax.tree.map(lambda leaf: jnp.zeros((), jnp.int32), params),
    lambda grads, state, params=None, *, staleness, read_params, **hyper: (
        jax.tree.map(lambda g, x, old: x - x + 0 * g + 0 * old, grads, params, read_params),
        jax.tree.map(lambda leaf: jnp.asarray(staleness, jnp.int32), state),
    ),
)


@pytest.mark.parametrize(
    "name", ["sync", "asynchronous", "asynchronous+local", "stale_pipeline", *THREE]
)
def test_staleness_and_what_was_read_reach_the_optimizer(name):
    """As arguments of any optax transform that takes them, a number a block where it is one."""
    run = make_run(name)
    config = config_of(name)
    methods, whole = config.methods, program.problem_of(config, CLASSES)
    choice = run.events.plan.inner if methods.mix else run.events.plan
    slots = int(np.max(choice.read)) + 1
    one = compose(methods.inside, whole, KEEPS, slots, None)
    state, servers = one.init(run.params), methods.servers(whole)
    for t in range(STEPS):
        event, batch = at((run.events, run.batches), t)
        if methods.mix:  # as the first node sees it
            inner = jax.tree.map(lambda leaf: leaf[0], event.plan.inner)
            event = event._replace(plan=inner, staleness=event.staleness[0])
        state, _ = one.step(state, event, batch)
        late = np.ravel(event.staleness)
        for block, seen in state.opt_state.items():
            expected = late[servers[block] if servers else 0]
            assert {int(leaf) for leaf in jax.tree.leaves(seen)} == {int(expected)}
    assert (name == "sync") != (max(late) > 0)


@every
def test_a_loss_without_gradient_moves_nothing(name):
    """A conservation law of all: equal nodes, whatever they exchange, stay where they are."""
    run = make_run(name)
    nothing = {"weight": jnp.zeros_like(run.batches["weight"])}
    state, (losses, _) = ran(run._replace(batches=run.batches | nothing))
    assert not losses.any()
    assert_close(state.params, run.params)
