"""SparseLoCo: against float64, and what its errors are worth."""

import numpy as np
import pytest

from optdyn.methods.averaging import meeting_schedule
from tests.methods import nodes
from tests.methods.nodes import NODES, RATE, START, STEPS, flattened
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
def test_it_is_what_its_equations_say(bits):
    states, _ = ran(bits)
    ((errors, _),), (x, e) = states.errors, reference(bits)
    # Parameters of about one in float32, 1e-7 an operation, over 32 updates.
    np.testing.assert_allclose(flattened(states.params), x, rtol=0, atol=1e-5)
    np.testing.assert_allclose(-flattened(errors)[-1], e, rtol=0, atol=1e-5)  # of x - theta
