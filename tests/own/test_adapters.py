"""Networks of each library as adapters, against the library's own loop in its own words.

Each is two dense layers with a norm over the batch and dropout between them.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict

from optdyn.problem.models import adapters
from optdyn.problem.models.adapters import Adapter, Block

RATE, DECAY = 0.1, 0.9  # of the updates, and of the running averages
BATCHES = jax.random.normal(jax.random.key(1), (50, 16, 3)) * jnp.arange(1.0, 4.0) + 1
TARGETS = jnp.sin(BATCHES[..., :2])
KEYS = jax.random.split(jax.random.key(2), len(BATCHES))
# The operations are the same; programs may round their sums differently, by 6e-8, in each update.
SAME = {"rtol": 1e-6, "atol": 1e-6}


class Case(NamedTuple):
    adapter: Adapter
    start: Any  # (key, x) -> the library's thing
    step: Any  # (thing, x, target, key) -> thing, outputs
    evaluate: Any  # (thing, x) -> outputs
    names: str  # of the kernel before the norm, and of its mean and var


def descend(run, params, target):
    """Returns the parameters after an update, and the outputs and the rest of `run(params)`."""

    def loss(params):
        y, after = run(params)
        return jnp.mean((y - target) ** 2), (y, after)

    gradient, (y, after) = jax.grad(loss, has_aux=True)(params)
    return optax.apply_updates(params, jax.tree.map(lambda leaf: -RATE * leaf, gradient)), y, after


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(not train, momentum=DECAY, name="norm")(nn.Dense(8, name="first")(x))
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(nn.relu(x)))


def linen_case():
    @jax.jit
    def step(variables, x, target, key):
        def run(params):
            now = {**variables, "params": params}
            return net.apply(now, x, True, rngs={"dropout": key}, mutable=["batch_stats"])

        params, y, updates = descend(run, variables["params"], target)
        return {"params": params, **updates}, y

    net, names = Linen(), "first.kernel batch_stats.norm.mean batch_stats.norm.var"
    start, evaluate = (lambda *xs: net.init(*xs, False)), (lambda *xs: net.apply(*xs, False))
    return Case(adapters.linen(net), start, step, evaluate, names)


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(3, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=DECAY, rngs=rngs)
        self.drops = nnx.List([nnx.Dropout(0.3, rngs=rngs) for _ in range(2)])
        self.last = nnx.Linear(8, 2, rngs=rngs)
        self.scales = jnp.array([1.0, 2.0])  # in no variable: a constant

    def __call__(self, x):
        x = self.drops[1](self.drops[0](nnx.relu(self.norm(self.first(x)))))
        return self.last(x) * self.scales


def nnx_case():
    @nnx.jit
    def step(net, x, target, key):
        def loss(net):
            y = net(x)
            return jnp.mean((y - target) ** 2), y

        for number, drop in enumerate(net.drops):
            drop.rngs.key[...] = jax.random.fold_in(key, number)
            drop.rngs.count[...] = jnp.uint32(0)
        gradient, y = nnx.grad(loss, has_aux=True)(net)
        nnx.Optimizer(net, optax.sgd(RATE), wrt=nnx.Param).update(net, gradient)
        return net, y

    names, start = "first.kernel norm.mean norm.var", lambda key, x: Nnx(nnx.Rngs(key))
    return Case(adapters.nnx(Nnx), start, step, Nnx.__call__, names)


def equinox_case():
    eqx = pytest.importorskip("equinox")

    class Net(eqx.Module):
        first: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        layers: list[Any]
        places: jax.Array  # whole numbers: a constant

        def __init__(self, key):
            self.first = eqx.nn.Linear(3, 8, use_bias=False, key=key)
            self.norm = eqx.nn.BatchNorm(8, "batch", momentum=DECAY, mode="batch")
            self.layers = [eqx.nn.Dropout(0.5), eqx.nn.Linear(8, 2, key=key)]
            self.places = jnp.array([1, 0])

        def __call__(self, x, state, key=None):
            x, state = self.norm(self.first(x), state)
            return self.layers[1](self.layers[0](jax.nn.relu(x), key=key))[self.places], state

    @eqx.filter_jit
    def step(thing, x, target, key):
        params, rest = eqx.partition(thing[0], eqx.is_inexact_array)

        def run(params):
            net = jax.vmap(eqx.combine(params, rest), (0, None, 0), (0, None), "batch")
            return net(x, thing[1], jax.random.split(key, len(x)))

        params, y, state = descend(run, params, target)
        return (eqx.combine(params, rest), state), y

    evaluate = lambda thing, x: jax.vmap(thing[0], (0, None), (0, None), "batch")(x, thing[1])[0]  # noqa: E731
    start = lambda key, x: eqx.nn.make_with_state(Net)(key)  # noqa: E731
    names = "first.weight norm.batch_state_index.0 norm.batch_state_index.1"
    return Case(adapters.equinox(Net), start, step, evaluate, names)


def functions_case(adapter, init, apply, names):
    """Returns the case of `apply(params, state, key, x, train)`."""

    @jax.jit
    def step(thing, x, target, key):
        params, y, state = descend(lambda p: apply(p, thing[1], key, x, True), thing[0], target)
        return (params, state), y

    return Case(adapter, init, step, lambda thing, x: apply(*thing, None, x, False)[0], names)


def haiku_case():
    hk = pytest.importorskip("haiku")

    @hk.transform_with_state
    def net(x, is_training):
        x = hk.BatchNorm(True, True, DECAY, name="n")(hk.Linear(8, name="first")(x), is_training)
        x = hk.dropout(hk.next_rng_key(), 0.5, jax.nn.relu(x)) if is_training else jax.nn.relu(x)
        return hk.Linear(2)(x)

    names, start = "first.w n/~/mean_ema.hidden n/~/var_ema.hidden", lambda *xs: net.init(*xs, True)
    return functions_case(adapters.haiku(net), start, net.apply, names)


def pair_case():
    def init(key, x):
        one, two = jax.random.normal(key, (2, 3, 8))
        return {"one": one, "two": two[:2].T}, {"mean": jnp.zeros(8), "var": jnp.ones(8)}

    def apply(params, state, x, train, key):
        h = x @ params["one"]
        now = {"mean": h.mean(0), "var": h.var(0)} if train else state
        state = jax.tree.map(lambda old, new: DECAY * old + (1 - DECAY) * new, state, now)
        h = jax.nn.relu((h - now["mean"]) / jnp.sqrt(now["var"] + 1e-5))
        h = jnp.where(jax.random.bernoulli(key, 0.5, h.shape), 2 * h, 0) if train else h
        return h @ params["two"], state

    by_position = lambda p, s, key, x, train: apply(p, s, x, train, key)  # noqa: E731
    return functions_case(adapters.pair(init, apply), init, by_position, "one mean var")


CASES = (linen_case, nnx_case, equinox_case, haiku_case, pair_case)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.__name__)
def case(request):
    return request.param()


@pytest.fixture(scope="module")
def trained(case):
    """Returns parameters, state and the outputs of all of 50 updates, through the adapter."""

    @jax.jit
    def step(params, state, x, target, key):
        return descend(lambda p: case.adapter.apply(p, state, x, key, True), params, target)

    params, state = case.adapter.init(jax.random.key(0), BATCHES[0])
    outputs = []
    for x, target, key in zip(BATCHES, TARGETS, KEYS, strict=True):
        params, y, state = step(params, state, x, target, key)
        outputs.append(y)
    return params, state, outputs


def assert_same(found, expected, **tolerance):
    for one, other in zip(arrays(found), arrays(expected), strict=True):
        np.testing.assert_allclose(one, other, **(tolerance or SAME))


def arrays(thing):
    thing = nnx.state(thing, nnx.Not(nnx.RngState)) if isinstance(thing, nnx.Module) else thing
    return [leaf for leaf in jax.tree.leaves(thing) if isinstance(leaf, jax.Array)]


def test_a_loop_is_the_librarys_own(case, trained):
    """And what it restores is the library's own thing, which the library evaluates as we do."""
    thing, mine = case.start(jax.random.key(0), BATCHES[0]), case.adapter.restore(*trained[:2])
    for x, target, key, output in zip(BATCHES, TARGETS, KEYS, trained[2], strict=True):
        thing, y = case.step(thing, x, target, key)
        assert_same(output, y)  # another mask would be another output
    assert_same(mine, thing)
    y, after = case.adapter.apply(*trained[:2], BATCHES[0], None, False)
    assert after is trained[1]
    assert_same(case.evaluate(mine, BATCHES[0]), y)


def test_masks_are_by_the_key_alone_and_none_in_evaluation(case, trained):
    def run(key, x=BATCHES[0]):
        return case.adapter.apply(*trained[:2], x, key, key is not None)[0]

    assert_same(run(KEYS[0]), run(KEYS[0]), rtol=0)
    assert not np.allclose(run(KEYS[0]), run(KEYS[1]))
    assert "random" not in str(jax.make_jaxpr(lambda x: run(None, x))(BATCHES[0]))
    assert_same(run(None, BATCHES[0, :3]), run(None)[:3])


def test_recomputed_averages_are_those_of_the_batches(case, trained):
    """NumPy's E x and E x^2; or, as the library has it, decaying averages of mean and variance."""
    k = 8
    _, state = jax.jit(Block(case.adapter, 0).recompute)(trained[0], BATCHES[:k], jnp.arange(k))
    leaves = {**flatten_dict(trained[0], sep="."), **flatten_dict(state, sep=".")}
    kernel, *found = (np.asarray(leaves[name], float) for name in case.names.split())
    h = np.asarray(BATCHES[:k], float) @ (kernel if len(kernel) == 3 else kernel.T)
    mean, var = h.mean((0, 1)), (h**2).mean((0, 1)) - h.mean((0, 1)) ** 2
    if case.adapter.debiased:
        weights = (1 - DECAY) * DECAY ** np.arange(k - 1, -1, -1)
        mean, var = weights @ h.mean(1), weights @ h.var(1)
    for one, other in zip(found, (mean, var), strict=True):  # 1 - momentum is told from float32
        np.testing.assert_allclose(one.ravel(), other, rtol=1e-4, atol=1e-5)
