"""Stages of a pipeline on devices of their own; `test_layouts.py` has their updates."""

import jax
import numpy as np
import pytest

from optdyn.experiment import Config
from optdyn.methods.pipeline import KINDS, from_rows, to_rows
from optdyn.train import trainer
from optdyn.train.checkpoints import Checkpoints


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_its_rows_to_the_bit(mnist, tmp_path, kind):
    own = {"method.name": "stale_pipeline", "method.pipeline": kind, "steps": 13}
    own |= {"cluster.service.name": "constant", "cluster.nodes": 2, "model.hidden": (9, 6, 7)}
    config = Config().with_(mnist | own)
    trainer.train(config, tmp_path)
    run = trainer.prepare(config)
    with Checkpoints(tmp_path) as checkpoints:
        _, state = checkpoints.restore(run.program.rule.init(run.params))
    state = jax.device_get(state)
    names = ("hidden0",), ("hidden1", "hidden2", "classifier")
    again = from_rows(names, to_rows(names, state))
    assert again.newest == state.newest
    jax.tree.map(np.testing.assert_array_equal, tuple(again), tuple(state))
    kernels = state.slots["hidden0"]["Dense_0"]["kernel"]
    assert all((one != other).any() for one, other in zip(kernels[1:], kernels, strict=False))
