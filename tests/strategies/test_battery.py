"""What every update rule owes, run over all of `strategies.NAMES`.

A new strategy joins by adding its line to `CASES`.
"""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from research import optimizers, problem, strategies, timeline
from research.config import default
from research.strategies import Event

STEPS, BATCH, CLASSES = 12, 6, 5


class Case(NamedTuple):
    groups: int  # groups of the timeline it is run over
    limit: int | None  # groups with which it is synchronous; None: it always is


CASES = {"sync": Case(1, None), "asynchronous": Case(4, 1)}
LIMITS = [name for name, case in CASES.items() if case.limit]

MODEL = {"name": "mlp", "hidden": (7,), "dtype": "float32"}
MLP = problem.make(ConfigDict(MODEL), CLASSES)
OPTIMIZERS = {"sgd": ("learning_rate", "momentum"), "adam": ("learning_rate",)}


class Run(NamedTuple):
    """A strategy with a state to start from and a run's inputs, (STEPS, ...) each."""

    strategy: strategies.Strategy
    params: dict
    events: Event
    batches: dict

    @property
    def state(self):
        return self.strategy.init(self.params)

    @property
    def first(self):
        """Event and batch of the first update that reads something else than version 0."""
        return at((self.events, self.batches), -1)


@cache  # one strategy a set of arguments, so that `scan` below compiles once for all tests
def make_strategy(name, optimizer, slots, loss=MLP.loss):
    names = OPTIMIZERS[optimizer]
    return strategies.make(name, loss, optimizers.optimizer(optimizer, names), slots)


def make_run(name, *, groups=None, seed=0, optimizer="sgd", loss=MLP.loss):
    groups = groups or CASES[name].groups
    rng = np.random.default_rng(seed)
    cluster = default().cluster
    cluster.nodes = groups
    arrivals = timeline.make(cluster, groups=groups, steps=STEPS, batch_size=BATCH, seed=seed)
    hyper = {
        "learning_rate": rng.uniform(0.02, 0.1, STEPS),
        "momentum": rng.uniform(-0.6, 0.6, STEPS),
    }
    batches = {
        "image": rng.integers(0, 256, (STEPS, BATCH, 3, 3, 1), dtype=np.uint8),
        "label": rng.integers(0, CLASSES, (STEPS, BATCH), dtype=np.int32),
    }
    return Run(
        make_strategy(name, optimizer, arrivals.slots, loss),
        jax.tree.map(
            lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape), leaf.dtype),
            jax.eval_shape(MLP.init, jax.random.key(0), at(batches, 0)),
        ),
        Event(
            jnp.asarray(arrivals.read),
            jnp.asarray(arrivals.write),
            {name: jnp.asarray(hyper[name], jnp.float32) for name in OPTIMIZERS[optimizer]},
        ),
        jax.tree.map(jnp.asarray, batches),
    )


def at(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


@partial(jax.jit, static_argnums=0)
def scan(strategy, state, events, batches):
    """The state after the run, and (STEPS, ...) losses and parameters."""

    def body(state, inputs):
        state, loss = strategy.step(state, *inputs)
        return state, (loss, state.params)

    return jax.lax.scan(body, state, (events, batches))


def assert_same(one, other):
    """Same tree, same bits."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def assert_close(one, other):
    # Sums of products in float32 in another order: some ulp (1e-7) an update, over twelve updates.
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)


every = pytest.mark.parametrize("name", strategies.NAMES)


def test_every_strategy_has_a_case_and_unknown_ones_are_refused():
    assert set(CASES) == set(strategies.NAMES)
    with pytest.raises(ValueError, match="'nosuch': one of sync, asynchronous"):
        strategies.make("nosuch", MLP.loss, optimizers.optimizer("sgd", ("learning_rate",)), 1)


@every
def test_step_is_pure(name):
    """Same inputs, same outputs, and the inputs are left as they were."""
    run = make_run(name)
    state, (event, batch) = run.state, run.first
    before = jax.device_get((state, event, batch))
    one, other = run.strategy.step(state, event, batch), run.strategy.step(state, event, batch)
    assert_same(one, other)
    assert_same(jax.device_get((state, event, batch)), before)
    assert_same(run.strategy.init(run.params), state)


@every
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_state_keeps_its_shapes_and_dtypes(name, optimizer):
    """So that it can be carried by `lax.scan`; losses are float32 scalars."""
    run = make_run(name, optimizer=optimizer)
    state = jax.eval_shape(run.strategy.init, run.params)
    after, loss = jax.eval_shape(run.strategy.step, state, *run.first)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
    assert (loss.shape, loss.dtype) == ((), jnp.float32)
    params = jax.eval_shape(lambda state: state.params, state)
    assert jax.tree.structure(params) == jax.tree.structure(run.params)


@every
def test_jit_equals_no_jit(name):
    run = make_run(name)
    state, losses = run.state, []
    for t in range(STEPS):
        state, loss = run.strategy.step(state, *at((run.events, run.batches), t))
        losses.append(loss)
    jitted, (jitted_losses, _) = scan(run.strategy, run.state, run.events, run.batches)
    assert_close(jitted, state)
    assert_close(jitted_losses, jnp.stack(losses))


@every
def test_vmap_equals_a_loop(name):
    """Replicas with their own parameters, arrivals, hyperparameters and batches."""
    runs = [make_run(name, seed=seed) for seed in range(3)]
    strategy = runs[0].strategy

    inputs = [(run.state, run.events, run.batches) for run in runs]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *inputs)
    together = jax.vmap(partial(scan, strategy))(*stacked)
    for i, one in enumerate(inputs):
        assert_close(at(together, i), scan(strategy, *one))


@every
def test_a_run_in_two_parts_equals_the_whole(name):
    """The state is all there is to resume from, to the bit."""
    run = make_run(name)
    compiled = jax.jit(run.strategy.step)

    def advance(state, start, stop):
        for t in range(start, stop):
            state, _ = compiled(state, *at((run.events, run.batches), t))
        return state

    half = jax.device_get(advance(run.state, 0, STEPS // 2))  # as from a checkpoint
    assert_same(advance(half, STEPS // 2, STEPS), advance(run.state, 0, STEPS))


@every
def test_nothing_recompiles_when_only_numbers_change(name):
    traces = []

    def loss(params, batch):
        traces.append(name)
        return MLP.loss(params, batch)

    runs = [make_run(name, seed=seed, loss=loss) for seed in range(3)]
    results = [scan(run.strategy, run.state, run.events, run.batches) for run in runs]
    assert len(traces) == 1
    # And the numbers were not compiled in either.
    losses = [np.asarray(result[1][0]) for result in results]
    assert not np.array_equal(losses[0], losses[1])


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_limit_is_synchronous_to_the_bit(name, optimizer):
    sync = make_run("sync", optimizer=optimizer)
    other = make_run(name, groups=CASES[name].limit, optimizer=optimizer)
    state, (losses, params) = scan(sync.strategy, sync.state, sync.events, sync.batches)
    # The events of the strategy itself, which in the limit must come to the same.
    assert_same(other.batches, sync.batches)
    other_state, outputs = scan(other.strategy, other.state, other.events, other.batches)
    assert_same(outputs, (losses, params))
    assert_same(other_state.params, state.params)
    # Beyond the limit it is something else, or the equality says nothing.
    beyond = make_run(name, optimizer=optimizer)
    _, (stale, _) = scan(beyond.strategy, beyond.state, beyond.events, beyond.batches)
    assert not np.array_equal(stale, losses)
