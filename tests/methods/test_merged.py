"""Some blocks fresh, the others stale: against a list of all past versions, and the two limits."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn import optimizers
from optdyn.clock.arrivals import compute_groups
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Law
from optdyn.methods import Event
from tests.methods.composed import asynchronous, sync
from tests.methods.test_battery import assert_same

STEPS, SLOTS = 40, 6
SIZES = {"conv": 3, "dense": 2, "classifier": 4}
BLOCK = np.repeat(list(SIZES), list(SIZES.values()))  # of each coordinate of the flat z
RNG = np.random.default_rng(0)
# f(z) = mean_i 1/2 (z - xi_i)' A (z - xi_i), every block coupled with every other one.
BASIS = np.linalg.qr(RNG.normal(size=(len(BLOCK), len(BLOCK))))[0]
A = BASIS @ np.diag(np.geomspace(0.1, 1, len(BLOCK))) @ BASIS.T
X0 = RNG.normal(size=len(BLOCK))
OPTIMA = RNG.normal(0, 0.5, (STEPS, 4, len(BLOCK)))
ALL = tuple(SIZES)

subsets = st.sets(st.sampled_from(ALL)).map(lambda names: tuple(sorted(names)))
every = pytest.mark.parametrize("fresh", [(), ("classifier",), ("classifier", "dense"), ALL])


def blocks(z):
    """The parameters of a flat z, in an order that is not the alphabetical one of pytrees."""
    return {name: {"w": jnp.asarray(z[name == BLOCK], jnp.float32)} for name in SIZES}


def flat(params):
    return jnp.concatenate([params[name]["w"] for name in SIZES], axis=-1)


def loss(params, batch):
    apart = flat(params) - batch["optimum"]
    return jnp.mean(jnp.sum(apart @ jnp.asarray(A, jnp.float32) * apart, -1)) / 2


@cache  # one method a set of arguments, so that `scan` compiles once for all tests
def made(fresh, optimizer="sgd"):
    rule = optimizers.optimizer(optimizer, ("learning_rate",))
    return asynchronous(loss, rule, SLOTS, fresh)


@cache
def synchronous(optimizer):
    return sync(loss, optimizers.optimizer(optimizer, ("learning_rate",)))


def arrivals(groups, law="exponential", seed=0):
    cluster = Cluster(nodes=groups, service=Law.named(law))
    drawn = compute_groups(cluster, groups=groups, steps=STEPS, batch_size=4, seed=seed)
    assert drawn.slots <= SLOTS
    return drawn


def events_of(drawn, learning_rate=0.1):
    hyper = {"learning_rate": jnp.full(STEPS, learning_rate, jnp.float32)}
    return Event(jax.tree.map(jnp.asarray, drawn.plan), hyper)


BATCHES = {"optimum": jnp.asarray(OPTIMA, jnp.float32)}


@partial(jax.jit, static_argnums=0)
def scan(method, state, events):
    """The state after the run, the losses and the flat parameters after each update."""

    def body(state, inputs):
        state, info = method.step(state, *inputs)
        return state, (info["loss"], flat(state.params))

    return jax.lax.scan(body, state, (events, BATCHES))


def run(method, drawn):
    return jax.device_get(scan(method, method.init(blocks(X0)), events_of(drawn)))


def reference(fresh, staleness, learning_rate=0.1):
    """Every version kept, in float64; coordinates of fresh blocks are never read from an old one.

    Losses, and versions (STEPS + 1, dimension).
    """
    versions, losses = [X0], []
    for t, tau in enumerate(staleness):
        seen = np.where(np.isin(BLOCK, fresh), versions[t], versions[t - tau])
        apart = seen - OPTIMA[t]
        losses.append(np.mean(np.sum(apart @ A * apart, -1)) / 2)
        versions.append(versions[t] - learning_rate * A @ apart.mean(0))
    return np.array(losses), np.array(versions)


@settings(max_examples=50)
@given(
    subsets,
    st.integers(1, 5),
    st.sampled_from(["constant", "exponential", "lognormal", "gamma"]),
    st.integers(0, 2**32 - 1),
)
def test_fresh_blocks_are_read_now_and_the_others_when_the_staleness_says(
    fresh, groups, service, seed
):
    drawn = arrivals(groups, service, seed)
    state, (losses, x) = run(made(fresh), drawn)
    expected_losses, versions = reference(fresh, drawn.staleness)
    # float32 rounding, some 1e-7 an update of numbers about 1, over 40 updates that contract.
    np.testing.assert_allclose(x, versions[1:], atol=1e-5)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5, atol=1e-5)
    # The table: of the stale blocks what was written last, of the fresh ones nothing at all.
    table = np.tile(X0.astype(np.float32), (SLOTS, 1))
    for t, slot in enumerate(drawn.plan.write):
        table[slot] = x[t]
    assert state.slots.keys() == SIZES.keys() - set(fresh)
    for name, block in state.slots.items():
        np.testing.assert_array_equal(block["w"], table[:, name == BLOCK])
    np.testing.assert_array_equal(flat(state.params), x[-1])


def test_each_subset_is_an_algorithm_of_its_own():
    """Or the agreement with the reference could be that of runs in which nothing was stale."""
    drawn = arrivals(4)
    ends = [reference(fresh, drawn.staleness)[1][-1] for fresh in ((), *zip(ALL), ALL[:2], ALL)]
    for i, one in enumerate(ends):
        for other in ends[:i]:
            assert np.abs(one - other).max() > 1e-3  # a hundred times what the property tolerates


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_all_fresh_is_synchronous_to_the_bit(optimizer):
    method, drawn = made(ALL, optimizer), arrivals(4)
    assert drawn.staleness.max() > 3  # which must not matter
    state, outputs = run(method, drawn)
    sync_state, sync_outputs = run(synchronous(optimizer), drawn)
    assert_same((outputs, state.params, state.opt_state), (sync_outputs, *sync_state))


def test_none_fresh_is_asynchronous():
    """To the bit that of the method without the argument, which has its own tests."""
    drawn = arrivals(4)
    plain = asynchronous(loss, optimizers.optimizer("sgd", ("learning_rate",)), SLOTS)
    assert_same(run(made(()), drawn), run(plain, drawn))


@every
def test_one_group_is_synchronous(fresh):
    drawn = arrivals(1)
    state, outputs = run(made(fresh), drawn)
    sync_state, sync_outputs = run(synchronous("sgd"), drawn)
    close((outputs, state.params), (sync_outputs, sync_state.params))


@every
def test_snapshots_are_kept_of_stale_blocks_only(fresh):
    state = jax.eval_shape(made(fresh).init, blocks(X0))
    stale = sum(size for name, size in SIZES.items() if name not in fresh)
    assert sum(leaf.size for leaf in jax.tree.leaves(state.slots)) == SLOTS * stale
    assert sum(leaf.size for leaf in jax.tree.leaves(state.fresh)) == len(BLOCK) - stale


def test_a_fresh_block_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"'head': one of conv, dense, classifier$"):
        made(("classifier", "head")).init(blocks(X0))


def close(one, other):
    # Sums of products in float32, fused differently: some ulp (1e-7) an update, over forty updates.
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), one, other)
