"""DASO against an independent simulation with lists and a queue, its limits and conservation."""

from collections import deque
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn import optimizers
from optdyn.clock.cluster import Cluster
from optdyn.clock.timeline import Meeting, entries_at
from optdyn.devices.simulated import NodeStates, over_nodes
from optdyn.methods import Event
from optdyn.methods.daso import DASO
from optdyn.methods.daso import clock as phases
from optdyn.methods.messages import SIMULATED, in_parts, sharded
from tests.methods.composed import daso
from tests.methods.traced import collectives

NODES, LOCAL, EACH = 4, 2, 3  # EACH: examples a device
EPOCH, EPOCHS = 20, 10
STEPS, BATCH = EPOCH * EPOCHS, NODES * LOCAL * EACH
RATE, MOMENTUM = 0.05, 0.6
SGD = optimizers.optimizer("sgd", ("learning_rate", "momentum"))
# B and W of each epoch, from a warm-up over a whole cycle and parts of others to a cool-down.
PERIODS = [(1, 0), (4, 2), (2, 1), (1, 1), (4, 2), (2, 1), (1, 1), (4, 2), (2, 1), (1, 0)]


def loss(params, batch):
    """Half the mean square of w . x + c - y."""
    error = batch["x"] @ params["w"] + params["c"] - batch["y"]
    return 0.5 * jnp.mean(error**2)


def flat(params, batch):
    """A loss without a gradient: what nodes do to one another is all that happens."""
    return 0.0 * params["c"].sum() + 0.0 * batch["y"].sum()


@pytest.fixture(scope="module")
def batches():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS, BATCH, 3))
    y = x @ [1.0, -2.0, 0.5] + 3 + rng.normal(0, 0.3, (STEPS, BATCH))
    return {"x": x.astype(np.float32), "y": y.astype(np.float32)}


METHOD = over_nodes(daso(loss, SGD), NODES, LOCAL)
FLAT = over_nodes(daso(flat, SGD), NODES, LOCAL)
START = {"w": jnp.array([0.3, 0.1, -0.2]), "c": jnp.float32(0.7)}


def meetings_of(**values):
    """The meetings of a run over the periods above, unless values say otherwise."""
    usual = {"wait": 2, "warmup_epochs": 1, "cooldown_epochs": 1, "patience": 0}
    made = phases(
        Cluster(),
        DASO(**usual | values),
        steps=STEPS,
        steps_per_epoch=EPOCH,
        batch_size=1,
        update_bytes=0,
        epoch_losses=[1.0] * EPOCHS,
    )
    return made.plan


def events_of(choice, momentum=MOMENTUM):
    n = len(choice.send)
    hyper = {"learning_rate": jnp.full(n, RATE), "momentum": jnp.full(n, momentum)}
    return Event(jax.tree.map(jnp.asarray, choice), hyper)


@partial(jax.jit, static_argnums=0)
def scan(method, state, events, batches):
    def body(state, inputs):
        state, info = method.step(state, *inputs)
        return state, (info["loss"], state)

    return jax.lax.scan(body, state, (events, batches))


def reference(batches):
    """Parameters of every node after every step, (STEPS, NODES, 4) as w, c: float64, no arrays of
    flags, one message a tuple in a queue."""
    nodes = [np.array([*np.float64(START["w"]), np.float64(START["c"])]) for _ in range(NODES)]
    velocity = [np.zeros(4) for _ in range(NODES)]
    history = []
    for epoch, (period, wait) in enumerate(PERIODS):
        queue = deque()  # (batch at which it is received, what every node sent)
        for b in range(EPOCH):
            x, y = (batches[name][epoch * EPOCH + b] for name in ("x", "y"))
            for p in range(NODES):
                part = slice(p * LOCAL * EACH, (p + 1) * LOCAL * EACH)
                inputs = np.c_[np.float64(x[part]), np.ones(LOCAL * EACH)]
                gradient = inputs.T @ (inputs @ nodes[p] - y[part]) / (LOCAL * EACH)
                velocity[p] = MOMENTUM * velocity[p] + gradient
                nodes[p] = nodes[p] - RATE * velocity[p]
            if b % period == 0 and b + wait < EPOCH - 1:
                queue.append((b + wait, list(nodes)))
            if queue and queue[0][0] == b:
                sent = queue.popleft()[1]
                nodes = [(2 * wait * x + sum(sent)) / (2 * wait + NODES) for x in nodes]
            if b == EPOCH - 1:
                assert not queue
                nodes = [sum(nodes) / NODES] * NODES
            history.append(list(nodes))
    return np.array(history)


def test_two_hundred_steps_through_all_phases_equal_the_reference(batches):
    events = events_of(meetings_of())
    _, (_, after) = scan(METHOD, METHOD.init(START), events, batches)
    params = np.concatenate([after.state.params["w"], after.state.params["c"][..., None]], -1)
    expected = reference(batches)
    # Values of a few units in float32, 3e-7 each, and the descent forgets: some ten of those.
    np.testing.assert_allclose(params, expected, rtol=0, atol=5e-6)
    # The nodes do part in between, by far more than that.
    assert np.ptp(params, axis=1).max() > 0.05


def apart(method, seed):
    """Nodes that are not equal: states of the method."""
    state = method.init(START).state
    shift = np.random.default_rng(seed).normal(size=(NODES, 3)).astype(np.float32)
    inner = state.inner.moved_to(state.params | {"w": state.params["w"] + shift})
    return NodeStates(state._replace(inner=inner))


def nothing(steps):
    return {"x": np.zeros((steps, BATCH, 3), np.float32), "y": np.zeros((steps, BATCH), np.float32)}


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 8), st.data())
def test_a_merge_keeps_the_mean_and_shrinks_the_spread(wait, data):
    """Without gradients every receipt of weight 2 S = 2 W multiplies the distance from the mean by
    2 S / (2 S + P), a blocking one by 0, and the mean stays. So equal nodes stay as they are."""
    period = data.draw(st.integers(wait, 8))
    choice = meetings_of(max_batches=period, wait=wait, warmup_epochs=0, patience=EPOCHS)
    window = entries_at(choice, slice(EPOCH))
    state = apart(FLAT, data.draw(st.integers(0, 99)))
    before = np.float64(state.state.params["w"])
    _, (_, after) = scan(FLAT, state, events_of(window), nothing(EPOCH))
    factor = np.where(window.receive, 2 * wait / (2 * wait + NODES), 1.0)
    factor[-1] = 0.0
    mean = before.mean(0)
    expected = mean + np.cumprod(factor)[:, None, None] * (before - mean)
    # Values of up to 4, one rounding of 2e-7 in each of the sums and products of 20 receipts.
    np.testing.assert_allclose(after.state.params["w"], expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(after.state.params["c"], 0.7, rtol=0, atol=1e-5)


def test_bfloat16_is_only_for_the_journey():
    method = over_nodes(daso(flat, SGD, "bfloat16"), NODES, LOCAL)
    state = apart(method, 0)
    sums = jax.tree.leaves(state.state.in_flight)
    assert {leaf.dtype for leaf in sums} == {jnp.dtype("bfloat16")}
    choice = entries_at(meetings_of(), slice(1))  # blocking
    after, _ = scan(method, state, events_of(choice), nothing(1))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    mean, merged = np.asarray(state.state.params["w"]).mean(0), np.asarray(after.params["w"])
    # Four numbers of up to 4 in 8 bits, 2^-9 of each, and as much for each of the partial sums.
    np.testing.assert_allclose(merged, mean, rtol=0, atol=4 * 2**-7)
    assert np.abs(merged - mean).max() > 1e-4  # float32 would be within 1e-6


def test_replicas_with_schedules_of_their_own_equal_one_by_one(batches):
    """Mapped over, the flags are no scalars any more and nothing else may change."""
    window = {name: values[: 3 * EPOCH] for name, values in batches.items()}
    runs = [
        events_of(entries_at(choice, slice(3 * EPOCH)))
        for choice in (meetings_of(), meetings_of(wait=1), meetings_of(warmup_epochs=0))
    ]
    run = partial(scan, METHOD, METHOD.init(START), batches=window)
    every = jax.tree.map(lambda *leaves: jnp.stack(leaves), *runs)
    together = jax.vmap(lambda events: run(events=events)[0].state.params["w"])(every)
    alone = [run(events=events)[0].state.params["w"] for events in runs]
    assert np.abs(alone[0] - alone[1]).max() > 1e-4
    # Other orders of float32 sums, as above.
    np.testing.assert_allclose(together, alone, rtol=0, atol=5e-6)


def traced(dtype="", sends=SIMULATED):
    """Collectives of the program of a device, at a step that sends."""
    event, batch = entries_at((events_of(meetings_of()), nothing(1)), 0)
    method = daso(loss, SGD, dtype, collectives=sends)
    return collectives(method, START, event, batch, NODES, LOCAL)


def test_quiet_steps_use_the_local_network_only():
    """On a mesh: the one collective over `node` is in the branch of a step that sends."""
    # Gradients at every step, parameters in a branch.
    assert {each[:2] for each in traced()} == {(("data",), ()), (("node",), ("cond", 1))}


@pytest.mark.parametrize("dtype", ["", "bfloat16"])
def test_a_node_sends_its_message_once(dtype):
    """Counted in the program of a device: the clock's bytes, where without turns all would send."""
    sent = {
        name: LOCAL * sum(size for axes, _, size in traced(dtype, sends) if axes == ("node",))
        for name, sends in (("all", SIMULATED), ("in parts", sharded("data")))
    }
    of_clock = 4 * (2 if dtype else 4)  # w and c, four numbers
    assert sent == {"all": LOCAL * of_clock, "in parts": of_clock}
    said = jax.eval_shape(daso(loss, SGD, dtype).init, START).in_flight
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(said)) == of_clock
    one = over_nodes(daso(loss, SGD, dtype), NODES, LOCAL)
    _, info = one.step(one.init(START), *entries_at((events_of(meetings_of()), nothing(1)), 0))
    assert info["sent_bytes"] == of_clock


@pytest.mark.parametrize("size", [3, 8])
def test_sums_in_parts_are_the_sums(size):
    """Also where the parts are not equally long; mapped, as axes are simulated."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(NODES, size)), jnp.float32)

    def device(own, _):
        return in_parts({"a": own[:2], "b": own[2:]}, "data")

    inside = jax.vmap(device, (None, 0), axis_name="data")
    found = jax.vmap(inside, (0, None), axis_name="node")(x, jnp.arange(LOCAL))
    whole = np.concatenate([found["a"], found["b"]], -1)
    expected = np.broadcast_to(np.asarray(x).sum(0), whole.shape)
    np.testing.assert_allclose(whole, expected, rtol=1e-6, atol=1e-6)


def test_bfloat16_where_nodes_wait_only():
    """As the authors' program: a blocking message is rounded, one that travels is not."""
    method = over_nodes(daso(flat, SGD, blocking_dtype="bfloat16"), NODES, LOCAL)
    state = apart(method, 0)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.state.in_flight)} == {jnp.dtype("float32")}
    choice = Meeting(np.array([True]), np.array([False]), np.array([0], np.int32))
    after, _ = scan(method, state, events_of(choice), nothing(1))
    total = np.asarray(state.state.params["w"]).sum(0)
    np.testing.assert_allclose(after.state.in_flight["w"][0], total, rtol=1e-6)
    blocking = choice._replace(receive=np.array([True]))
    after, _ = scan(method, state, events_of(blocking), nothing(1))
    merged, mean = np.asarray(after.params["w"]), total / NODES
    np.testing.assert_allclose(merged, mean, rtol=0, atol=4 * 2**-7)
    assert np.abs(merged - mean).max() > 1e-4
