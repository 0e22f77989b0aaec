"""Whole runs of local parallelism: its limit, its log, its costs and its simulated seconds."""

import numpy as np
import pytest

from optdyn.experiment import ConfigError
from optdyn.train import trainer
from optdyn.train.trainer import train

LOCAL = {
    "method.name": "local",
    "cluster.nodes": 1,
    "cluster.service.name": "constant",
    "model.name": "resmlp",
    "model.blocks": 4,
    "model.width": 8,
}
SIZE = 4  # of the batches of `config`


@pytest.fixture(scope="module")
def local(config, mnist):
    """`local({"method.variant": ...})`: the config of a small residual network."""
    return lambda values=(): config(mnist).with_(LOCAL).with_(dict(values))


@pytest.mark.parametrize("variant", ["greedy", "backprop"])
def test_probes_are_logged(local, tmp_path, rows, variant):
    train(local({"method.variant": variant, "method.probes": True}), tmp_path)
    for row in rows(tmp_path):
        cosines = [row[f"cosine_block{k}"] for k in range(4)]
        accuracies = [row[f"probe_accuracy_block{k}"] for k in range(4)]
        assert all(0 <= accuracy <= 1 for accuracy in accuracies)
        # The last block has no other loss than the model's; rounding is some 1e-7.
        assert cosines[-1] == pytest.approx(1, abs=1e-5)
        if variant == "backprop":
            assert cosines == pytest.approx([1] * 4, abs=1e-5)
        else:
            assert cosines[0] < 0.999  # it learns from another loss


def test_costs_are_in_the_summary_and_make_the_seconds(local, tmp_path):
    summaries = {
        name: train(local({**values, "steps": 10, "checkpoint_every": 0}), tmp_path / name)
        for name, values in {
            "backprop": {"method.variant": "backprop"},
            "greedy": {},
            "stages": {"cluster.nodes": 4},
            "pipeline": {"method.variant": "backprop", "cluster.nodes": 4},
        }.items()
    }
    assert not any("cosine" in key or "probe" in key for key in summaries["greedy"])
    flops = {name: summary["total_flops"] for name, summary in summaries.items()}
    seconds = {name: s["simulated_seconds_per_step"] for name, s in summaries.items()}
    second = SIZE * 1e-3  # of backpropagation, as the config has it
    assert seconds["backprop"] == pytest.approx(second)
    # On one device what counts is all the work that there is, heads included;
    assert seconds["greedy"] == pytest.approx(second * flops["greedy"] / flops["backprop"])
    assert flops["greedy"] > flops["backprop"] == summaries["backprop"]["sequential_flops"]
    # on several, the fullest one: more than a quarter, less than a pipeline that fills and drains.
    assert second / 4 < seconds["stages"] < seconds["pipeline"] < second
    assert summaries["greedy"]["sequential_flops"] < flops["greedy"]
    one = SIZE * 8 * 4  # activations, float32
    assert summaries["greedy"]["communicated_bytes"] == 3 * one  # as if every block had a device
    # Between real stages a pipeline sends gradients back, and one of 4 blocks a stage cuts thrice.
    assert summaries["stages"]["communicated_bytes"] == 3 * one
    assert summaries["pipeline"]["communicated_bytes"] == 2 * 3 * one


def test_a_head_that_cannot_be_shared(local, tmp_path):
    values = {"model.name": "mlp", "model.hidden": (8, 9), "method.shared_heads": True}
    with pytest.raises(ConfigError, match="different shapes"):
        train(local(values), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_head_is_shared_by_groups_that_end_alike(local):
    """However the blocks inside them end."""
    values = {"model.name": "mlp", "model.hidden": (9, 8, 7, 8), "method.shared_heads": True}
    for variant in ("chunked", "backprop"):
        config = local(values | {"method.variant": variant})
        names = set(trainer.prepare(config).params)
        assert names == {"classifier", *(f"hidden{k}" for k in range(4))}


def test_variants_start_from_the_same_trunk(local):
    params = [trainer.prepare(local({"method.variant": v})).params for v in ("greedy", "backprop")]
    assert set(params[0]) == set(params[1]) | {f"block{k}_head" for k in range(3)}
    for name, own in params[1].items():
        for leaf, values in own.items():
            for kind, value in values.items():
                np.testing.assert_array_equal(value, params[0][name][leaf][kind])


def test_equal_variants_share_a_program(local):
    one, other = (
        trainer.prepare(local({"optimizer.learning_rate": rate})).program for rate in (0.1, 0.2)
    )
    assert one is other
    chunked = local({"method.variant": "chunked", "method.chunks": 4})
    own = [c.methods.gradient.over(4) for c in (chunked, local())]
    assert own[0] == own[1]
