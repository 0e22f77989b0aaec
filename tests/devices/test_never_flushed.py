"""Stages of a pipeline on devices of their own; `test_layouts.py` has their updates."""

import jax
import numpy as np
import pytest

from optdyn.experiment import Config
from optdyn.methods.pipeline import KINDS, _pairs, from_rows, to_rows
from optdyn.train import trainer
from optdyn.train.checkpoints import Checkpoints


@pytest.mark.parametrize("stages", range(1, 7))
def test_a_forward_meets_its_neighbours_backward(stages):
    """Whoever gets something in a beat is at what it is for in the next one."""
    micro_batches, due = 5, set()
    for beat in range(2 * (micro_batches + stages - 1)):
        pairs, made = _pairs(beat % 2, stages), set()
        for j in range(stages):
            is_forward = (beat - j) % 2 == 0
            i = (beat - j if is_forward else beat - (2 * stages - 1 - j)) // 2
            if not 0 <= i < micro_batches:
                continue
            sender = j - 1 if is_forward else j + 1
            assert not 0 <= sender < stages or (j, i, is_forward) in due
            if not is_forward:  # how many updates it makes in between, if each is of one
                assert beat - (2 * i + j) == 2 * (stages - 1 - j) + 1
            receiver = j + 1 if is_forward else j - 1
            if 0 <= receiver < stages:
                assert (j, receiver) in pairs
                made.add((receiver, i, is_forward))
        due = made
    assert not due


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_its_rows_to_the_bit(mnist, tmp_path, kind):
    """All versions, in the middle of a run."""
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
