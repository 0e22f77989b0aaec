"""Unequal shares against the whole batch at once: the split must not be seen in the update."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.clock.timeline import Shares, padded_share, split_batches
from optdyn.core import Event
from optdyn.devices.simulated import over_workers
from optdyn.methods.dynamic_batch import WEIGHTS
from optdyn.problem import problem
from optdyn.problem.models import MLP
from tests.methods.composed import by_shares

WORKERS, BATCH, CLASSES = 4, 22, 5
NETWORK = problem.make(MLP(hidden=(7,)), CLASSES)
# An optimizer whose state is the last gradient, to the bit.
KEEP = optax.GradientTransformationExtraArgs(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda grads, state, params=None, **hyper: (jax.tree.map(jnp.zeros_like, grads), grads),
)
SPLITS = [(6, 6, 5, 5), (1, 1, 1, 19), (22, 0, 0, 0), (0, 3, 0, 19), (3, 6, 9, 4), (2, 4, 5, 11)]


def losses(params, batch):
    return NETWORK.losses(NETWORK.outputs(params, batch), batch)


def make_batch(rng, *shape):
    return {
        "image": rng.integers(0, 256, (*shape, BATCH, 3, 3, 1), dtype=np.uint8),
        "label": rng.integers(0, CLASSES, (*shape, BATCH), dtype=np.int32),
    }


def make_params(rng, batch):
    shapes = jax.eval_shape(NETWORK.init, jax.random.key(0), batch)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape), leaf.dtype), shapes
    )


def make_event(shares, **hyper):
    return Event(Shares(jnp.asarray(shares, jnp.int32)), hyper)


def handed(shares, batch, room=None):
    """What the workers are given of a batch, or of several, (n, workers) shares and (n, B) each."""
    shares = np.asarray(shares)
    several = shares.reshape(-1, shares.shape[-1])
    numbers = np.tile(np.arange(several[0].sum()), (len(several), 1))
    own = split_batches(numbers, several, room or padded_share(shares))
    if shares.ndim == 1:
        return jax.tree.map(lambda leaf: leaf[own[0]], batch)
    return jax.tree.map(lambda leaf: leaf[np.arange(len(own))[:, None], own], batch)


GRADIENT = jax.jit(jax.value_and_grad(NETWORK.loss))
BATCHES = make_batch(np.random.default_rng(0))
PARAMS = make_params(np.random.default_rng(1), BATCHES)


@cache  # one compilation a micro-batch
def step_of(micro_batch):
    return jax.jit(over_workers(by_shares(losses, KEEP, micro_batch), WORKERS).step)


def split_gradient(shares, micro_batch, params=PARAMS, batch=BATCHES):
    state = over_workers(by_shares(losses, KEEP, micro_batch), WORKERS).init(params)
    state, info = step_of(micro_batch)(state, make_event(shares), handed(shares, batch))
    return info["loss"], state.opt_state


@partial(jax.jit, static_argnums=0)
def error(loss, params, batch, grads):
    """Largest difference from the whole batch's gradient, relative to what the batch adds up.

    That is the mean size of an example's gradient, its largest entry in the leaf: the mean gradient
    itself may be small because examples cancel, and rounding is not.
    """
    examples = jax.tree.map(lambda leaf: leaf[:, None], batch)
    each = jax.vmap(jax.grad(loss), (None, 0))(params, examples)
    whole = jax.grad(loss)(params, batch)
    relative = jax.tree.map(
        lambda a, b, e: jnp.abs(a - b).max() / jnp.abs(e).mean(axis=0).max(), grads, whole, each
    )
    return jnp.max(jnp.stack(jax.tree.leaves(relative)))


# Sums of 22 examples in float32, in another order: each of some 22 additions rounds by at most
# 6e-8 of the partial sum, 1.3e-6 if all err alike. A dropped example would show as 1/22.
FLOAT32 = 1.3e-6


@pytest.mark.parametrize("micro_batch", [1, 3, 4, 100])
@pytest.mark.parametrize("shares", SPLITS)
def test_the_split_gradient_is_that_of_the_whole_batch(shares, micro_batch):
    """Parts that micro-batches fill, overfill, reach beyond what is given with, or are nothing."""
    value, grads = split_gradient(shares, micro_batch)
    assert error(NETWORK.loss, PARAMS, BATCHES, grads) < FLOAT32
    assert float(value) == pytest.approx(float(GRADIENT(PARAMS, BATCHES)[0]), rel=FLOAT32)


@settings(deadline=None, max_examples=40)  # a busy machine is not an error
@given(st.lists(st.integers(0, BATCH), min_size=3, max_size=3).map(sorted), st.integers(0, 2**32))
def test_any_split_gives_the_gradient_of_the_whole_batch(cuts, seed):
    shares = np.diff([0, *cuts, BATCH])
    batch = make_batch(np.random.default_rng(seed))
    _, grads = split_gradient(shares, 4, batch=batch)
    assert error(NETWORK.loss, PARAMS, batch, grads) < FLOAT32


def test_in_float64_the_split_is_exact_to_float64():
    """So what float32 leaves is rounding and nothing else."""

    def curved(params, batch):
        return jnp.tanh(batch["x"] @ params - batch["y"]) ** 2

    def mean(params, batch):
        return curved(params, batch).mean()

    with jax.enable_x64(True):
        rng = np.random.default_rng(2)
        params = jnp.asarray(rng.normal(size=3))
        batch = {
            "x": rng.normal(size=(BATCH, 3)),
            "y": rng.normal(size=BATCH),
        }
        method = over_workers(by_shares(curved, KEEP, 4), WORKERS)
        step, start = jax.jit(method.step), method.init(params)
        for shares in SPLITS:
            state, _ = step(start, make_event(shares), handed(shares, batch))
            assert state.opt_state.dtype == jnp.float64
            # The bound of FLOAT32 with 1.1e-16 in place of 6e-8.
            assert error(mean, params, batch, state.opt_state) < 2.4e-15


@pytest.mark.parametrize("micro_batch", [1, 3, 4, 100])
@pytest.mark.parametrize("shares", SPLITS)
def test_every_worker_computes_its_own_examples_in_order(shares, micro_batch):
    """A parameter for every worker and example: its gradient says who computed what."""

    def named(params, batch):
        return params[jax.lax.axis_index("data"), batch["number"]]

    method = over_workers(by_shares(named, KEEP, micro_batch), WORKERS)
    state = method.init(jnp.zeros((WORKERS, BATCH)))
    batch = handed(shares, {"number": np.arange(BATCH, dtype=np.int32)})
    who = jax.jit(method.step)(state, make_event(shares), batch)[0].opt_state
    owner = np.repeat(np.arange(WORKERS), shares)
    np.testing.assert_array_equal(who, np.float32((owner == np.arange(WORKERS)[:, None]) / BATCH))


def test_nothing_recompiles_when_shares_change():
    traces = []

    def counted(params, batch):
        traces.append(len(batch["label"]))
        return losses(params, batch)

    method = over_workers(by_shares(counted, KEEP, 4), WORKERS)
    step, state = jax.jit(method.step), method.init(PARAMS)
    counts = []
    for shares in SPLITS:
        step(state, make_event(shares), handed(shares, BATCHES, room=32))
        counts.append(len(traces))
    assert counts[0] > 0 and set(counts) == {counts[0]}
    assert set(traces) == {4}  # always whole micro-batches


@pytest.mark.parametrize("micro_batch", [4, 11])
def test_no_micro_batch_more_than_the_part_needs(micro_batch):
    computed = []

    def counted(params, batch):
        jax.debug.callback(lambda _: computed.append(1), params)
        return params * batch["x"]

    method = over_workers(by_shares(counted, KEEP, micro_batch), 1)
    state = method.init(jnp.float32(0))
    jax.block_until_ready(method.step(state, make_event([BATCH]), {"x": jnp.ones(BATCH)}))
    jax.effects_barrier()
    assert len(computed) == -(-BATCH // micro_batch)
    # Work is really done, as often as it is said, and is not seen in the sum.
    event = make_event([BATCH])
    event = event._replace(plan=event.plan._replace(work=jnp.asarray([3])))
    again, info = method.step(state, event, {"x": jnp.ones(BATCH)})
    jax.effects_barrier()
    assert len(computed) == 4 * -(-BATCH // micro_batch)
    assert (again.opt_state, info["loss"]) == (1, 0)


def equations(jaxpr, loops=()):
    """All equations, each with the loops that it lies in."""
    for equation in jaxpr.eqns:
        yield equation, loops
        inside = (*loops, equation.primitive.name) if equation.primitive.name == "while" else loops
        for trace in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(trace, "jaxpr", trace)  # of a closed one
            if hasattr(inner, "eqns"):
                yield from equations(inner, inside)


def test_workers_meet_once_and_after_the_loop():
    method = by_shares(losses, KEEP, 4)
    made = jax.make_jaxpr(method.step, axis_env=[("data", WORKERS)])
    every = list(equations(made(method.init(PARAMS), make_event(SPLITS[0]), BATCHES).jaxpr))
    # Whatever names the axis is a collective, but for the worker's own number.
    named = [
        (equation.primitive.name, loops)
        for equation, loops in every
        if "'data'" in f"{equation.params.get('axes')} {equation.params.get('axis_name')!r}"
    ]
    assert sorted(named) == [("axis_index", ()), ("psum", ())]
    assert any(loops == ("while",) and e.primitive.name == "dot_general" for e, loops in every)


def test_shares_are_asked_for():
    method, batch = over_workers(by_shares(losses, KEEP, 4), WORKERS), handed(SPLITS[0], BATCHES)
    with pytest.raises(AttributeError, match="shares"):
        method.step(method.init(PARAMS), Event((), {}), batch)


@pytest.mark.parametrize("shares", SPLITS)
def test_equal_weights_average_the_workers_mean_gradients(shares):
    """Computed worker by worker; a worker without examples has a mean gradient of nothing."""
    method = over_workers(by_shares(losses, KEEP, 4, "equal"), WORKERS)
    batch = handed(shares, BATCHES)
    state, info = jax.jit(method.step)(method.init(PARAMS), make_event(shares), batch)
    ends = np.cumsum(shares)
    parts = [
        {name: leaf[stop - share : stop] for name, leaf in BATCHES.items()}
        for stop, share in zip(ends, shares, strict=True)
        if share
    ]
    each = [GRADIENT(PARAMS, part)[1] for part in parts]
    expected = jax.tree.map(lambda *grads: sum(grads) / WORKERS, *each)
    # Sums of 22 examples in float32 in another order, of gradients up to about 1.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        state.opt_state,
        expected,
    )
    assert float(info["loss"]) == pytest.approx(float(GRADIENT(PARAMS, BATCHES)[0]), rel=FLOAT32)


def test_equal_weights_of_equal_shares_are_the_whole_batch():
    shares = (WORKERS + 1,) * WORKERS
    batch = handed(shares, BATCHES)
    made = [over_workers(by_shares(losses, KEEP, 4, weights), WORKERS) for weights in WEIGHTS]
    share, equal = (
        jax.jit(one.step)(one.init(PARAMS), make_event(shares), batch)[0].opt_state for one in made
    )
    # The weight 20 / (4 x 5) is 1: the same floats.
    jax.tree.map(np.testing.assert_array_equal, share, equal)
