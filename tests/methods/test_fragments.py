"""Fragments that take turns: against lists in float64, their limits, what a device sends."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn import core, optimizers
from optdyn.clock.timeline import entries_at
from optdyn.devices.simulated import over_nodes
from optdyn.experiment import ConfigError
from optdyn.methods import Event
from optdyn.methods.averaging import cut, join, meeting_schedule
from optdyn.methods.messages import sharded
from optdyn.methods.sync import sync
from optdyn.train.program import parameter_bytes
from tests.methods import test_battery as battery
from tests.methods.nodes import averaging
from tests.methods.traced import collectives

NODES, EACH, STEPS = 3, 4, 41  # EACH: examples a node
RATE, ETA, MU = 0.05, 0.7, 0.9
SIZES = {"a": 3, "b": 1, "c": 2, "d": 2}  # in two fragments: a and b, c and d
OF = np.repeat([0, 0, 1, 1], list(SIZES.values()))  # of two fragments, for every parameter
SGD = optimizers.optimizer("sgd", ("learning_rate",))
NESTEROV = optax.sgd(ETA, momentum=MU, nesterov=True)
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(STEPS, NODES * EACH, len(OF))).astype(np.float32)
TARGETS = RNG.normal(size=(STEPS, NODES * EACH)).astype(np.float32)
BATCHES = {"inputs": INPUTS, "targets": TARGETS}
START = RNG.normal(size=len(OF)).astype(np.float32)


def tree(flat):
    """The leaves of flat parameters, (..., 8)."""
    ends = np.cumsum(list(SIZES.values()))[:-1]
    return dict(zip(SIZES, jnp.split(jnp.asarray(flat), ends, axis=-1), strict=True))


def flattened(params):
    return np.concatenate([params[name] for name in SIZES], axis=-1)


def loss(params, batch):
    """A quadratic whose curvature is another one for every node."""
    flat = jnp.concatenate([params[name] for name in SIZES])
    return 0.5 * jnp.mean((batch["inputs"] @ flat - batch["targets"]) ** 2)


INNER = sync(core.averaged_gradient(core.full_gradient(loss), "data"), core.single_optimizer(SGD))


@cache
def method(fragments=1, mixing=0.0, optimizer=None):
    keys = {"fragments": fragments, "mixing": mixing}
    return over_nodes(averaging(INNER, keys, optimizer=optimizer), NODES, 1)


@partial(jax.jit, static_argnums=0)
def scan(made, choice):
    """(STEPS, NODES, ...) states of the nodes after every update and (STEPS,) bytes sent."""
    rate = {"learning_rate": jnp.full(STEPS, RATE)}

    def body(state, inputs):
        state, info = made.step(state, *inputs)
        return state, (state.state, info["sent_bytes"])

    events = Event(jax.tree.map(jnp.asarray, choice), rate)
    return jax.lax.scan(body, made.init(tree(START)), (events, BATCHES))[1]


def reference(period, delay, mixing, fragments=2):
    """x (STEPS, NODES, 8) and theta (STEPS, 8): float64, a message a tuple in a list, Nesterov's
    momentum as b <- mu b + D, theta <- theta - eta (D + mu b), for every fragment by itself."""
    of = OF if fragments == 2 else 0 * OF
    nodes, theta = [np.float64(START)] * NODES, np.float64(START)
    momentum, messages = np.zeros(len(OF)), []  # (fragment, when it is received, its mean)
    history, centers = [], []
    for t in range(STEPS):
        for i, x in enumerate(nodes):
            part = slice(i * EACH, (i + 1) * EACH)
            inputs = np.float64(INPUTS[t, part])
            nodes[i] = x - RATE * inputs.T @ (inputs @ x - TARGETS[t, part]) / EACH
        last = t == STEPS - 1
        for q in range(fragments):
            its_turn = (t + 1) % period == q * period // fragments
            if last or (its_turn and t + delay < STEPS - 1):
                mean = sum(x[of == q] for x in nodes) / NODES
                messages.append((q, t if last else t + delay, mean))
        for q, _, mean in [message for message in messages if message[1] == t]:
            mine = of == q
            gap = theta[mine] - mean
            momentum[mine] = MU * momentum[mine] + gap
            theta = theta.copy()
            theta[mine] -= ETA * (gap + MU * momentum[mine])
            nodes = [np.where(mine, (1 - mixing) * theta + mixing * x, x) for x in nodes]
        messages = [message for message in messages if message[1] > t]
        history.append(list(nodes))
        centers.append(theta)
    assert not messages
    return np.array(history), np.array(centers)


@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize(
    "period, delay, mixing", [(4, 0, 0.0), (4, 1, 0.0), (4, 1, 0.3), (5, 0, 0.5), (9, 3, 0.0)]
)
def test_streaming_diloco_equals_the_reference(period, delay, mixing, fragments):
    made = method(fragments, mixing, NESTEROV)
    states, _ = scan(made, meeting_schedule(STEPS, period, fragments, delay))
    x, theta = reference(period, delay, mixing, fragments)
    # Parameters of about one in float32, 1e-7 an operation, some ten of them in each of 41 updates.
    np.testing.assert_allclose(flattened(states.params), x, rtol=0, atol=2e-5)
    centers = flattened(join([of[0] for of in states.outer]))
    np.testing.assert_allclose(centers, np.repeat(theta[:, None], NODES, 1), rtol=0, atol=2e-5)
    # The nodes do part in between, by far more than that.
    assert np.ptp(x, axis=1).max() > 0.05


@pytest.mark.parametrize("optimizer", [None, NESTEROV])
@pytest.mark.parametrize("delay", [0, 2])
def test_fragments_that_meet_together_are_one_to_the_bit(delay, optimizer):
    """However they are cut: what is done to a leaf does not depend on the others."""
    choice = meeting_schedule(STEPS, 4, 1, delay)
    whole, sent = scan(method(1, 0.25, optimizer), choice)
    for fragments in (2, 3, 4):
        parts, its = scan(method(fragments, 0.25, optimizer), choice)
        jax.tree.map(np.testing.assert_array_equal, parts.params, whole.params)
        np.testing.assert_array_equal(its, sent)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12), st.data())
def test_fragments_are_equal_within_the_largest_leaf(sizes, data):
    fragments = data.draw(st.integers(1, len(sizes)))
    leaves = [np.full(size, i) for i, size in enumerate(sizes)]
    parts = cut(leaves, fragments)
    found = [jax.tree.leaves(part) for part in parts]
    # In order, each leaf once, no fragment empty.
    assert [leaf[0] for own in found for leaf in own] == list(range(len(sizes)))
    assert all(found)
    largest = max(sum(leaf.size for leaf in own) for own in found)
    assert largest <= sum(sizes) / fragments + max(sizes)
    assert all(one is other for one, other in zip(join(parts), leaves, strict=True))


def test_more_fragments_than_arrays_are_refused():
    with pytest.raises(ConfigError, match="fragments = 5: must be at most 4, the number of arrays"):
        cut(tree(START), 5)


@pytest.mark.parametrize("fragments", [1, 2, 4])
@pytest.mark.parametrize("local", [1, 2])
def test_a_device_sends_the_fragments_whose_turn_it_is(fragments, local):
    """In the program: over `node` one collective a fragment, each in a branch of its own."""
    made = averaging(INNER, {"fragments": fragments, "mixing": 0.0}, sharded("data"))
    choice = entries_at(meeting_schedule(STEPS, 4, fragments, 0), 0)
    event = Event(choice, {"learning_rate": jnp.float32(RATE)})
    every = collectives(made, tree(START), event, battery.at(BATCHES, 0), NODES, local)
    found = [each for each in every if each[0] == ("node",)]
    assert [where for _, where, _ in found] == [("cond", 1)] * fragments
    parts = cut(tree(START), fragments)
    # Each of two devices sends half of a fragment, rounded up to whole numbers of four bytes.
    assert [size for *_, size in found] == [
        4 * -(-parameter_bytes(part) // 4 // local) for part in parts
    ]


def test_the_program_says_the_bytes_that_the_clock_counts():
    run = battery.make_run("streaming model_averaging")
    step, state, said = jax.jit(run.rule.step), run.state, []
    for t in range(battery.STEPS):
        state, info = step(state, *battery.at((run.events, run.batches), t))
        said.append(float(info["sent_bytes"]))
    parts = [parameter_bytes(part) for part in cut(run.params, 2)]
    np.testing.assert_array_equal(said, np.asarray(run.events.plan.send) @ parts)
