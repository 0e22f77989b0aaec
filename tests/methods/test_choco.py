"""CHOCO-SGD: against float64, and the mean of the nodes."""

import numpy as np
import pytest

from optdyn.methods import messages
from optdyn.methods.gossip import Neighbours, choco, graph_peers, over_updates
from optdyn.methods.messages import quantizer
from tests.methods import nodes
from tests.methods.nodes import RATE, START, STEPS, flattened
from tests.methods.test_compression import LEVELS, parts, rounded

COUNT, MOMENTUM, C = 4, 0.6, 0.4
RING = graph_peers("ring", COUNT, STEPS, np.random.default_rng(0))
W, CF = nodes.matrices(RING)[0], np.float64(np.float32(C))


def ran(small, rate=C):
    one = np.ones((STEPS, COUNT), np.float32)
    choice = Neighbours(over_updates(RING, STEPS), one, rate=np.full(STEPS, rate, np.float32))
    return nodes.ran(choco(nodes.inner(), small), nodes.events(choice, RATE, MOMENTUM), COUNT)


def reference(message):
    every = nodes.HeavyBall(COUNT, MOMENTUM)
    known, history = [np.float64(START)] * COUNT, []
    for t in range(STEPS):
        every.step(t)
        known = [y + message(own - y) for own, y in zip(every.x, known, strict=True)]
        every.x = [
            every.x[i] + CF * sum(W[i, j] * (known[j] - known[i]) for j in range(COUNT))
            for i in range(COUNT)
        ]
        history.append(list(every.x))
    return np.array(history)


def a_quarter(v):
    """The largest quarter of each array's numbers."""
    out = []
    for part in parts(v):
        sent, largest = np.zeros(len(part)), np.argsort(-np.abs(part))[: -(-len(part) // 4)]
        sent[largest] = part[largest]
        out.append(sent)
    return np.concatenate(out)


def four_bits(v):
    return np.concatenate([rounded(LEVELS["E3M0"], part) for part in parts(v)])


SMALL = {
    "top_k": (messages.top_k(0.25, quantizer(32, 5)), a_quarter),
    "E3M0": (messages.quantized(quantizer(4, 5)), four_bits),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_update_equals_the_reference(name):
    small, message = SMALL[name]
    states, sent = ran(small)
    expected = reference(message)
    # Parameters of about one in float32: 1e-7 an operation, over 32 updates.
    np.testing.assert_allclose(flattened(states.params), expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(sent, 2 * sum(small.messages(nodes.tree(START))))  # on a ring
    assert np.abs(np.diff(expected, axis=1)).max() > 1e-2


def test_consensus_keeps_the_mean_over_the_nodes():
    """W's columns add up to 1, whatever the messages leave out: c moves no mean."""
    near, far = (ran(SMALL["top_k"][0], c)[0].params for c in (0.1, 0.4))
    one, other = (flattened(own)[0].mean(axis=0) for own in (near, far))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    assert np.abs(flattened(near)[0] - flattened(far)[0]).max() > 1e-4
