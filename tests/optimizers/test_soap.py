"""SOAP against its equations in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optdyn as od
from optdyn.optimizers import known, logged, optimizer
from optdyn.optimizers.soap import soap
from optdyn.train import loop, trainer
from optdyn.train.run import batches_of

STEPS, RATE, B1, B2, EPS, EVERY = 30, 0.05, 0.9, 0.95, 1e-8, 7
SHAPES = {"matrix": (3, 4), "kernel": (2, 2, 3), "vector": (5,)}
RNG = np.random.default_rng(4)
START = {name: RNG.normal(size=shape) for name, shape in SHAPES.items()}
GRADS = {name: RNG.normal(size=(STEPS, *shape)) for name, shape in SHAPES.items()}


def ran(made, dtype):
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), START)
    grads = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), GRADS)

    def body(carry, grad):
        params, state = carry
        updates, state = made.update(grad, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    return jax.device_get(jax.lax.scan(body, (params, made.init(params)), grads)[1])


def reference(name):
    """(STEPS, ...): its equations, one array by itself."""
    x, shape = START[name], SHAPES[name]
    rows, columns = (int(np.prod(shape[:-1])), shape[-1])
    left, right, is_matrix = np.eye(rows), np.eye(columns), len(shape) > 1
    big_l, big_r, m, v = np.zeros((rows, rows)), np.zeros((columns, columns)), 0.0, 0.0
    history = []
    for t in range(STEPS):
        g = GRADS[name][t].reshape(rows, columns)
        m = B1 * m + (1 - B1) * g
        gradient, turned = left.T @ g @ right, left.T @ m @ right
        v = B2 * v + (1 - B2) * gradient**2
        root = np.sqrt(v / (1 - B2 ** (t + 1))) + EPS
        way = left @ (turned / (1 - B1 ** (t + 1)) / root) @ right.T
        x = x - RATE * way.reshape(shape)
        big_l, big_r = B2 * big_l + (1 - B2) * g @ g.T, B2 * big_r + (1 - B2) * g.T @ g
        if is_matrix and (t + 1) % EVERY == 0:
            left, right = np.linalg.qr(big_l @ left)[0], np.linalg.qr(big_r @ right)[0]
        history.append(x)
    return np.array(history)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_is_what_its_equations_say(dtype):
    with jax.enable_x64(dtype == "float64"):
        found = ran(soap(RATE, B1, B2, EPS, EVERY), dtype)
    for name in SHAPES:
        # Float32: 1e-7 an operation, in bases of a condition of some ten.
        close = {"rtol": 0, "atol": 1e-5 if dtype == "float32" else 1e-10}
        np.testing.assert_allclose(found[name], reference(name), **close)


def test_it_is_an_optimizer_by_name():
    assert "soap" in known()
    made = optimizer("soap", ("learning_rate",), {"period": 5})
    params = jax.tree.map(jnp.asarray, START)
    state = made.init(params)
    updates, after = made.update(params, state, params, learning_rate=0.1)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    assert logged(after) == {}
    with pytest.raises(ValueError, match="period 0: must be at least 1"):
        soap(0.1, period=0)


def test_nodes_that_train_by_themselves_have_bases_of_their_own():
    """Linear regression on two nodes that average after three updates, against one SOAP a node."""
    data = {"x": RNG.normal(size=(40, 3)), "y": RNG.normal(size=(40, 2))}
    model = (lambda key, x: {"w": jnp.ones((3, 2)) / 2}, lambda params, x: x @ params["w"])
    run = trainer.prepare(
        od.Experiment(
            model=model,
            data={"train": data, "test": data},
            loss=lambda outputs, batch: ((outputs - batch["y"]) ** 2).sum(axis=-1),
            optimizer=od.Optax(name="soap", learning_rate=RATE, options={"period": 2}),
            method=od.ModelAveraging(period=3),
            cluster=od.Cluster(nodes=2),
            batch_size=8,
            steps=4,
        )
    )
    state, _ = run.program.advance(*loop.advance_arguments(run, 4))

    made, starts = soap(RATE, period=2), [jnp.ones((3, 2)) / 2] * 2
    nodes = [(x, made.init(x)) for x in starts]
    for t, chosen in enumerate(batches_of(run)(0, 4).reshape(4, 2, 4)):
        for i, (x, state_of_node) in enumerate(nodes):
            rows, targets = data["x"][chosen[i]], data["y"][chosen[i]]
            step, state_of_node = made.update(rows.T @ (rows @ x - targets) / 2, state_of_node)
            nodes[i] = x + step, state_of_node
        if t == 2:
            nodes = [((nodes[0][0] + nodes[1][0]) / 2, state_of_node) for _, state_of_node in nodes]
    mean = (nodes[0][0] + nodes[1][0]) / 2  # all meet after the last update
    found = state.node_params["model"]["w"]
    np.testing.assert_allclose(found, np.stack([mean, mean]), rtol=0, atol=1e-5)
    left = state.state.inner.opt_state.bases[0].left
    assert np.abs(left[0] - left[1]).max() > 0.1
