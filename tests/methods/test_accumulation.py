"""A batch taken in parts, one after the other: the same gradient in less memory, of any method."""

import jax
import numpy as np
import pytest

from optdyn.train import loop, single, trainer


@pytest.mark.parametrize("name", ["asynchronous", "buffered", "model_averaging"])
def test_parts_make_the_updates_of_the_whole(config, mnist, name):
    """To rounding: sums of 16 gradients in another order, 20 updates of some 1e-2."""
    values = mnist | {"method.name": name, "batch_size": 16, "steps": 20, "log_every": 20}
    values |= {"checkpoint_every": 0, "cluster.nodes": 2 if name == "model_averaging" else 4}

    def trained(parts):
        chosen = config(values | {"parallel.accumulation": parts, "optimizer.momentum": 0.5})
        run = trainer.prepare(chosen)
        state, examples, events, indices, n = loop.advance_arguments(run, 20)
        state, _ = run.program.advance(state, examples, events, indices, n)
        return jax.device_get(state.params)

    whole, parts = trained(1), trained(4)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-5)
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (whole, parts)), strict=True))


def test_the_meter_reads_what_accumulates(config, mnist):
    values = mnist | {"steps": 20, "batch_size": 16, "checkpoint_every": 0, "optimizer.momentum": 0}
    found = [single.record(config(values | {"parallel.accumulation": k})) for k in (1, 4)]
    # Sketches of parameters' worth of numbers: rounding as above, relative to the largest.
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-4 * np.abs(one).max())
