"""Nodes that meet: their limits and laws, libraries, fragments, and what the clock counts."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.base.trees import bytes_of
from optdyn.clock.timeline import entries_at
from optdyn.experiment import ConfigError
from optdyn.methods.averaging import join_fragments, meeting_schedule, split_fragments
from optdyn.methods.daso import DASO
from optdyn.methods.messages import sharded
from optdyn.train import program
from tests.methods import nodes
from tests.methods import test_battery as battery
from tests.methods.nodes import (
    NODES,
    RATE,
    START,
    STEPS,
    P,
    averaging,
    diloco,
    flattened,
    slowmo,
    tree,
)
from tests.methods.test_messages import sent_and_seconds
from tests.methods.traced import collectives

MAKERS = {"model_averaging": averaging, "diloco": diloco, "slowmo": slowmo}
ETA, MU, BETA, A = 0.7, 0.9, 0.5, 0.8
NUMBERS = {
    "model_averaging": {},
    "diloco": {"outer_learning_rate": ETA, "outer_momentum": MU},
    "slowmo": {"slow_learning_rate": A, "slow_momentum": BETA},
}
# Parameters of about one in float32, 1e-7 an operation, some ten of them in each of 32 updates.
CLOSE = {"rtol": 0, "atol": 2e-5}


def meetings(name, period=4, synchronous=0, **numbers):
    line = meeting_schedule(STEPS, period, 1, 0, synchronous)
    numbers = NUMBERS[name] | numbers
    return line._replace(outer={key: np.full(STEPS, v, np.float32) for key, v in numbers.items()})


@cache  # so that one program is compiled for all numbers
def made(name, **keys):
    return MAKERS[name](nodes.inner(), keys)


def test_who_is_away_sends_nothing_and_nobody_hears_who_is_alone():
    """Bytes in the mean of the nodes."""
    rng = np.random.default_rng(0)
    counts = rng.permuted(np.tile(np.arange(NODES) < NODES - 1, (STEPS, 1)), axis=1)
    counts[-1] = np.arange(NODES) == 1  # who is alone at the last one
    line = meetings("model_averaging")
    part = (counts * NODES / counts.sum(1, keepdims=True)).astype(np.float32)
    _, sent = nodes.ran(
        made("model_averaging"), nodes.events(line._replace(present=part), RATE, 0.6)
    )
    here = counts.sum(1) * (counts.sum(1) > 1)
    np.testing.assert_allclose(sent, line.send[:, 0] * 4 * P * here / NODES, rtol=1e-6)


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


@pytest.mark.parametrize("inner_state, times", [("kept", 1), ("reset", 1), ("averaged", 3)])
def test_an_averaged_state_is_sent_and_takes_its_time(inner_state, times):
    """Adam's two moments: three times the bytes."""
    values = {"method.inner_state": inner_state}
    sent, took, params = sent_and_seconds("model_averaging", values, "adam")
    size = bytes_of(params)
    np.testing.assert_array_equal(sent, times * size * np.tile([0, 0, 1], 4))
    np.testing.assert_allclose(took, sent, rtol=1e-12)  # whole numbers in float64


@pytest.mark.parametrize("name", ["model_averaging", "diloco", "slowmo"])
def test_without_delay_it_is_the_mean(name):
    events = nodes.events(meetings(name), RATE, 0.6)
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
    met, _ = nodes.ran(made("model_averaging", **keys), nodes.events(line, RATE, 0.6))
    never = line._replace(send=np.zeros_like(line.send), receive=np.zeros_like(line.receive))
    alone, _ = nodes.ran(made("model_averaging", **keys), nodes.events(never, RATE, 0.6))
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


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_clock_counts_the_bytes_of_des_loc(optimizer):
    """Every meeting the parameters, every second u, every third v, where the optimizer has it."""
    values = {"method.first_moment_meetings": 2, "method.second_moment_meetings": 3}
    sent, took, params = sent_and_seconds("des_loc", values, optimizer)
    np.testing.assert_allclose(took, sent, rtol=1e-12)  # whole numbers in float64
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    times = np.array([1, 2, 1 + (optimizer == "adam"), 2])  # 12 updates, a meeting every three
    np.testing.assert_array_equal(sent[2::3], size * times)


NESTEROV = optax.sgd(ETA, momentum=MU, nesterov=True)


@pytest.mark.parametrize("optimizer", [None, NESTEROV])
@pytest.mark.parametrize("delay", [0, 2])
def test_fragments_that_meet_together_are_one_to_the_bit(delay, optimizer):
    """However they are cut: what is done to a leaf does not depend on the others."""
    events = nodes.events(meeting_schedule(STEPS, 4, 1, delay))
    whole, parts = (
        nodes.ran(
            averaging(nodes.inner(), {"fragments": n, "mixing": 0.25}, optimizer=optimizer), events
        )
        for n in (1, 2)
    )
    jax.tree.map(np.testing.assert_array_equal, parts[0].params, whole[0].params)
    np.testing.assert_array_equal(parts[1], whole[1])


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12), st.data())
def test_fragments_are_equal_within_the_largest_leaf(sizes, data):
    fragments = data.draw(st.integers(1, len(sizes)))
    leaves = [np.full(size, i) for i, size in enumerate(sizes)]
    parts = split_fragments(leaves, fragments)
    found = [jax.tree.leaves(part) for part in parts]
    # In order, each leaf once, no fragment empty.
    assert [leaf[0] for own in found for leaf in own] == list(range(len(sizes)))
    assert all(found)
    largest = max(sum(leaf.size for leaf in own) for own in found)
    assert largest <= sum(sizes) / fragments + max(sizes)
    assert all(one is other for one, other in zip(join_fragments(parts), leaves, strict=True))


def test_more_fragments_than_arrays_are_refused():
    with pytest.raises(ConfigError, match="fragments = 5: must be at most 2, the number of arrays"):
        split_fragments(tree(START), 5)


@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize("local", [1, 2])
def test_a_device_sends_the_fragments_whose_turn_it_is(fragments, local):
    """In the program: over `node` one collective a fragment, each in a branch of its own."""
    rule = averaging(nodes.inner(), {"fragments": fragments, "mixing": 0.0}, sharded("data"))
    event, batch = entries_at(
        (nodes.events(meeting_schedule(STEPS, 4, fragments, 0)), nodes.BATCHES), 0
    )
    found = [
        (where, size)
        for axes, where, size in collectives(rule, tree(START), event, batch, NODES, local)
        if axes == ("node",)
    ]
    # Each of two devices sends half of a fragment, rounded up to whole numbers of four bytes.
    numbers = {1: [14], 2: [12, 2]}[fragments]
    assert found == [(("cond", 1), 4 * -(-count // local)) for count in numbers]


def test_the_program_says_the_bytes_that_the_clock_counts():
    run = battery.make_run("streaming model_averaging")
    step, state, said = jax.jit(run.rule.step), run.state, []
    for t in range(battery.STEPS):
        state, info = step(state, *battery.at((run.events, run.batches), t))
        said.append(float(info["sent_bytes"]))
    parts = [bytes_of(part) for part in split_fragments(run.params, 2)]
    np.testing.assert_array_equal(said, np.asarray(run.events.plan.send) @ parts)
