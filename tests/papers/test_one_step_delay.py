"""AdamW, Muon and a delay of one update: what is delayed, what Muon moves, the rule as written."""

import jax
import numpy as np
import pytest
from optax import contrib

from optdyn.configs.papers import one_step_delay
from optdyn.configs.papers.one_step_delay import BATCHES, OPTIMIZERS, STARTS, TARGETS
from optdyn.evidence.trial import Curve
from optdyn.problem import shared_data
from optdyn.training import program, trainer
from optdyn.training.checks import check
from tests.models.parameters import count

LESS, SAME, UNSURE, MORE = (1.05, 1.0, 1.09), (1.1, 1.08, 1.12), (1.3, 1.0, 1.6), (1.5, 1.3, 1.8)


@pytest.mark.parametrize(("optimizer", "batch_size"), STARTS)
def test_every_gradient_but_the_first_is_one_update_old(optimizer, batch_size):
    for delay in (0, 1):
        config = one_step_delay.config(optimizer, batch_size, delay).with_(steps=50)
        check(config)
        staleness = trainer.prepare(config).timeline.staleness
        np.testing.assert_array_equal(staleness, np.minimum(np.arange(50), delay))


def test_muon_moves_the_matrices_of_the_blocks_alone():
    config = one_step_delay.config("muon", 4, 1)
    data = shared_data.load(config)
    one = {name: leaf[:1] for name, leaf in data.train.items()}
    params = jax.eval_shape(
        lambda key: program.init(config, data.classes, key, one), jax.random.key(0)
    )
    specs = jax.tree_util.tree_leaves_with_path(
        one_step_delay.matrices(params),
        is_leaf=lambda spec: isinstance(spec, contrib.MuonDimensionNumbers),
    )
    moved = {tuple(key.key for key in path) for path, _ in specs}
    names = ("query", "key", "value", "attended", "gate", "up", "down")
    assert moved == {(f"block{k}", name, "kernel") for k in range(2) for name in names}
    assert 61_000 < count(params) < 63_000  # as the page says


def result(adamw, muon, interior=True):
    def row(optimizer, batch):
        penalty = dict.fromkeys(map(str, TARGETS), {"adamw": adamw, "muon": muon}[optimizer][batch])
        return {
            "optimizer": optimizer,
            "batch_size": batch,
            "penalty": penalty,
            "gap": [0.1, 0.2],
            "interior": interior,
        }

    rows = [row(*arm) for arm in STARTS]
    return {"rows": rows, "double": {str(batch): (1.2, 1.1, 1.3) for batch in BATCHES}}


def both(penalty):
    return dict.fromkeys(BATCHES, penalty)


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (result(both(MORE), both(LESS)), "confirmed"),
        (result(both(MORE), both(LESS), interior=False), "open"),
        (result(both(MORE), {4: LESS, 16: SAME}), "open"),
        (result({4: UNSURE, 16: MORE}, both(LESS)), "open"),
        (result(both(MORE), {4: LESS, 16: MORE}), "open"),
        (result(both(MORE), both(MORE)), "refuted"),
        (result(both(LESS), both(LESS)), "refuted"),
        (result({4: LESS, 16: MORE}, {4: LESS, 16: MORE}), "refuted"),
        (result(both(MORE), both(UNSURE)), "open"),
    ],
)
def test_the_rule(made, word):
    assert one_step_delay.verdict(made).word == word


def test_the_gap_is_read_where_training_without_delay_arrives():
    """Losses that halve every 10 updates against those that do every 20, by the definition."""
    loss = TARGETS[-1]

    def row(updates):
        tuned = {"interior": True}
        return {"tuned": tuned, "updates": {str(k): updates for k in TARGETS}}

    points = [0, 8, 16, 24, 32]
    late = Curve(points, [0.0] * 5, [8 * 2 ** (-n / 20) for n in points], "reached", {})
    prompt = 10 * np.log2(8 / loss)
    made = one_step_delay.compared(row([prompt]), row([2 * prompt]), [late])
    assert made["gap"] == pytest.approx([8 * 2 ** (-prompt / 20) - loss])
    assert made["penalty"][str(loss)] == pytest.approx((2, 2, 2))


def test_both_optimizers_share_all_but_their_names():
    one, other = (one_step_delay.config(name, 4, 1).to_dict() for name in OPTIMIZERS)
    for each in (one, other):
        del each["optimizer"]["name"], each["optimizer"]["options"]
    assert one == other
