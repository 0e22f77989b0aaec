"""The presets of the outer rule: against lists in float64, libraries, and their limits."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optdyn import methods
from optdyn.experiment import ConfigError
from optdyn.methods.mix.averaging_clock import turns
from optdyn.methods.mix.daso import DASO
from optdyn.train import program
from optdyn.train.checks import check
from tests.methods import nodes
from tests.methods import test_battery as battery
from tests.methods.nodes import (
    NODES,
    RATE,
    START,
    STEPS,
    averaging,
    diloco,
    flattened,
    reference,
    slowmo,
    tree,
)
from tests.values import as_experiment

MAKERS = {"model_averaging": averaging, "diloco": diloco, "slowmo": slowmo}
ETA, MU, BETA, A = 0.7, 0.9, 0.5, 0.8
NUMBERS = {
    "model_averaging": {},
    "diloco": {"outer_learning_rate": ETA, "outer_momentum": MU},
    "slowmo": {"slow_learning_rate": A, "slow_momentum": BETA},
}
SCHEDULE = RATE * np.linspace(1.0, 0.2, STEPS)
# Parameters of about one in float32, 1e-7 an operation, some ten of them in each of 32 updates.
CLOSE = {"rtol": 0, "atol": 2e-5}


def meetings(name, period=4, synchronous=0, **numbers):
    line = turns(STEPS, period, 1, 0, synchronous)
    numbers = NUMBERS[name] | numbers
    return line._replace(outer={key: np.full(STEPS, v, np.float32) for key, v in numbers.items()})


@cache  # so that one program is compiled for all numbers
def made(name, optimizer=nodes.SGD, **keys):
    return MAKERS[name](nodes.inner(optimizer), keys)


def rule(name, rates):
    """In float64 and in the paper's own form, with a state of its own."""
    state = {"m": 0.0}
    rates = np.broadcast_to(np.float64(np.float32(rates)), STEPS)

    def step(theta, gap, t):
        if name == "model_averaging":
            return theta - gap
        if name == "diloco":
            state["m"] = MU * state["m"] + gap
            return theta - ETA * (gap + MU * state["m"])
        state["m"] = BETA * state["m"] + gap / rates[t]
        return theta - A * rates[t] * state["m"]

    return step


@pytest.mark.parametrize("rates", [RATE, SCHEDULE], ids=["constant", "schedule"])
@pytest.mark.parametrize("inner_state", ["kept", "averaged", "reset"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_preset_equals_the_reference(name, inner_state, rates):
    events = nodes.events(meetings(name), rates, 0.6)
    states, _ = nodes.ran(made(name, inner_state=inner_state), events)
    send = turns(STEPS, 4, 1, 0).send[:, 0]
    expected = reference(send, rule(name, rates), rates, 0.6, inner_state)
    np.testing.assert_allclose(flattened(states.params), expected, **CLOSE)
    # The nodes do part in between, by far more than that, and what is done to the state is seen.
    assert np.ptp(expected, axis=1).max() > 0.05
    if inner_state != "kept":
        kept = reference(send, rule(name, rates), rates, 0.6)
        assert np.abs(expected - kept).max() > 1e-2


@pytest.mark.parametrize("name", MAKERS)
def test_who_has_no_part_in_a_meeting_takes_over_what_the_others_agree_on(name):
    """Against the reference, whose nodes send as many times as much as their part says."""
    rng = np.random.default_rng(0)
    counts = rng.permuted(np.tile(np.arange(NODES) < NODES - 1, (STEPS, 1)), axis=1)
    counts[-1] = np.arange(NODES) == 1  # who is alone at the last one
    part = (counts * NODES / counts.sum(1, keepdims=True)).astype(np.float32)
    send = turns(STEPS, 4, 1, 0).send[:, 0]
    some = meetings(name)._replace(present=part)
    states, sent = nodes.ran(made(name), nodes.events(some, RATE, 0.6))
    parts = iter(part[send].ravel())
    message = lambda v: (next(parts) * v, 0.0)  # noqa: E731
    expected = reference(send, rule(name, RATE), RATE, 0.6, message=message)
    np.testing.assert_allclose(flattened(states.params), expected, **CLOSE)
    all_meet = reference(send, rule(name, RATE), RATE, 0.6)
    assert np.abs(expected - all_meet).max() > 1e-2
    # In the mean of the nodes; who is away sends nothing, and nobody hears who is alone.
    here = counts.sum(1) * (counts.sum(1) > 1)
    np.testing.assert_allclose(sent, send * 4 * nodes.P * here / NODES, rtol=1e-6)


@pytest.mark.parametrize("name", ["diloco", "slowmo"])
def test_without_slow_momentum_it_is_model_averaging(name):
    plain = {
        "diloco": {"outer_learning_rate": 1.0, "outer_momentum": 0.0},
        "slowmo": {"slow_learning_rate": 1.0, "slow_momentum": 0.0},
    }[name]
    one, _ = nodes.ran(made(name), nodes.events(meetings(name, **plain), RATE, 0.6))
    mean, _ = nodes.ran(
        made("model_averaging"), nodes.events(meetings("model_averaging"), RATE, 0.6)
    )
    # theta - (theta - mean) for the mean: an ulp more, 1e-7, at each of eight meetings.
    np.testing.assert_allclose(flattened(one.params), flattened(mean.params), rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_with_mixing_one_nodes_are_on_their_own(name):
    """Whatever theta does meanwhile."""
    heedless, sent = nodes.ran(made(name, mixing=1.0), nodes.events(meetings(name)))
    never = np.zeros((STEPS, 1), bool)
    quiet = meetings(name)._replace(send=never, receive=never)
    alone, _ = nodes.ran(made(name, mixing=1.0), nodes.events(quiet))
    assert sent.sum() > 0
    # (3 x + 0 theta) / 3 rounds twice where it rounds at all: an ulp or two, eight times.
    np.testing.assert_allclose(flattened(heedless.params), flattened(alone.params), atol=2e-6)


def synchronous(rule, rates=RATE):
    """(STEPS, P): one optimizer along the gradient of the whole batch."""
    params = tree(START)
    state, grad, history = rule.init(params), jax.jit(jax.grad(nodes.loss)), []
    for t in range(STEPS):
        updates, state = rule.update(grad(params, battery.at(nodes.BATCHES, t)), state, params)
        params = optax.apply_updates(params, updates)
        history.append(flattened(params))
    return np.array(history)


LIKE = {
    "model_averaging": optax.sgd(RATE),
    "diloco": optax.sgd(ETA * RATE, MU, nesterov=True),
    "slowmo": optax.sgd(A * RATE, BETA),
}


@pytest.mark.parametrize("name", MAKERS)
def test_meeting_after_every_update_is_the_outer_optimizer_of_the_mean_gradient(name):
    """D = gamma mean_i g_i: SGD, Nesterov's of rate eta gamma, heavy ball of rate a gamma."""
    states, _ = nodes.ran(made(name), nodes.events(meetings(name, period=1)))
    expected = np.repeat(synchronous(LIKE[name])[:, None], NODES, 1)
    np.testing.assert_allclose(flattened(states.params), expected, **CLOSE)


@pytest.mark.parametrize("inner_state", ["kept", "averaged"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_period_one_is_synchronous_with_linear_optimizers_only(inner_state, optimizer):
    """The mean of the nodes' velocities is that of the mean gradient, averaged or not.

    With Adam it is not, and averaging its state does not help: the mean of g_i^2 is not the square
    of the mean, and the nodes divide before they meet.
    """
    values = {"strategy.period": 1, "strategy.inner_state": inner_state}
    one = battery.ran(battery.make_run("model_averaging", values, optimizer=optimizer))[1]
    other = battery.ran(battery.make_run("sync", optimizer=optimizer))[1]
    if optimizer == "sgd":
        battery.close_parameters(one, other)
    else:
        assert np.abs(one[0] - other[0]).max() > 1e-4


def test_post_local_sgd_is_synchronous_and_then_local():
    line, later = turns(40, 4, 2, 1, synchronous=13), turns(27, 4, 2, 1)
    for name, values, afterwards in zip(line._fields[:3], line, later, strict=False):
        np.testing.assert_array_equal(values[13:], afterwards)
        np.testing.assert_array_equal(values[:13], name != "waited")
    whole, _ = nodes.ran(
        made("model_averaging"), nodes.events(meetings("model_averaging", synchronous=20))
    )
    expected = synchronous(LIKE["model_averaging"])
    spread = np.ptp(flattened(whole.params), axis=1).max(axis=1)
    np.testing.assert_allclose(flattened(whole.params)[:20, 0], expected[:20], **CLOSE)
    assert spread[:20].max() == 0 and spread[20:23].min() > 1e-2 and spread[23] == 0


@pytest.mark.parametrize("name", MAKERS)
def test_synchronous_updates_of_a_config_take_the_mean(name):
    """All of them: model averaging with period 1, whatever the outer optimizer is."""
    values = {"strategy.synchronous_updates": battery.STEPS}
    one = battery.ran(battery.make_run(name, values))
    mean = battery.ran(battery.make_run("model_averaging", {"strategy.period": 1}))
    battery.close_parameters(one[1], mean[1])


@pytest.mark.parametrize("reset", [False, True])
def test_one_node_without_momentum_is_lookahead(reset):
    """optax.lookahead, whose slow parameters are theta; period 4, slow step 0.7."""
    line = meetings("diloco", outer_momentum=0.0)
    keys = {"inner_state": "reset"} if reset else {}
    states, _ = nodes.ran(made("diloco", **keys), nodes.events(line, RATE, 0.6), nodes=1)
    fast = optax.lookahead(optax.sgd(RATE, 0.6), 4, ETA, reset_state=reset)
    params = optax.LookaheadParams.init_synced(tree(START))
    state, grad = fast.init(params), jax.jit(jax.grad(nodes.loss))
    for t in range(STEPS):
        grads = grad(params.fast, battery.at(nodes.BATCHES, t))
        updates, state = fast.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        found = flattened(battery.at(states.params, t))[0]
        np.testing.assert_allclose(found, flattened(params.fast), **CLOSE)
    # With momentum it is something else: one node is not the inner optimizer then.
    other, _ = nodes.ran(
        made("diloco", **keys), nodes.events(meetings("diloco"), RATE, 0.6), nodes=1
    )
    assert np.abs(flattened(other.params) - flattened(states.params)).max() > 1e-2


def test_slowmo_at_a_constant_rate_is_heavy_ball_of_the_outer_gradient():
    ball = averaging(nodes.inner(), {}, optimizer=optax.sgd(A, BETA))
    for rates, same in ((RATE, True), (SCHEDULE, False)):
        events = nodes.events(meetings("slowmo"), rates)
        slow, _ = nodes.ran(made("slowmo"), events)
        plain = events._replace(choice=turns(STEPS, 4, 1, 0))
        outer, _ = nodes.ran(ball, plain)
        apart = np.abs(flattened(slow.params) - flattened(outer.params)).max()
        # D / gamma times gamma: two roundings more, 1e-7, at each of eight meetings.
        assert (apart < 5e-6) if same else (apart > 1e-2)


def test_slowmo_is_finite_where_the_learning_rate_is_nothing():
    """As before a warm-up, and where nodes meet: there they move by a D all the same."""
    rates = np.full(STEPS, RATE, np.float32)
    rates[[0, 3]] = 0.0
    states, _ = nodes.ran(made("slowmo"), nodes.events(meetings("slowmo"), rates))
    x = flattened(states.params)
    assert np.isfinite(x).all()
    expected = START + A * (x[2].mean(0) - START)  # after the fourth update, the first meeting
    np.testing.assert_allclose(x[3], np.tile(expected, (NODES, 1)), **CLOSE)


def test_dasos_merge_is_the_rule_with_mixing():
    """a = 2 S / (2 S + P), of messages S = 2 updates old."""
    waited = 2
    line = turns(STEPS, 4, 1, waited)
    line.send[-1] = line.receive[-1] = False  # the end, which is blocking
    merged, _ = nodes.ran(DASO().mix(nodes.inner()), nodes.events(line))
    mixing = 2 * waited / (2 * waited + NODES)
    mixed, _ = nodes.ran(averaging(nodes.inner(), {"mixing": mixing}), nodes.events(line))
    assert line.receive.sum() > 5
    # Weights of the same ratio, rounded otherwise: some ulp a receipt.
    np.testing.assert_allclose(flattened(merged.params), flattened(mixed.params), rtol=0, atol=5e-6)


def test_the_outer_rule_equals_drjax():
    """DiLoCo in another library's map and reduce, where it is installed (pip install drjax)."""
    drjax = pytest.importorskip("drjax")
    outer, period = optax.sgd(ETA, MU, nesterov=True), 4

    @jax.jit
    @drjax.program(placements={"nodes": NODES})
    def a_round(theta, opt_state, batches):
        def train(theta, batches):
            def one(x, batch):
                return jax.tree.map(lambda x, g: x - RATE * g, x, jax.grad(nodes.loss)(x, batch)), 0

            return jax.lax.scan(one, theta, batches)[0]

        after = drjax.map_fn(train, (drjax.broadcast(theta), batches))
        gap = jax.tree.map(jnp.subtract, theta, drjax.reduce_mean(after))
        updates, opt_state = outer.update(gap, opt_state, theta)
        return optax.apply_updates(theta, updates), opt_state

    states, _ = nodes.ran(made("diloco"), nodes.events(meetings("diloco")))
    theta = tree(START)
    opt_state = outer.init(theta)
    for start in range(0, STEPS, period):
        batches = {
            name: np.moveaxis(
                v[start : start + period].reshape(period, NODES, nodes.EACH, *v.shape[2:]), 1, 0
            )
            for name, v in nodes.BATCHES.items()
        }
        theta, opt_state = a_round(theta, opt_state, batches)
        found = flattened(battery.at(states.params, start + period - 1))
        np.testing.assert_allclose(found, np.tile(flattened(theta), (NODES, 1)), **CLOSE)


@pytest.mark.parametrize("name, key", [("diloco", "outer_momentum"), ("slowmo", "slow_momentum")])
def test_slow_numbers_are_arguments_of_one_program(name, key):
    configs = [battery.config_of(name, {f"strategy.{key}": value}) for value in (0.1, 0.8)]
    assert program.make(configs[0], 5, 1) is program.make(configs[1], 5, 1)
    one, other = (
        flattened(nodes.ran(made(name), nodes.events(meetings(name, **{key: value})))[0].params)
        for value in (0.1, 0.8)
    )
    assert np.abs(one - other).max() > 1e-2


MESSAGES_ALONE = {
    "strategy.period": 3,
    "cluster.bandwidth": 1.0,
    "cluster.devices_per_node": 1,
    "cluster.seconds_per_example": 1 / 8,  # which float64 adds and takes off without rounding
}


def sent_and_seconds(name, values, optimizer="sgd"):
    """Of every update: bytes that the program says, and seconds of a clock of its messages alone.

    Nodes of one device and a byte a second: a ring of two takes as long as a message is.
    """
    values = MESSAGES_ALONE | values
    run = battery.make_run(name, values, optimizer=optimizer)
    step, state, said = jax.jit(run.rule.step), run.state, []
    for t in range(battery.STEPS):
        state, info = step(state, *battery.at((run.events, run.batches), t))
        said.append(float(info["sent_bytes"]))
    return np.array(said), seconds(name, run.params, values, optimizer), run.params


def seconds(name, params, values, optimizer="sgd"):
    """Of every update, by the clock of a config, less those of its computing."""
    config = battery.config_of(name, values | {"optimizer.name": optimizer})
    network = methods.ModelInfo(program.problem_of(config, battery.CLASSES), params, {})
    size = program.parameter_bytes(params)
    known = {"steps_per_epoch": 4, "update_bytes": size, "network": network}
    line = config.timeline(**known)
    computing = battery.BATCH / config.cluster.nodes * config.cluster.seconds_per_example
    return np.diff(line.seconds, prepend=0.0) - computing


@pytest.mark.parametrize("inner_state, times", [("kept", 1), ("reset", 1), ("averaged", 3)])
def test_an_averaged_state_is_sent_and_takes_its_time(inner_state, times):
    """Adam's two moments: three times the bytes."""
    values = {"strategy.inner_state": inner_state}
    sent, took, params = sent_and_seconds("model_averaging", values, "adam")
    size = program.parameter_bytes(params)
    np.testing.assert_array_equal(sent, times * size * np.tile([0, 0, 1], 4))
    np.testing.assert_allclose(took, sent, rtol=1e-12)  # whole numbers in float64


@pytest.mark.parametrize("inner_state", ["averaged", "reset"])
@pytest.mark.parametrize("name", ["asynchronous+model_averaging", "local+diloco"])
def test_an_inner_state_is_that_of_groups_and_blocks_too(name, inner_state):
    """Whatever a node does by itself, its state keeps its shapes and types."""
    run = battery.make_run(name, {"strategy.inner_state": inner_state}, optimizer="adam")
    state = jax.eval_shape(run.rule.init, run.params)
    after, _ = jax.eval_shape(run.rule.step, state, *run.first)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)


@pytest.mark.parametrize(
    "values, message",
    [
        (
            {"synchronous_updates": -1},
            "config.strategy.synchronous_updates = -1: must be at least 0",
        ),
        (
            {"inner_state": "lost"},
            "inner_state = 'lost': must be one of 'kept', 'averaged', 'reset'",
        ),
        ({"inner_state": "reset", "fragments": 2}, "must be 'kept' with .*fragments = 2"),
        ({"inner_state": "averaged", "delay": 1}, "must be 'kept' with config.strategy.delay = 1"),
        (
            {"outer_learning_rate": 0.0},
            "config.strategy.outer_learning_rate = 0.0: must be above 0",
        ),
        ({"outer_momentum": 1.0}, "config.strategy.outer_momentum = 1.0: must be at least 0 and"),
        ({"slow_learning_rate": float("nan")}, "slow_learning_rate = nan: must be a number"),
        ({"slow_momentum": -0.1}, "config.strategy.slow_momentum = -0.1: must be at least 0 and"),
    ],
)
def test_values_that_cannot_be_are_refused(config, values, message):
    own = {f"strategy.{name}": value for name, value in values.items()}
    with pytest.raises(ConfigError, match=message):
        check(as_experiment(config({"strategy.name": "model_averaging", **own})))
