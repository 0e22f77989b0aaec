"""Nodes that meet: the presets of the outer rule, merges that correct, eager messages, DES-LOC.

Against lists in float64, libraries, and their limits.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optdyn.base.trees import bytes_of
from optdyn.methods.averaging import DesLoc, meeting_schedule
from optdyn.methods.daso import DASO
from optdyn.train import program
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
from tests.methods.test_bytes import sent_and_seconds

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
    line = meeting_schedule(STEPS, period, 1, 0, synchronous)
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
    send = meeting_schedule(STEPS, 4, 1, 0).send[:, 0]
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
    send = meeting_schedule(STEPS, 4, 1, 0).send[:, 0]
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


@pytest.mark.parametrize("inner_state", ["kept", "averaged"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_period_one_is_synchronous_with_linear_optimizers_only(inner_state, optimizer):
    """The mean of the nodes' velocities is that of the mean gradient, averaged or not.

    With Adam it is not, and averaging its state does not help: the mean of g_i^2 is not the square
    of the mean, and the nodes divide before they meet.
    """
    values = {"method.period": 1, "method.inner_state": inner_state}
    one = battery.ran(battery.make_run("model_averaging", values, optimizer=optimizer))[1]
    other = battery.ran(battery.make_run("sync", optimizer=optimizer))[1]
    if optimizer == "sgd":
        battery.close_parameters(one, other)
    else:
        assert np.abs(one[0] - other[0]).max() > 1e-4


def test_post_local_sgd_is_synchronous_and_then_local():
    line, later = meeting_schedule(40, 4, 2, 1, synchronous=13), meeting_schedule(27, 4, 2, 1)
    for name, values, afterwards in zip(line._fields[:3], line, later, strict=False):
        np.testing.assert_array_equal(values[13:], afterwards)
        np.testing.assert_array_equal(values[:13], name != "waited")
    whole, _ = nodes.ran(
        made("model_averaging"), nodes.events(meetings("model_averaging", synchronous=20))
    )
    params, expected, grad = tree(START), [], jax.jit(jax.grad(nodes.loss))
    for t in range(20):
        grads = grad(params, battery.at(nodes.BATCHES, t))
        params = jax.tree.map(lambda x, g: x - RATE * g, params, grads)
        expected.append(flattened(params))
    spread = np.ptp(flattened(whole.params), axis=1).max(axis=1)
    np.testing.assert_allclose(flattened(whole.params)[:20, 0], expected, **CLOSE)
    assert spread[:20].max() == 0 and spread[20:23].min() > 1e-2 and spread[23] == 0


@pytest.mark.parametrize("name", MAKERS)
def test_synchronous_updates_of_a_config_take_the_mean(name):
    """All of them: model averaging with period 1, whatever the outer optimizer is."""
    values = {"method.synchronous_updates": battery.STEPS}
    one = battery.ran(battery.make_run(name, values))
    mean = battery.ran(battery.make_run("model_averaging", {"method.period": 1}))
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
    line = meeting_schedule(STEPS, 4, 1, waited)
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
    configs = [battery.config_of(name, {f"method.{key}": value}) for value in (0.1, 0.8)]
    assert program.make(configs[0], 5, 1) is program.make(configs[1], 5, 1)
    one, other = (
        flattened(nodes.ran(made(name), nodes.events(meetings(name, **{key: value})))[0].params)
        for value in (0.1, 0.8)
    )
    assert np.abs(one - other).max() > 1e-2


@pytest.mark.parametrize("inner_state, times", [("kept", 1), ("reset", 1), ("averaged", 3)])
def test_an_averaged_state_is_sent_and_takes_its_time(inner_state, times):
    """Adam's two moments: three times the bytes."""
    values = {"method.inner_state": inner_state}
    sent, took, params = sent_and_seconds("model_averaging", values, "adam")
    size = bytes_of(params)
    np.testing.assert_array_equal(sent, times * size * np.tile([0, 0, 1], 4))
    np.testing.assert_allclose(took, sent, rtol=1e-12)  # whole numbers in float64


DELAY, MOMENTUM = 2, 0.6


def late(name):
    outer = meetings(name).outer
    return meeting_schedule(STEPS, 4, 1, DELAY)._replace(outer=outer)


@pytest.mark.parametrize("name", ["model_averaging", "diloco"])
def test_what_nodes_did_meanwhile_is_kept_whole(name):
    """x <- theta + (x - x_sent), where theta is the mean sent, or what DiLoCo makes of it."""
    line = late(name)
    states, _ = nodes.ran(made(name, merging="correct"), nodes.events(line, RATE, MOMENTUM))
    every, theta, m, history = nodes.HeavyBall(), np.float64(START), 0.0, []
    sent = None
    for t in range(STEPS):
        every.step(t)
        if line.send[t].all():
            sent = list(every.x)
        if line.receive[t].all():
            gap = theta - sum(sent) / NODES
            m = MU * m + gap if name == "diloco" else 0.0
            theta = theta - (ETA * (gap + MU * m) if name == "diloco" else gap)
            every.x = [theta + (x - own) for x, own in zip(every.x, sent, strict=True)]
        history.append(list(every.x))
    # Parameters of about one in float32, 1e-7 an operation, over 32 updates.
    np.testing.assert_allclose(flattened(states.params), history, rtol=0, atol=1e-5)
    mixed, _ = nodes.ran(made(name), nodes.events(line, RATE, MOMENTUM))
    assert np.abs(flattened(mixed.params) - history).max() > 1e-2


@pytest.mark.parametrize("name", ["model_averaging", "diloco", "slowmo"])
def test_without_delay_it_is_the_mean(name):
    events = nodes.events(meetings(name), RATE, MOMENTUM)
    corrected, _ = nodes.ran(made(name, merging="correct"), events)
    plain, _ = nodes.ran(made(name), events)
    np.testing.assert_allclose(
        flattened(corrected.params), flattened(plain.params), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("fragments", [1, 2])
def test_a_correction_keeps_the_mean_over_the_nodes(fragments):
    """mean(sent) + mean(x - x_sent) is mean(x): at its first receipt nothing is lost."""
    line = meeting_schedule(STEPS, 4, fragments, 1)
    keys = {"merging": "correct", "fragments": fragments}
    met, _ = nodes.ran(made("model_averaging", **keys), nodes.events(line, RATE, MOMENTUM))
    never = line._replace(send=np.zeros_like(line.send), receive=np.zeros_like(line.receive))
    alone, _ = nodes.ran(made("model_averaging", **keys), nodes.events(never, RATE, MOMENTUM))
    first = int(np.flatnonzero(line.receive.any(axis=1))[0])
    found, expected = (flattened(each.params)[first] for each in (met, alone))
    np.testing.assert_allclose(found.mean(0), expected.mean(0), rtol=0, atol=1e-6)
    assert np.abs(found - expected).max() > 1e-2


def test_an_eager_message_has_a_period_of_time():
    """Of messages alone: each meeting waits for the one before, of as many bytes as were sent."""
    sent, took, _ = sent_and_seconds("eager", {"method.period": 3})
    meets = np.flatnonzero(sent)
    computing = battery.BATCH / 2 / 8  # seconds of an update, of 12 examples an eighth each
    expected = sent[meets][0] - 3 * computing  # an all-reduce of two, beside three updates
    assert took[meets[0]] == 0 and expected > 0
    np.testing.assert_allclose(took[meets[1:]], expected, rtol=1e-9)
    np.testing.assert_allclose(np.delete(took, meets), 0, atol=1e-9)


B1, B2, EPS = 0.9, 0.999, 1e-8  # optax's
PERIOD = 2
ADAM = nodes.inner(nodes.ADAM)  # one method, one program


def adam_ran(first, second):
    keys = {"first_moment_meetings": first, "second_moment_meetings": second}
    method, line = DesLoc(period=PERIOD, **keys), meeting_schedule(STEPS, PERIOD, 1, 0)
    line = line._replace(states=method.moment_schedule(line))
    return nodes.ran(method.mix(ADAM), nodes.events(line, RATE, momentum=None))


def adam_reference(first, second):
    """(STEPS, NODES, P): Adam in float64, by its equations."""
    x, u, v = ([np.float64(start)] * NODES for start in (START, 0 * START, 0 * START))
    history, meetings, rate = [], 0, np.float64(np.float32(RATE))
    for t in range(STEPS):
        for i in range(NODES):
            grad = nodes.gradient(x[i], t, slice(i * nodes.EACH, (i + 1) * nodes.EACH))
            u[i] = B1 * u[i] + (1 - B1) * grad
            v[i] = B2 * v[i] + (1 - B2) * grad**2
            mean, square = u[i] / (1 - B1 ** (t + 1)), v[i] / (1 - B2 ** (t + 1))
            x[i] = x[i] - rate * mean / (np.sqrt(square) + EPS)
        if (t + 1) % PERIOD == 0:
            meetings += 1
            x = [sum(x) / NODES] * NODES
            if meetings % first == 0:
                u = [sum(u) / NODES] * NODES
            if meetings % second == 0:
                v = [sum(v) / NODES] * NODES
        history.append(list(x))
    return np.array(history)


def test_des_loc_is_what_its_equations_say():
    states, _ = adam_ran(3, 6)
    expected = adam_reference(3, 6)
    # Float32: where a second moment is small its root divides what rounding left, 1e-7 of about
    # one, and a step is of the rate: measured at most 3e-6 after 32 updates.
    np.testing.assert_allclose(flattened(states.params), expected, rtol=0, atol=1e-5)
    # The periods are two: each is seen.
    for other in (adam_reference(6, 6), adam_reference(3, 3)):
        assert np.abs(expected - other).max() > 1e-4


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_clock_counts_the_bytes_of_des_loc(optimizer):
    """Every meeting the parameters, every second u, every third v, where the optimizer has it."""
    values = {"method.first_moment_meetings": 2, "method.second_moment_meetings": 3}
    sent, took, params = sent_and_seconds("des_loc", values, optimizer)
    np.testing.assert_allclose(took, sent, rtol=1e-12)  # whole numbers in float64
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    times = np.array([1, 2, 1 + (optimizer == "adam"), 2])  # 12 updates, a meeting every three
    np.testing.assert_array_equal(sent[2::3], size * times)
