"""The clock waits for as many bytes as the program says that it sends."""

import jax
import numpy as np
import pytest

from optdyn import methods
from optdyn.base.trees import bytes_of
from optdyn.train import program
from tests.methods import test_battery as battery

MESSAGES_ALONE = {
    "method.period": 3,
    "cluster.bandwidth": 1.0,
    "cluster.devices_per_node": 1,
    "cluster.seconds_per_example": 1 / 8,  # which float64 adds and takes off without rounding
}


def sent_and_seconds(name, values, optimizer="sgd"):
    """Of every update: bytes that the program says, and seconds of a clock of its messages alone.

    Nodes of one device and a byte a second: a ring of two takes as long as a message is.
    """
    values = MESSAGES_ALONE | values
    run = battery.make_run(name, values, optimizer=optimizer)
    step, state, said = jax.jit(run.rule.step), run.state, []
    for t in range(battery.STEPS):
        state, info = step(state, *battery.at((run.events, run.batches), t))
        said.append(float(info["sent_bytes"]))
    return np.array(said), seconds(name, run.params, values, optimizer), run.params


def seconds(name, params, values, optimizer="sgd"):
    """Of every update, by the clock of a config, less those of its computing."""
    config = battery.config_of(name, values | {"optimizer.name": optimizer})
    network = methods.ModelInfo(program.problem_of(config, battery.CLASSES), params, {})
    size = bytes_of(params)
    known = {"steps_per_epoch": 4, "update_bytes": size, "network": network}
    line = config.timeline(**known)
    computing = battery.BATCH / config.cluster.nodes * config.cluster.seconds_per_example
    return np.diff(line.seconds, prepend=0.0) - computing


WHOLE = {"gossip", "demo", "sparta"}  # after every update, and always as much
SENT = {
    **{f"gossip of {name}": ("gossip", {"method.compression": name}) for name in ("top_k", "sign")},
    "gossip of 4 bits": ("gossip", {"method.compression_bits": 4}),
    "demo": ("demo", {"method.coefficients": 3, "method.chunk": 4}),
    **{f"sparta of {s}": ("sparta", {"method.averaged_share": s}) for s in (0.1, 1.0)},
    "gasloc": ("gasloc", {"method.graph": "ring"}),
    "over a graph": ("diloco+gossip", {"method.graph": "ring"}),
    **{f"sparseloco {n}": ("sparseloco", {"method.compression_bits": n}) for n in (2, 32)},
    **{f"diloco of {kind}": (f"{kind} messages", {}) for kind in battery.MESSAGES},
    "diloco of fragments": ("powersgd messages", {"method.fragments": 2}),
}


@pytest.mark.parametrize("case", SENT)
def test_the_clock_counts_the_bytes_of_two_nodes(case):
    """A ring of two takes as long as a message, whether it is added up, gathered or swapped."""
    name, values = SENT[case]
    if name == "gossip":
        values = values | {"method.gossip_order": "adapt", "method.graph": "ring"}
    sent, took, _ = sent_and_seconds(name, values)
    np.testing.assert_allclose(took, sent, rtol=1e-12)  # whole numbers in float64
    assert sent.max() > 0 and (np.ptp(sent) == 0) == (name in WHOLE)
