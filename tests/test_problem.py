"""What is minimized: losses, metrics and gradients against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.experiment import Config, ConfigError
from optdyn.problem import problem
from optdyn.problem.data.kinds import MNIST5k
from optdyn.problem.models import CNN, MLP, Quadratic
from optdyn.problem.models.quadratic import curvatures

CLASSES = 7
RNG = np.random.default_rng(0)
BATCH = {
    "image": RNG.integers(0, 256, (9, 12, 12, 1), dtype=np.uint8),
    "label": RNG.integers(0, CLASSES, 9, dtype=np.int32),
}


def config(examples=0, **model):
    return Config(model=Quadratic(**model), data=MNIST5k(train_examples=examples))


def loaded(config):
    return problem.load_data(config.model, config.data, config.seed)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def classifier(request):
    made = problem.make(MLP(hidden=(11,), dtype=request.param), CLASSES)
    return made, jax.tree.map(
        lambda leaf: jnp.asarray(RNG.normal(0, 0.3, leaf.shape), leaf.dtype),
        jax.eval_shape(made.init, jax.random.key(0), BATCH),
    )


def test_loss_and_accuracy_against_numpy(classifier):
    """-log softmax of the label in float64, from the very outputs, also those in bfloat16."""
    made, params = classifier
    outputs = made.outputs(params, BATCH)
    logits = np.asarray(outputs.astype(jnp.float32), np.float64)
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -log_softmax[np.arange(9), BATCH["label"]]
    losses = made.losses(outputs, BATCH)
    assert losses.dtype == jnp.float32
    np.testing.assert_allclose(losses, expected, rtol=1e-5)  # float32 of a few operations
    metrics = made.metrics(outputs, BATCH)
    assert list(metrics) == ["accuracy"]
    accuracy = metrics["accuracy"]
    np.testing.assert_array_equal(accuracy, logits.argmax(-1) == BATCH["label"])
    assert accuracy.dtype == jnp.float32


def test_loss_is_the_float32_mean_of_the_losses(classifier):
    made, params = classifier
    loss = made.loss(params, BATCH)
    assert loss.shape == () and loss.dtype == jnp.float32
    losses = np.asarray(made.losses(made.outputs(params, BATCH), BATCH), np.float64)
    assert float(loss) == pytest.approx(losses.mean(), rel=1e-6)  # a float32 mean of nine


def test_images_are_scaled_to_one(classifier):
    made, _ = classifier
    x = made.input(BATCH)
    assert x.dtype == jnp.float32
    # Division or multiplication by 1/255: one rounding.
    np.testing.assert_allclose(x, BATCH["image"] / 255, rtol=3e-7)


def test_a_uniform_guess_loses_log_classes():
    """With all parameters zero every logit is zero."""
    for model in (MLP(hidden=(4,)), CNN(channels=(2,), hidden=(4,))):
        made = problem.make(model, CLASSES)
        shapes = jax.eval_shape(made.init, jax.random.key(0), BATCH)
        params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        # A logarithm in float32.
        assert float(jax.jit(made.loss)(params, BATCH)) == pytest.approx(np.log(CLASSES), rel=1e-6)


@pytest.mark.parametrize("channels", [(2,), (2, 2)])
def test_images_too_small_for_convolutions_are_refused_in_a_line(channels):
    """5 x 5 and pooling leave (n - 4) / 2 pixels a side, so n = 6 one and n = 16 six."""
    made = problem.make(CNN(channels=channels, hidden=()), CLASSES)
    least = {1: 6, 2: 16}[len(channels)]
    some = {
        side: {"image": np.zeros((1, side, 9 + side, 1), np.uint8), "label": np.zeros(1, np.int32)}
        for side in (least - 1, least)
    }
    problem.check(made, some[least], CLASSES)
    with pytest.raises(ConfigError, match=r"cannot be .* 5 x \d+ pixels: must be at least 6 x 6"):
        problem.check(made, some[least - 1], CLASSES)


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_quadratic_loss_and_gradient(noise):
    """f = mean of 1/2 (x - xi)' H (x - xi) and grad f = H (x - mean xi)."""
    values = config(50, dimension=6, condition=20.0, noise=noise)
    made, data = problem.make(values.model, 0), loaded(values)
    h = curvatures(6, 20.0).astype(np.float64)
    x = np.random.default_rng(1).normal(size=6)
    xi = data.train["optimum"][:8].astype(np.float64)
    params = {"x": {"x": jnp.asarray(x, jnp.float32)}}
    batch = {"optimum": data.train["optimum"][:8]}
    loss, grads = jax.jit(jax.value_and_grad(made.loss))(params, batch)
    # Float32 sums of 48 squares, and of 8 differences.
    assert float(loss) == pytest.approx((h * (x - xi) ** 2).sum(1).mean() / 2, rel=1e-5)
    np.testing.assert_allclose(grads["x"]["x"], h * (x - xi.mean(0)), rtol=1e-5, atol=1e-6)
    assert made.metrics(jnp.zeros((8, 6)), batch) == {}


def test_quadratic_data():
    """The full training gradient vanishes at 0, where the test loss, which has no noise, does."""
    values = config(50, dimension=6, noise=2.0)
    made, data = problem.make(values.model, 0), loaded(values)
    assert data.train["optimum"].shape == (50, 6)
    at_zero = {"x": {"x": jnp.zeros(6)}}
    grads = jax.jit(jax.grad(made.loss))(at_zero, data.train)
    # A float32 mean of 50 numbers of about 2.
    np.testing.assert_allclose(grads["x"]["x"], 0, atol=1e-6)
    assert float(made.loss(at_zero, data.test)) == 0
    again = loaded(values)
    np.testing.assert_array_equal(again.train["optimum"], data.train["optimum"])
    values = values.with_(seed=1)
    assert not np.array_equal(loaded(values).train["optimum"], data.train["optimum"])


def test_quadratic_without_noise_needs_one_example():
    data = loaded(config(dimension=6))
    np.testing.assert_array_equal(data.train["optimum"], np.zeros((1, 6)))
    assert len(loaded(config(noise=1.0)).train["optimum"]) == 1000


def test_descent_on_the_quadratic_contracts_each_coordinate():
    """x_{t+1} = (1 - alpha h) x_t, which no sign or factor of the gradient survives."""
    values = config(dimension=4, condition=8.0)
    made, data = problem.make(values.model, 0), loaded(values)
    params = made.init(jax.random.key(0), data.train)
    gradient = jax.jit(jax.grad(made.loss))
    for _ in range(20):
        params = jax.tree.map(lambda x, g: x - 0.5 * g, params, gradient(params, data.train))
    expected = (1 - 0.5 * curvatures(4, 8.0).astype(np.float64)) ** 20
    # Twenty roundings to float32, each relative.
    np.testing.assert_allclose(params["x"]["x"], expected, rtol=20 * 2**-23)


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_quadratic_with_spread_is_the_same_bowl_of_unlike_parts(noise):
    values = config(4000, dimension=6, condition=20.0, noise=noise, spread=0.7)
    made, data = problem.make(values.model, 0), loaded(values)
    h, s = curvatures(6, 20.0).astype(np.float64), data.train["curvature"].astype(np.float64)
    xi = data.train["optimum"].astype(np.float64)
    # Float32 means of 4,000 numbers of about one; the deviation of as many draws.
    np.testing.assert_allclose(s.mean(0), 1, rtol=1e-5)
    np.testing.assert_allclose((s * xi).mean(0), 0, atol=1e-5)
    assert s.std() == pytest.approx(0.7, rel=0.05)
    x = np.random.default_rng(1).normal(size=6)
    params = {"x": {"x": jnp.asarray(x, jnp.float32)}}
    gradient = jax.jit(jax.grad(made.loss))
    np.testing.assert_allclose(gradient(params, data.train)["x"]["x"], h * x, rtol=0, atol=2e-5)
    part = {name: leaf[:8] for name, leaf in data.train.items()}
    own = (h * s[:8] * (x - xi[:8])).mean(0)
    np.testing.assert_allclose(gradient(params, part)["x"]["x"], own, rtol=1e-5, atol=1e-6)
    assert np.abs(own - h * (x - xi[:8].mean(0))).max() > 0.1
    loss = (h * x**2).sum() / 2
    assert float(made.loss(params, data.test)) == pytest.approx(loss, rel=1e-6)


def test_quadratic_without_spread_is_as_it_was():
    """No array more, and the draws of the optima are the same with one."""
    values = config(dimension=6, noise=2.0)
    plain = loaded(values)
    assert set(plain.train) == set(plain.test) == {"optimum"}
    values = values.with_({"model.spread": 1.0})
    moved = loaded(values).train["optimum"] - plain.train["optimum"]
    np.testing.assert_allclose(moved, np.broadcast_to(moved[0], moved.shape), atol=1e-6)
