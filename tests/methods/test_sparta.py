"""SPARTA: against float64, all of the parameters, and what is drawn."""

import jax
import numpy as np

from optdyn.clock.base import Together
from optdyn.methods.mix.averaging_clock import turns
from optdyn.methods.mix.sparta import places, sparta
from tests.methods import nodes
from tests.methods.nodes import NODES, RATE, STEPS, P, flattened

MOMENTUM = 0.6
DRAWS = np.arange(7, 7 + STEPS, dtype=np.int32)


def ran(share):
    events = nodes.events(Together(draw=DRAWS), RATE, MOMENTUM)
    return nodes.ran(sparta(nodes.inner(), share), events)


def drawn(t, share):
    """Which of the 14 numbers, of two arrays, are averaged after update t."""
    each = [np.asarray(places(DRAWS[t], n, count, share)) for n, count in ((0, 12), (1, 2))]
    return np.concatenate([each[0], 12 + each[1]])


def test_every_update_equals_the_reference():
    states, sent = ran(0.25)
    every, history = nodes.HeavyBall(momentum=MOMENTUM), []
    for t in range(STEPS):
        every.step(t)
        chosen = np.isin(np.arange(P), drawn(t, 0.25))
        every.x = [np.where(chosen, sum(every.x) / NODES, own) for own in every.x]
        history.append(list(every.x))
    # Parameters of about one in float32: 1e-7 an operation, over 32 updates.
    np.testing.assert_allclose(flattened(states.params), history, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(sent, 4 * (3 + 1))
    assert np.abs(np.diff(history, axis=1)).max() > 1e-2  # nodes differ


def test_all_of_them_is_the_mean_after_every_update():
    states, _ = ran(1.0)
    meeting = turns(STEPS, 1, 1, 0)
    averaged = nodes.averaging(nodes.inner(), {"period": 1})
    other, _ = nodes.ran(averaged, nodes.events(meeting, RATE, MOMENTUM))
    np.testing.assert_allclose(flattened(states.params), flattened(other.params), atol=1e-6)


def test_numbers_are_drawn_anew_and_all_as_often():
    """800 draws of 3 of 12: each number 200 times, to 5 standard deviations of 12."""
    draw = jax.jit(jax.vmap(lambda seed: places(seed, 0, 12, 0.25)))
    chosen = np.asarray(draw(np.arange(800)))
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    counts = np.bincount(chosen.ravel(), minlength=12)
    assert np.abs(counts - 200).max() < 60
    other = np.asarray(jax.jit(jax.vmap(lambda seed: places(seed, 1, 12, 0.25)))(np.arange(800)))
    assert (chosen != other).any(axis=1).mean() > 0.9  # another array has others
