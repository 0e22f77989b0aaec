"""Probes of the blocks against NumPy: cosines between gradients, ridge regression on features."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.methods.local import POSITIONS, RIDGE, cosines, linear_probe, ridge
from optdyn.problem import problem
from optdyn.problem.models import MLP
from optdyn.problem.models.adapters import Block, linen
from optdyn.problem.problem import Problem
from tests.methods.reference import whole as backpropagation

BATCH, WIDTH, CLASSES = 8, 5, 3
TRUNK = ["hidden0", "hidden1", "hidden2"]
NETWORK = problem.make(MLP(hidden=(WIDTH, WIDTH, WIDTH)), CLASSES, ("hidden0", "hidden1"))
GREEDY, PAIRS, BACKPROP = ((0, 1), (1, 2), (2, 3)), ((0, 2), (1, 3)), ((0, 3),)


def examples(rng, count=BATCH):
    return {
        "image": rng.integers(0, 256, (count, WIDTH, 1, 1), dtype=np.uint8),
        "label": rng.integers(0, CLASSES, count, dtype=np.int32),
    }


def some(rng):
    shapes = jax.eval_shape(NETWORK.init, jax.random.key(0), examples(rng))
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0.1, 0.5, leaf.shape), leaf.dtype), shapes
    )


def float64(params):
    """{name: {"kernel": ..., "bias": ...}}."""
    return jax.tree.map(np.float64, {name: block["Dense_0"] for name, block in params.items()})


MEASURES = {groups: jax.jit(cosines(NETWORK, groups)) for groups in (GREEDY, PAIRS, BACKPROP)}


def test_cosines_against_numpy():
    """Backpropagation by hand in float64, once through the net and once through each head."""
    rng = np.random.default_rng(0)
    params, batch = some(rng), examples(rng)
    dense = float64(params)
    x = batch["image"].reshape(BATCH, -1) / 255
    _, whole = backpropagation({n: dense[n] for n in (*TRUNK, "classifier")}, x, batch["label"])
    measured = MEASURES[GREEDY](params, batch)
    assert list(measured) == TRUNK
    for j, name in enumerate(TRUNK):
        head = "classifier" if j == 2 else f"{name}_head"
        layers = {name: dense[name], "classifier": dense[head]}
        _, local = backpropagation(layers, x, batch["label"])
        one, other = (
            np.concatenate([grads[name][k].ravel() for k in ("kernel", "bias")])
            for grads in (local, whole)
        )
        expected = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        # Float32 against float64 in sums of at most thirty products.
        assert float(measured[name]) == pytest.approx(expected, abs=1e-5)
        x = np.maximum(x @ dense[name]["kernel"] + dense[name]["bias"], 0)
    # The last block alone is trained by the model's own head: there the two agree.
    assert abs(float(measured["hidden0"])) < 0.99 and abs(float(measured["hidden1"])) < 0.99
    assert float(measured["hidden2"]) == pytest.approx(1, abs=1e-6)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_cosines_are_cosines(seed):
    rng = np.random.default_rng(seed)
    params, batch = some(rng), examples(rng)
    # Norms and product are float32 sums of thirty terms: a few ulp.
    for groups in (GREEDY, PAIRS):
        for value in MEASURES[groups](params, batch).values():
            assert -1 - 1e-6 <= float(value) <= 1 + 1e-6
    for value in MEASURES[BACKPROP](params, batch).values():
        assert float(value) == pytest.approx(1, abs=1e-6) or float(value) == 0  # all units dead


def test_the_cosine_of_a_dead_block_is_zero():
    rng = np.random.default_rng(1)
    params, batch = some(rng), examples(rng)
    dead = {"kernel": jnp.zeros((WIDTH, WIDTH)), "bias": -jnp.ones(WIDTH)}
    measured = MEASURES[GREEDY](params | {"hidden1": {"Dense_0": dead}}, batch)
    assert float(measured["hidden0"]) == 0  # nothing comes back through the dead block
    assert float(measured["hidden1"]) == 0


def fitted(x, labels, classes, penalty=RIDGE):
    """Scores by least squares on data with the penalty as further rows, in float64."""
    x, y = np.asarray(x, np.float64), np.eye(classes)[labels]
    mean, scale = x.mean(0), np.sqrt(x.var(0).mean())
    rows = np.sqrt(penalty * len(x)) * np.eye(x.shape[1])
    targets = np.concatenate([y - y.mean(0), np.zeros((x.shape[1], classes))])
    w, *_ = np.linalg.lstsq(np.concatenate([(x - mean) / scale, rows]), targets, rcond=None)
    return lambda x: (np.asarray(x, np.float64) - mean) / scale @ w + y.mean(0)


@pytest.mark.parametrize(("examples", "width"), [(200, 12), (10, 30)])
def test_ridge_against_least_squares(examples, width):
    """Correlated features of unequal scales and means, also more of them than examples."""
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(width, width)) * np.geomspace(0.1, 3, width)
    x = (rng.normal(size=(examples, width)) @ mix + rng.normal(size=width)).astype(np.float32)
    labels = (x @ rng.normal(size=(width, 4))).argmax(1)
    test = rng.normal(size=(50, width)).astype(np.float32) @ mix.astype(np.float32)
    expected = fitted(x, labels, 4)(test)
    # The condition number is at most D / lambda, 3e4, which is what 2^-24 of rounding is multiplied
    # by at worst.
    np.testing.assert_allclose(ridge(x, labels, 4)(test), expected, atol=2e-3)
    # Of numbers about one, and what the penalty does is more than the tolerance.
    assert np.abs(expected).max() > 0.5
    assert np.abs(fitted(x, labels, 4, penalty=0)(test) - expected).max() > 4e-3


@settings(max_examples=20)
@given(st.integers(-60, 60), st.integers(-3, 3))
def test_ridge_knows_no_scale_and_no_origin(exponent, shift):
    """Scores of 2^e (x + shift) are those of x."""
    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(40, 6)).astype(np.float32), rng.integers(0, 3, 40)
    moved = np.ldexp(x + np.float32(shift), exponent)
    # Rounding of x + shift to 2^-23 of about 5, as it enters a well-conditioned regression.
    np.testing.assert_allclose(ridge(moved, labels, 3)(moved), ridge(x, labels, 3)(x), atol=1e-5)


class Identity(nn.Module):
    """A block whose features are its input."""

    def __call__(self, x):
        return x


class Sums(nn.Module):
    """Outputs of as many classes as there are to tell apart; their values do not matter."""

    classes: int

    def __call__(self, x):
        return jnp.zeros((len(x), self.classes))


@partial(jax.jit, static_argnums=0)
def probe(classes, train, test):
    """Accuracy of a probe of the given `features`."""
    networks = {"one": Identity(), "head": Sums(classes)}
    blocks = tuple((name, Block(linen(net), i)) for i, (name, net) in enumerate(networks.items()))
    made = Problem(blocks, lambda batch: batch["features"], lambda *_: jnp.zeros(()), {})
    (value,) = linear_probe(made)({"one": {}, "head": {}}, train, test).values()
    return value


def split(features, at, **batch):
    batch = {"features": np.asarray(features, np.float32), **batch}
    return ({k: v[:at] for k, v in batch.items()}, {k: v[at:] for k, v in batch.items()})


def test_labels_at_random_are_read_by_chance():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(3000, 9)), rng.integers(0, 10, 3000)
    # Of 2000 draws with probability 0.1: five standard deviations of 0.0067.
    assert float(probe(10, *split(features, 1000, label=labels))) == pytest.approx(0.1, abs=0.034)


def test_constant_features_say_the_most_frequent_label():
    labels = np.array([2, 1, 2, 0, 2, 1, 2, 2, 0, 0])
    assert probe(3, *split(np.full((10, 4), 7.0), 5, label=labels)) == pytest.approx(0.4)


def test_images_are_averaged_over_height_and_width():
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(60, 3, 2, 5)), rng.integers(0, 3, 60)
    train, test = split(images, 40, label=labels)
    means = images.mean((1, 2))
    scores = fitted(means[:40], labels[:40], 3)(means[40:])
    expected = (scores.argmax(1) == labels[40:]).mean()
    assert float(probe(3, train, test)) == pytest.approx(expected, abs=1e-6)  # a mean in float32
    assert 0 < expected < 1


def test_a_text_is_an_example_a_position_labelled_with_what_follows():
    rng = np.random.default_rng(0)
    text = rng.integers(0, 5, (60, 12))
    following, present = np.eye(5)[text[:, 1:]], np.eye(5)[text[:, :-1]]
    # Means of 330 ones, as a product with 1 / 330 in float32; and of 330 draws with probability
    # 0.2, five standard deviations of 0.022.
    assert float(probe(5, *split(following, 30, text=text))) == pytest.approx(1, abs=1e-6)
    assert float(probe(5, *split(present, 30, text=text))) == pytest.approx(0.2, abs=0.11)


def test_long_texts_are_sampled_evenly():
    """Noise everywhere but at the chosen positions changes nothing."""
    rng = np.random.default_rng(0)
    text, features = rng.integers(0, 3, (100, 101)), rng.normal(size=(100, 100, 4))
    chosen = np.linspace(0, 10_000 - 1, POSITIONS).astype(int)
    assert len(np.unique(chosen % 100)) == 100 and np.ptp(np.diff(chosen)) <= 1
    kept = np.zeros(10_000, bool)
    kept[chosen] = True
    noise = np.where(kept.reshape(100, 100, 1), features, rng.normal(size=features.shape))
    one, other = (
        probe(3, *({"features": np.asarray(x, np.float32), "text": text},) * 2)
        for x in (features, noise)
    )
    assert one == other
    scores = fitted(features.reshape(-1, 4)[chosen], text[:, 1:].ravel()[chosen], 3)
    hits = scores(features.reshape(-1, 4)[chosen]).argmax(1) == text[:, 1:].ravel()[chosen]
    # A tie of two scores within rounding may fall the other way in one position of 4096.
    assert float(one) == pytest.approx(hits.mean(), abs=1.5 / POSITIONS)


def test_the_probe_of_a_network_against_numpy():
    rng = np.random.default_rng(3)
    params, train, test = some(rng), examples(rng, 200), examples(rng, 100)
    measured = jax.jit(linear_probe(NETWORK))(params, train, test)
    assert list(measured) == TRUNK
    x, y = (batch["image"].reshape(-1, WIDTH) / 255 for batch in (train, test))
    for name in TRUNK:
        block = float64(params)[name]
        x, y = (np.maximum(h @ block["kernel"] + block["bias"], 0) for h in (x, y))
        hits = fitted(x, train["label"], CLASSES)(y).argmax(1) == test["label"]
        # A tie of two scores within rounding may fall the other way in one example.
        assert float(measured[name]) == pytest.approx(hits.mean(), abs=0.011)
