"""SparseLoCo, DeMo with SciPy's transform, and the numbers that SPARTA draws, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.fft import dctn, idctn

from optdyn.clock.timeline import AllReduceStep
from optdyn.methods.averaging import meeting_schedule
from optdyn.methods.sparse import chunks, demo, places
from tests.methods import nodes
from tests.methods.nodes import EACH, NODES, RATE, START, STEPS, P, flattened
from tests.methods.test_compression import LEVELS, parts, rounded

SHARE, BETA, A = 0.25, 0.9, 0.7
KEYS = {"compression_share": SHARE, "compression_block": 5}


def ran(bits):
    numbers = {"error_decay": BETA, "outer_learning_rate": A}
    outer = {name: np.full(STEPS, value, np.float32) for name, value in numbers.items()}
    line = meeting_schedule(STEPS, 4, 1, 0)._replace(outer=outer)
    made = nodes.sparseloco(nodes.inner(), KEYS | {"compression_bits": bits})
    return nodes.ran(made, nodes.events(line, RATE, 0.6))


def reference(bits):
    """(STEPS, NODES, P) in float64, by its equations, and the errors in the end."""
    every, theta, e = nodes.HeavyBall(), np.float64(START), [np.zeros(nodes.P)] * NODES
    send, history = meeting_schedule(STEPS, 4, 1, 0).send[:, 0], []

    def kept(part):
        largest, sent = np.argsort(-np.abs(part))[: -(-len(part) // 4)], np.zeros(len(part))
        levels = LEVELS["top_k of 2 bits"] if bits == 2 else None
        sent[largest] = part[largest] if levels is None else rounded(levels, part[largest])
        return sent

    for t in range(STEPS):
        every.step(t)
        if send[t]:
            e = [BETA * own + theta - x for own, x in zip(e, every.x, strict=True)]
            s = [np.concatenate([kept(part) for part in parts(v)]) for v in e]
            e = [v - sent for v, sent in zip(e, s, strict=True)]
            theta = theta - A * sum(s) / NODES
            every.x = [theta] * NODES
        history.append(list(every.x))
    return np.array(history), np.array(e)


@pytest.mark.parametrize("bits", [32, 2])
def test_sparseloco_is_what_its_equations_say(bits):
    states, _ = ran(bits)
    ((errors, _),), (x, e) = states.errors, reference(bits)
    # Parameters of about one in float32, 1e-7 an operation, over 32 updates.
    np.testing.assert_allclose(flattened(states.params), x, rtol=0, atol=1e-5)
    np.testing.assert_allclose(-flattened(errors)[-1], e, rtol=0, atol=1e-5)  # of x - theta


DECAY, GAMMA = 0.9, np.float64(np.float32(RATE))


def demo_ran(coefficients, signed):
    choice = AllReduceStep(numbers={"momentum_decay": np.full(STEPS, DECAY, np.float32)})
    made = demo(nodes.inner(), 2, coefficients, signed)
    return nodes.ran(made, nodes.events(choice, RATE, 0.0))


def fast(flat, count):
    """The `count` largest coefficients of every block of 2: of (3, 4) in columns, and of (1, 2)."""
    blocks = [(slice(2 * n, 2 * n + 2), (1, 2)) for n in range(7)]  # 3 rows: no divisor but 1 and 3
    out = np.zeros_like(flat)
    for place, shape in blocks:
        found = dctn(flat[place].reshape(shape), norm="ortho").ravel()
        kept = np.zeros_like(found)
        largest = np.argsort(-np.abs(found))[:count]
        kept[largest] = found[largest]
        out[place] = idctn(kept.reshape(shape), norm="ortho").ravel()
    return out


def demo_reference(count, signed):
    theta, m, history = np.float64(START), [np.zeros(P)] * NODES, []
    for t in range(STEPS):
        sent = []
        for i in range(NODES):
            grad = nodes.gradient(theta, t, slice(i * EACH, (i + 1) * EACH))
            m[i] = DECAY * m[i] + GAMMA * grad
            sent.append(fast(m[i], count))
            m[i] = m[i] - sent[-1]
        mean = sum(sent) / NODES
        theta = theta - (GAMMA * np.sign(mean) if signed else mean)
        history.append(theta)
    return np.array(history), np.array(m)


@pytest.mark.parametrize("signed", [False, True])
def test_every_update_of_demo_equals_the_reference(signed):
    states, sent = demo_ran(1, signed)
    theta, m = demo_reference(1, signed)
    # Parameters of about one in float32: 1e-7 an operation, over 32 updates.
    for node in range(NODES):
        np.testing.assert_allclose(flattened(states.params)[:, node], theta, rtol=0, atol=1e-5)
    np.testing.assert_allclose(flattened(states.momentum)[-1], m, rtol=0, atol=1e-5)
    assert np.abs(m).max() > 1e-2
    np.testing.assert_array_equal(sent, 7 * (4 + 2))


@pytest.mark.parametrize("shape", [(6, 10), (7,), (3, 4, 6), ()])
def test_a_transform_keeps_lengths_and_comes_back(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    of = chunks(shape, 4)
    assert of.height <= 4 and of.width <= 4
    assert of.rows * of.height * of.columns * of.width == x.size
    found = of.encode(jnp.asarray(x))
    np.testing.assert_allclose(np.sum(found**2), np.sum(x**2), rtol=1e-5)
    np.testing.assert_allclose(of.decode(found, x), x, rtol=0, atol=1e-6)


def test_numbers_are_drawn_anew_and_all_as_often():
    """800 draws of 3 of 12: each number 200 times, to 5 standard deviations of 12."""
    draw = jax.jit(jax.vmap(lambda seed: places(seed, 0, 12, 0.25)))
    chosen = np.asarray(draw(np.arange(800)))
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    counts = np.bincount(chosen.ravel(), minlength=12)
    assert np.abs(counts - 200).max() < 60
    other = np.asarray(jax.jit(jax.vmap(lambda seed: places(seed, 1, 12, 0.25)))(np.arange(800)))
    assert (chosen != other).any(axis=1).mean() > 0.9  # another array has others
