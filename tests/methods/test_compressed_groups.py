"""Groups that send compressed gradients: against float64, and the clock's bytes."""

import numpy as np

from optdyn.methods import ModelInfo, messages
from optdyn.methods.asynchronous import asynchronous
from optdyn.methods.messages import quantizer
from optdyn.optimizers import optimizer
from tests.methods import workers
from tests.methods.nodes import RATE, START, STEPS, P, flattened, gradient, tree
from tests.methods.test_choco import a_quarter
from tests.methods.workers import ALL, MOMENTUM, WORKERS, events_of, line_of, ran

CLIP = (("clip_by_global_norm", {"max_norm": 0.1}),)


def made(small):
    return workers.made(lambda *pieces: asynchronous(*pieces, compression=small))


def test_every_update_equals_the_reference():
    line = line_of("asynchronous")
    states, _ = ran(made(messages.top_k(0.25, quantizer(32, 5))), events_of(line))
    x, v, errors = np.float64(START), np.zeros(P), [np.zeros(P)] * WORKERS
    read, history = [x] * WORKERS, []
    for t, i in enumerate(line.worker):
        whole = gradient(read[i], t, ALL) + errors[i]
        sent = a_quarter(whole)
        errors[i] = whole - sent
        v = MOMENTUM * v + sent
        x = x - np.float64(np.float32(RATE)) * v
        read[i] = x
        history.append(x)
    found = flattened(states.slots)[np.arange(STEPS), line.worker]
    # Parameters of about one in float32: 1e-7 an operation, over 32 updates.
    np.testing.assert_allclose(found, history, rtol=0, atol=1e-5)
    np.testing.assert_allclose(flattened(states.errors)[-1], errors, rtol=0, atol=1e-5)
    assert np.abs(errors).max() > 1e-2


def test_what_is_clipped_off_is_not_fed_back():
    """Clipping comes after compression: the first error is that of no clipping, x_1 is not."""
    small = messages.top_k(0.25, quantizer(32, 5))
    clipped = optimizer("sgd", ("learning_rate", "momentum"), {}, CLIP)
    rules = (
        made(small),
        workers.made(lambda *p: asynchronous(*p, compression=small), optimizer=clipped),
    )
    free, cut = (ran(rule, events_of(line_of("asynchronous")))[0] for rule in rules)
    np.testing.assert_array_equal(flattened(cut.errors)[0], flattened(free.errors)[0])
    moved = [flattened(each.slots)[0] for each in (free, cut)]
    assert np.abs(moved[0] - moved[1]).max() > 1e-3


def test_the_clock_sends_less_to_the_server_and_all_back():
    """A quarter of each array's numbers, 8 bytes each, at a byte a second, and 56 bytes back."""
    asked = {"method.compression_share": 0.25, "cluster.service.name": "constant"}
    asked |= {"cluster.bandwidth": 1.0}
    network = ModelInfo(None, tree(START), None)
    took = []
    for name in ("", "top_k"):
        asked["method.compression"] = name
        line = line_of("asynchronous", 2, update_bytes=56, network=network, **asked)
        took.append(line.seconds[1::2] / np.arange(1, 17) - 1)  # a second of computing
    np.testing.assert_allclose(took, [[112] * 16, [56 + 8 * (3 + 1)] * 16], rtol=1e-12)
