"""Messages: what is not sent is kept, bytes, limits, and collectives of many arrays at once."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn import methods
from optdyn.base.trees import bytes_of
from optdyn.methods.averaging import ModelAveraging, Outer, meeting_schedule
from optdyn.methods.messages import (
    AS_ONE_MESSAGE,
    SIMULATED,
    Collectives,
    Compression,
    Messages,
    gather_in_parts,
    levels,
    low_rank,
    quantizer,
    sharded,
)
from optdyn.train import program
from tests.methods import nodes
from tests.methods import test_battery as battery
from tests.methods.nodes import NODES, RATE, START, STEPS, averaging, flattened, tree
from tests.methods.reference import rounded
from tests.methods.test_battery import MESSAGES
from tests.methods.traced import collectives

NAMES = list(MESSAGES)

KEYS = {"compression_share": 0.25, "compression_rank": 1, "compression_block": 5}


@cache
def made(name):
    return averaging(nodes.inner(), KEYS | MESSAGES[name])


IDENTITY = Compression(
    lambda tree: (), lambda nodes, tree, state: (nodes.mean(tree), tree, state), lambda tree: (0,)
)


@pytest.mark.parametrize("delay, fragments, mixing", [(0, 1, 0.0), (2, 1, 0.3), (1, 2, 0.3)])
def test_a_message_that_leaves_nothing_out_is_as_without(delay, fragments, mixing):
    """C = id, of fragments and under way; and all of the numbers kept."""
    events = nodes.events(meeting_schedule(STEPS, 4, fragments, delay), RATE, 0.6)
    keys = {"mixing": mixing, "fragments": fragments}
    without, _ = nodes.ran(averaging(nodes.inner(), keys), events)
    weights = lambda waited: (mixing * jax.lax.axis_size("node"), 1 - mixing)  # noqa: E731
    whole = Messages(compression=IDENTITY)
    same = Outer(nodes.inner(), weights, messages=whole, fragments=fragments).rule()
    share = averaging(nodes.inner(), keys | {"compression": "top_k", "compression_share": 1.0})
    for one in (same, share):
        states, _ = nodes.ran(one, events)
        # x - theta + theta: an ulp, 1e-7, a meeting, some twenty of them.
        np.testing.assert_allclose(
            flattened(states.params), flattened(without.params), rtol=0, atol=5e-6
        )
        for leaf in jax.tree.leaves(states.errors):
            np.testing.assert_allclose(leaf, 0, atol=5e-6)


def along(params, batch):
    """A gradient that depends on the examples only, as a conservation law needs it."""
    return jnp.mean(batch["inputs"] @ jnp.concatenate([params["a"].reshape(-1), params["b"]]))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_sent_is_kept(name):
    """theta + mean_i e_i is what plain SGD would be at: the error is a debt, and none is lost."""
    inner = nodes.sync(
        nodes.core.averaged_gradient(nodes.core.full_gradient(along), "data"),
        nodes.core.single_optimizer(nodes.SGD),
    )
    every = averaging(inner, KEYS | MESSAGES[name])
    states, _ = nodes.ran(every, nodes.events(meeting_schedule(STEPS, 1, 1, 0)))
    ((errors, _),) = states.errors
    found = flattened(states.params)[:, 0] + flattened(errors).mean(1)
    grads = np.float64(nodes.BATCHES["inputs"]).mean(1)
    expected = START - RATE * np.cumsum(grads, 0)
    # Float32 sums of 32 numbers of about one. With bfloat16 the sums of messages are rounded too,
    # 2^-9 of a message of at most 0.05, and that is nobody's error.
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=STEPS * 0.05 * 2**-9 if name == "bfloat16" else 1e-5
    )
    assert np.abs(flattened(errors)).max() > (1e-6 if name == "bfloat16" else 0.01)


def maker_of(name):
    return ModelAveraging(**KEYS, **MESSAGES[name]).compressor()


@partial(jax.jit, static_argnums=0)
def messages_of(name, v):
    """Mean and own messages of nodes that have v, leaves (nodes, ...)."""
    one = maker_of(name)
    return jax.vmap(lambda v: one.apply(SIMULATED, v, one.init(v))[:2], axis_name="node")(v)


@settings(max_examples=40)
@given(st.integers(0, 2**16), st.sampled_from([1, 9]), st.sampled_from(NAMES))
def test_a_message_is_nearer_than_none(seed, size, name):
    """|v - C v| <= |v|: what error feedback needs to keep a bounded debt."""
    rng = np.random.default_rng(seed)
    v = {"a": rng.normal(size=(1, size, 5)), "b": rng.normal(size=(1, size)) * 1e-3}
    v = jax.tree.map(np.float32, v)
    mean, own = messages_of(name, v)
    for leaf in v:
        left = np.linalg.norm(v[leaf] - own[leaf])
        assert left <= np.linalg.norm(v[leaf]) * (1 + 1e-6)  # some ulp
        np.testing.assert_allclose(mean[leaf], own[leaf], rtol=1e-5, atol=1e-6)  # of one node


PACKED = [(2, 13, 5), (3, 8, 8), (4, 1, 3), (5, 17, 4), (6, 9, 1), (7, 11, 20), (8, 12, 4)]


@pytest.mark.parametrize("bits, size, block", PACKED)
def test_few_bits_are_the_nearest_level_of_their_block(bits, size, block):
    """What is packed comes out as the nearest level, and in as many bytes as are said."""
    v = np.random.default_rng(bits).normal(size=(50, size)).astype(np.float32)
    v[:10, ::2] = 0.0
    v[0] = 0.0
    one = quantizer(bits, block)
    code = jax.eval_shape(one.encode, jax.ShapeDtypeStruct((size,), "float32"))
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in code) == one.bytes(size)
    assert one.bytes(size) == -(-size * bits // 8) + 4 * -(-size // block)
    every = np.asarray(jax.jit(jax.vmap(lambda v: one.decode(one.encode(v), size)))(v))
    for sent, found in zip(v, every, strict=True):
        # In float32 a number between two levels may be nearer to either by its last bit: what is
        # compared is the distance, to an ulp of numbers of up to five.
        nearest = np.abs(rounded(levels(bits), sent, block) - sent)
        np.testing.assert_allclose(np.abs(found - sent), nearest, rtol=0, atol=1e-6)


def test_levels_are_of_all_codes_and_thirty_two_bits_are_none():
    for bits in range(2, 9):
        assert len(levels(bits)) == 2 ** (bits - 1) and levels(bits)[[0, -1]].tolist() == [0, 1]
        assert (np.diff(levels(bits)) > 0).all()
    assert ModelAveraging(compression_bits=32).compressor() is None
    whole, few = (averaging(nodes.inner(), keys) for keys in ({}, {"compression_bits": 8}))
    events = nodes.events(meeting_schedule(STEPS, 4, 1, 0), RATE, 0.6)
    plain, rounded_off = (nodes.ran(one, events)[0].params for one in (whole, few))
    apart = np.abs(flattened(plain) - flattened(rounded_off)).max()
    assert 1e-5 < apart < 0.05  # of steps of about one, whose levels are a 127th apart


@jax.jit
def twice(matrices, state):
    def node(matrix):
        means, own, _, q = low_rank(SIMULATED, [matrix], [state], [])
        again, *_ = low_rank(SIMULATED, [matrix], q, [])
        return means[0], own[0], again[0]

    return jax.vmap(node, axis_name="node")(matrices)


@settings(max_examples=40)
@given(st.integers(0, 2**16), st.sampled_from([(1, 3), (3, 3), (4, 6)]), st.integers(0, 4))
def test_at_full_rank_powersgd_is_an_all_reduce(seed, shape, true_rank):
    """Also of matrices of low rank, whose Q loses its own."""
    (rows, columns), rng = shape, np.random.default_rng(seed)
    left, right = rng.normal(size=(3, rows, true_rank)), rng.normal(size=(true_rank, columns))
    matrices = np.float32(left @ right)
    means, own, again = twice(matrices, np.float32(rng.normal(size=(columns, rows))))
    # Products of float32 matrices of numbers up to ten: some ulp of that.
    close = partial(np.testing.assert_allclose, rtol=0, atol=1e-4)
    close(own, matrices)
    for found in (means, again):
        close(found, np.broadcast_to(matrices.mean(0), found.shape))


def test_powersgd_does_not_depend_on_how_a_batch_is_divided():
    """Over 1, 2, 4 and 8 workers: the same batches, in float64, and it is no all-reduce."""
    doubled = {k: np.concatenate([v, v[:, ::-1] ** 3], 1) for k, v in nodes.BATCHES.items()}  # 24
    found = {}
    with jax.enable_x64(True):
        start, batches = jax.tree.map(np.float64, (jax.device_get(tree(START)), doubled))
        events = nodes.events(meeting_schedule(STEPS, 1, 1, 0), jnp.float64(0.01))
        for workers in (1, 2, 4, 8):
            states, _ = nodes.ran(made("powersgd"), events, workers, batches, start)
            x = flattened(states.params)
            assert x.dtype == np.float64 and np.ptp(x, axis=1).max() == 0
            found[workers] = x[:, 0]
        plain, _ = nodes.ran(averaging(nodes.inner(), {}), events, 1, batches, start)
        top = [nodes.ran(made("top_k"), events, k, batches, start)[0].params for k in (1, 4)]
    assert np.abs(flattened(plain.params)[:, 0] - found[1]).max() > 0.01
    for workers in (2, 4, 8):
        # The same sums in another order. Measured 7e-13 after 32 updates, in float32 1e-5.
        np.testing.assert_allclose(found[workers], found[1], rtol=0, atol=1e-10)
    # It is not so where messages are no linear function of what is sent.
    assert np.abs(flattened(top[0])[:, 0] - flattened(top[1])[:, 0]).max() > 1e-3


BYTES = {  # of 12 numbers (3, 4) and 2: a quarter is 3 and 1 of (float32, int32)
    "bfloat16": 2 * 14,
    "top_k": 8 * (3 + 1),
    "sign": (2 + 4) + (1 + 4),  # bits in bytes, and a scale an array
    "powersgd": 4 * (3 + 4 + 2),
    "E3M0": (6 + 3 * 4) + (1 + 4),  # half a byte each, and a scale of every five
    "3 bits": (5 + 3 * 4) + (1 + 4),
    "top_k of 2 bits": (1 + 4 + 3 * 4) + (1 + 4 + 4),
}


@pytest.mark.parametrize("local", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_node_sends_so_many_bytes(name, local):
    """Counted in the program of a real device: so many as the log says, shared by its devices."""
    keys = KEYS | MESSAGES[name]
    method = averaging(nodes.inner(), keys, sharded("data") if local > 1 else SIMULATED)
    event, batch = battery.at((nodes.events(meeting_schedule(STEPS, 1, 1, 0)), nodes.BATCHES), 0)
    every = collectives(method, tree(START), event, batch, NODES, local)
    found = [size for axes, _, size in every if "node" in axes]
    arrays = 2 * len(found)  # each is padded to a multiple of the devices, a number of four bytes
    assert BYTES[name] <= local * sum(found) <= BYTES[name] + (local - 1) * 4 * arrays
    _, sent = nodes.ran(made(name), nodes.events(meeting_schedule(STEPS, 1, 1, 0)))
    np.testing.assert_array_equal(sent, BYTES[name])


MESSAGES_ALONE = {
    "method.period": 3,
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
    model_info = methods.ModelInfo(program.problem_of(config, battery.CLASSES), params, {})
    size = bytes_of(params)
    known = {"steps_per_epoch": 4, "update_bytes": size, "model_info": model_info}
    line = config.timeline(**known)
    computing = battery.BATCH / config.cluster.nodes * config.cluster.seconds_per_example
    return np.diff(line.seconds, prepend=0.0) - computing


WHOLE = {"gossip", "demo", "sparta"}  # after every update, and always as much


SENT = {
    **{f"gossip of {name}": ("gossip", {"method.compression": name}) for name in ("top_k", "sign")},
    "gossip of 4 bits": ("gossip", {"method.compression_bits": 4}),
    "demo": ("demo", {"method.coefficients": 3, "method.chunk": 4}),
    **{f"sparta of {s}": ("sparta", {"method.averaged_share": s}) for s in (0.1, 1.0)},
    "gasloc": ("gasloc", {"method.graph": "ring"}),
    "over a graph": ("diloco+gossip", {"method.graph": "ring"}),
    **{f"sparseloco {n}": ("sparseloco", {"method.compression_bits": n}) for n in (2, 32)},
    **{f"diloco of {kind}": (f"{kind} messages", {}) for kind in battery.MESSAGES},
    "diloco of fragments": ("powersgd messages", {"method.fragments": 2}),
}


@pytest.mark.parametrize("case", SENT)
def test_the_clock_counts_the_bytes_of_two_nodes(case):
    """A ring of two takes as long as a message, whether it is added up, gathered or swapped."""
    name, values = SENT[case]
    if name == "gossip":
        values = values | {"method.gossip_order": "adapt", "method.graph": "ring"}
    sent, took, _ = sent_and_seconds(name, values)
    np.testing.assert_allclose(took, sent, rtol=1e-12)  # whole numbers in float64
    assert sent.max() > 0 and (np.ptp(sent) == 0) == (name in WHOLE)


@pytest.mark.parametrize("name, times", [("top_k", 3), ("sign", 3), ("bfloat16", 1.5), ("E3M0", 3)])
def test_messages_that_cannot_be_added_up_go_to_all_others(name, times):
    """(n - 1) whole messages and not 2 (n - 1) / n of them."""
    params = battery.make_run("slowmo").params
    values = {f"method.{key}": value for key, value in (KEYS | MESSAGES[name]).items()}
    took = seconds("slowmo", params, MESSAGES_ALONE | values | {"cluster.nodes": 4})
    sent = sum(maker_of(name).messages(params)) * np.tile([0, 0, 1], 4)
    np.testing.assert_allclose(took, times * sent, rtol=1e-12)  # whole numbers in float64


@pytest.mark.parametrize("size", [3, 8])
def test_what_is_gathered_in_parts_is_what_each_node_has(size):
    x = jnp.asarray(np.random.default_rng(0).integers(0, 9, (NODES, size)), jnp.int32)
    inside = jax.vmap(lambda own, _: gather_in_parts(own, "data"), (None, 0), axis_name="data")
    found = jax.vmap(inside, (0, None), axis_name="node")(x, jnp.arange(2))
    np.testing.assert_array_equal(found, np.broadcast_to(x, (NODES, 2, NODES, size)))


def trees(nodes: int) -> dict:
    """Arrays of several shapes and types, also one of no axis, of each node."""
    rng = np.random.default_rng(0)
    return {
        "w": jnp.asarray(rng.normal(size=(nodes, 3, 4)), jnp.float32),
        "b": jnp.asarray(rng.normal(size=nodes), jnp.float32),
        "short": jnp.asarray(rng.normal(size=(nodes, 5)), jnp.bfloat16),
        "where": jnp.asarray(rng.integers(-(2**31), 2**31, (nodes, 2)), jnp.int32),
        "bits": jnp.asarray(rng.integers(0, 256, (nodes, 7)), jnp.uint8),
    }


@pytest.mark.parametrize("kind", ("sums", "gather"))
@pytest.mark.parametrize("names", (("w", "b"), ("w", "b", "short"), ("w", "where", "bits", "b")))
def test_all_arrays_at_once_are_each_by_itself(kind, names):
    tree = {name: leaf for name, leaf in trees(3).items() if name in names}
    one_by_one, at_once = (
        jax.vmap(getattr(collectives, kind), axis_name="node")(tree)
        for collectives in (SIMULATED, AS_ONE_MESSAGE)
    )
    for name in names:
        assert at_once[name].dtype == tree[name].dtype
        np.testing.assert_array_equal(at_once[name], one_by_one[name])


@pytest.mark.parametrize("kind, of", [("sums", "psum"), ("gather", "all_gather")])
def test_they_are_one_message(kind, of):
    """Floats, and where nothing is added up also numbers of other types beside them."""
    names = ("w", "b") if kind == "sums" else ("w", "where", "b")
    tree = {name: trees(2)[name][0] for name in names}

    def messages(collectives: Collectives) -> int:
        traced = jax.make_jaxpr(getattr(collectives, kind), axis_env=[("node", 2)])(tree)
        return sum(each.primitive.name.startswith(of) for each in traced.jaxpr.eqns)

    assert messages(AS_ONE_MESSAGE) == 1
    assert messages(SIMULATED) > 1
