"""A norm and dropout in each library, as adapters, against the library's own loop."""

from collections import namedtuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict

from optdyn.base import lookup
from optdyn.problem.models import Model, adapters
from optdyn.problem.models.adapters import Adapter, Block

RATE, DECAY = 0.1, 0.9  # of the updates, and of the running averages
BATCHES = jax.random.normal(jax.random.key(1), (50, 16, 3)) * jnp.arange(1.0, 4.0) + 1
TARGETS = jnp.sin(BATCHES[..., :2])
KEYS = jax.random.split(jax.random.key(2), len(BATCHES))
# (key, x) -> the library's thing; (thing, x, target, key) -> thing, outputs; (thing, x) -> outputs;
# the names of the kernel before the norm, and of its mean and var.
Case = namedtuple("Case", "adapter start step evaluate names")


def descend(run, params, target):
    """Returns the parameters after an update, and the outputs and the rest of `run(params)`."""

    def loss(params):
        y, after = run(params)
        return jnp.mean((y - target) ** 2), (y, after)

    gradient, (y, after) = jax.grad(loss, has_aux=True)(params)
    return optax.apply_updates(params, jax.tree.map(lambda leaf: -RATE * leaf, gradient)), y, after


def linen_case():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.BatchNorm(not train, momentum=DECAY, name="norm")(nn.Dense(8, name="first")(x))
            return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(nn.relu(x)))

    @jax.jit
    def step(variables, x, target, key):
        more = {"rngs": {"dropout": key}, "mutable": ["batch_stats"]}
        run = lambda p: net.apply({**variables, "params": p}, x, True, **more)  # noqa: E731
        params, y, updates = descend(run, variables["params"], target)
        return {"params": params, **updates}, y

    net, names = Net(), "first.kernel batch_stats.norm.mean batch_stats.norm.var"
    start, evaluate = (lambda *xs: net.init(*xs, False)), (lambda *xs: net.apply(*xs, False))
    return Case(adapters.linen(net), start, step, evaluate, names)


def nnx_case():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, momentum=DECAY, rngs=rngs)
            self.drops = nnx.List([nnx.Dropout(0.3, rngs=rngs) for _ in range(2)])
            self.last = nnx.Linear(8, 2, rngs=rngs)
            self.scales = jnp.array([1.0, 2.0])  # in no variable: a constant

        def __call__(self, x):
            x = self.drops[1](self.drops[0](nnx.relu(self.norm(self.first(x)))))
            return self.last(x) * self.scales

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

    names, start = "first.kernel norm.mean norm.var", lambda key, x: Net(nnx.Rngs(key))
    return Case(adapters.nnx(Net), start, step, Net.__call__, names)


def equinox_case():
    eqx = pytest.importorskip("equinox")

    def make(key, x=None):
        first, last = eqx.nn.Linear(3, 8, False, key=key), eqx.nn.Linear(8, 2, key=key)
        norm = eqx.nn.BatchNorm(8, "batch", momentum=DECAY, mode="batch")
        swap = eqx.nn.Lambda(
            jax.tree_util.Partial(jnp.take, indices=jnp.array([1, 0]))
        )  # a constant
        relu, drop = eqx.nn.Lambda(jax.nn.relu), eqx.nn.Dropout(0.5)
        return eqx.nn.Sequential([first, norm, relu, drop, last, swap])

    def batched(net, state, x, key):
        one = lambda x, key: net(x, state, key=key)  # noqa: E731
        return jax.vmap(one, (0, 0), (0, None), "batch")(x, jax.random.split(key, len(x)))

    @eqx.filter_jit
    def step(thing, x, target, key):
        params, rest = eqx.partition(thing[0], eqx.is_inexact_array)
        run = lambda p: batched(eqx.combine(p, rest), thing[1], x, key)  # noqa: E731
        params, y, state = descend(run, params, target)
        return (eqx.combine(params, rest), state), y

    evaluate = lambda thing, x: batched(*thing, x, KEYS[0])[0]  # noqa: E731
    names = "layers.0.weight 1 2"
    return Case(adapters.equinox(make), eqx.nn.make_with_state(make), step, evaluate, names)


def functions_case(adapter, init, apply, names):
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


@pytest.fixture(scope="module", params=[linen_case, nnx_case, equinox_case, haiku_case, pair_case])
def trained(request):
    """Returns a case, and parameters, state and all outputs of 50 updates through its adapter."""
    case, outputs = request.param(), []

    @jax.jit
    def step(params, state, x, target, key):
        return descend(lambda p: case.adapter.apply(p, state, x, key, True), params, target)

    params, state = case.adapter.init(jax.random.key(0), BATCHES[0])
    for x, target, key in zip(BATCHES, TARGETS, KEYS, strict=True):
        params, y, state = step(params, state, x, target, key)
        outputs.append(y)
    return case, params, state, outputs


def assert_same(*things, rtol=1e-6, atol=1e-6):
    """The operations are the same; another program may round sums otherwise, by 6e-8 each time."""
    is_module = isinstance(things[-1], nnx.Module)
    trees = [nnx.state(tree, nnx.Not(nnx.RngState)) if is_module else tree for tree in things]
    for one, other in zip(*map(jax.tree.leaves, trees), strict=True):
        if isinstance(one, jax.Array):
            np.testing.assert_allclose(one, other, rtol, atol)


def test_a_loop_and_what_is_restored_are_the_librarys_own(trained):
    case, params, state, outputs = trained
    thing, mine = case.start(jax.random.key(0), BATCHES[0]), case.adapter.restore(params, state)
    for x, target, key, output in zip(BATCHES, TARGETS, KEYS, outputs, strict=True):
        thing, y = case.step(thing, x, target, key)
        assert_same(output, y)  # another mask would be another output
    assert_same(mine, thing)
    ours = case.adapter.apply(params, state, BATCHES[0], None, False)
    assert_same(ours, (case.evaluate(mine, BATCHES[0]), state))


def test_masks_are_by_the_key_alone_and_none_in_evaluation(trained):
    def run(key, x=BATCHES[0]):
        return trained[0].adapter.apply(*trained[1:3], x, key, key is not None)[0]

    assert_same(run(KEYS[0]), run(KEYS[0]), rtol=0, atol=0)
    assert not np.allclose(run(KEYS[0]), run(KEYS[1]))
    assert "random" not in str(jax.make_jaxpr(lambda x: run(None, x))(BATCHES[0]))
    assert_same(run(None, BATCHES[0, :3]), run(None)[:3])


def test_recomputed_averages_are_those_of_the_batches(trained):
    """NumPy's E x and E x^2; or, as the library has it, decaying averages of mean and variance."""
    (case, params, *_), k = trained, 8
    _, state = jax.jit(Block(case.adapter, 0).recompute)(params, BATCHES[:k], jnp.arange(k))
    leaves = {**flatten_dict(params, sep="."), **flatten_dict(state, sep=".")}
    kernel, *found = (np.asarray(leaves[name], float) for name in case.names.split())
    h = np.asarray(BATCHES[:k], float) @ (kernel if len(kernel) == 3 else kernel.T)
    mean, var = h.mean((0, 1)), (h**2).mean((0, 1)) - h.mean((0, 1)) ** 2
    if case.adapter.debiased:
        weights = (1 - DECAY) * DECAY ** np.arange(k - 1, -1, -1)
        mean, var = weights @ h.mean(1), weights @ h.var(1)
    for one, other in zip(found, (mean, var), strict=True):  # 1 - momentum is told from float32
        np.testing.assert_allclose(one.ravel(), other, rtol=1e-4, atol=1e-5)


def test_adapters_and_what_haiku_transforms_are_models():
    hk = pytest.importorskip("haiku")
    net = hk.transform(lambda x: hk.Linear(2)(x))
    one, two, again = map(Model.from_object, (adapters.haiku(net), net, net))
    assert one != two == again
    assert isinstance(lookup.find("config.model.name", two.name, {})(2), Adapter)
