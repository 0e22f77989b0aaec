"""DASO, dynamic batches, local parallelism, merged servers: their clocks, and rules as written."""

import numpy as np
import pytest

from optdyn.configs.papers import daso, dynamic_batch, local_similarity, local_time, merged_servers
from optdyn.evidence.trial import Curve
from optdyn.problem import shared_data
from optdyn.timeline.pipeline import one_f_one_b, seconds
from optdyn.training.checks import check

ONE, LESS, MUCH_LESS, MORE = [1.0, 0.9, 1.1], [0.8, 0.7, 0.9], [0.5, 0.4, 0.6], [1.3, 1.2, 1.4]


def curve(config):
    """A loss at the end of every epoch, as a trial of DASO has."""
    updates = [0, *range(31, config.steps + 1, 31)]
    return Curve(updates, [0.0] * len(updates), [2.0] * len(updates), "ended", {"accuracy": 0.9})


def constant(strategy):
    return daso.config(strategy, "small").with_({"cluster.service": "constant"})


@pytest.mark.parametrize(("network", "update"), [(0.25, 1.0), (1.0, 4 / 3), (4.0, 13 / 3)])
def test_the_synchronous_update_hides_its_exchange_behind_two_thirds(network, update):
    config = constant("sync")
    made = daso.on(network, config, curve(config), 0)
    # Float64 sums of 372 updates.
    assert made.seconds[-1] == pytest.approx(config.steps * update * daso.COMPUTING, rel=1e-12)


def test_daso_blocks_in_warm_up_and_cool_down_only():
    """Of 12 epochs 4 block, for 4/3 of a batch; in the others only the last of 31 batches does."""
    config = constant("daso")
    made = daso.on(1.0, config, curve(config), 0)
    blocked, cycled = 31 * 4 / 3, 30 + 4 / 3
    assert made.seconds[-1] / daso.COMPUTING == pytest.approx(4 * blocked + 8 * cycled)
    assert daso.BYTES == 4 * 669_706


def daso_result(accuracy, epochs, loss):
    network = {"exchange_over_computing": 1.0, "equal_epochs": epochs}
    return {
        "accuracy_ratio": accuracy,
        "networks": [network | {"to_loss": {str(daso.LOSSES[-1]): loss}}],
        "tuned": {"sync": {"interior": True}},
    }


@pytest.mark.parametrize(
    ("accuracy", "epochs", "loss", "word"),
    [
        ([1.0, 0.999, 1.001], MUCH_LESS, LESS, "confirmed"),
        ([1.0, 0.98, 1.001], MUCH_LESS, LESS, "open"),
        ([1.0, 0.999, 1.001], LESS, LESS, "open"),
        ([1.0, 0.999, 1.001], MUCH_LESS, ONE, "open"),
        ([0.98, 0.97, 0.99], MUCH_LESS, LESS, "refuted"),
        ([1.0, 0.999, 1.001], MORE, MORE, "refuted"),
    ],
)
def test_the_rule_of_daso(accuracy, epochs, loss, word):
    assert daso.verdict(daso_result(accuracy, epochs, loss)).word == word


def dbs_result(waste, accuracy, time=LESS):
    each = {"waste": waste, "time": time}
    clocks = {case: {"equal": each, "paper": each, "smoothed": each} for case in ("rare", "often")}
    kept = {f"paper, weights {w}": {"ratio": accuracy} for w in dynamic_batch.WEIGHTS.values()}
    return {"clocks": clocks, "accuracy": kept}


@pytest.mark.parametrize(
    ("waste", "accuracy", "word"),
    [
        ([0.03, 0.02, 0.05], [1.0, 0.999, 1.001], "confirmed"),
        ([0.03, 0.02, 0.06], [1.0, 0.999, 1.001], "open"),
        ([0.03, 0.02, 0.05], [1.0, 0.98, 1.001], "open"),
        ([0.07, 0.06, 0.09], [1.0, 0.999, 1.001], "refuted"),
        ([0.03, 0.02, 0.05], [0.98, 0.97, 0.99], "refuted"),
    ],
)
def test_the_rule_of_dynamic_batches(waste, accuracy, word):
    assert dynamic_batch.verdict(dbs_result(waste, accuracy)).word == word


def test_without_disturbances_equal_workers_waste_nothing():
    config = dynamic_batch.config("small", "rare")
    config = config.with_({"cluster.disturbance_probability": 0.0})
    waste, seconds = dynamic_batch.clock(config, 0)
    assert waste == pytest.approx(0, abs=1e-12)
    # 31 updates of 128 are 3,968 of the 4,000 examples that are said to take 20 s.
    assert seconds == pytest.approx(40 * dynamic_batch.EPOCH * 3968 / 4000)


def test_greedy_updates_follow_each_other_at_their_longest_stage():
    """The pipeline's clock against the longest dependent path, counted from the groups alone."""
    greedy = local_time.config("vision", "greedy", "small")
    _, between = local_time.clock(greedy)["greedy"]
    config = local_time.config("vision", "overlapping", "small")
    config = config.with_({"strategy.window": 1})  # which is greedy
    assert between == pytest.approx(local_time.clock(config)["overlapping"][1])
    assert 1 / local_time.STAGES < between < 0.6


def test_backpropagation_is_pipelined_and_not_stalled():
    """More micro-batches leave the stages less to wait: less than any bubble formula's limit."""
    clocks = local_time.clock(local_time.config("vision", "backprop", "small"))
    few, many = (clocks[f"1F1B, {m}"][1] for m in local_time.MICRO_BATCHES)
    assert 1 / local_time.STAGES < many < few < 1
    # Equal stages: (M + S - 1) / M of the S-th part.
    equal = seconds(one_f_one_b([1.0] * 4, [2.0] * 4, 0.0, 16, 2))
    assert equal[0] == pytest.approx(3 * (16 + 3))


def local_result(order, time):
    opponent = f"1F1B, {local_time.MICRO_BATCHES[-1]}"
    each = {
        f"{v} over {opponent}": dict.fromkeys(map(str, losses), time)
        for v in ("chunked", "overlapping", "greedy")
        for losses in [{loss for each in local_time.LOSSES.values() for loss in each}]
    }
    task = {"overlapping_over_greedy": order, "time": each}
    return {"tasks": {"vision": task, "text": task}, "batches": {"fewer": [ONE, ONE]}}


@pytest.mark.parametrize(
    ("order", "time", "word"),
    [
        (LESS, LESS, "confirmed"),
        (ONE, LESS, "open"),
        (LESS, MORE, "refuted"),
        (LESS, ONE, "refuted"),
    ],
)
def test_the_rule_of_local_time(order, time, word):
    assert local_time.verdict(local_result(order, time)).word == word


def test_random_labels_are_of_the_same_images_and_know_nothing_of_them(tmp_path):
    config = local_time.config("vision", "greedy", "small")
    changed = shared_data.load(local_similarity.random_labels(config, tmp_path))
    whole = shared_data.load(config)
    np.testing.assert_array_equal(
        changed.train["image"], whole.train["image"][: local_similarity.RANDOM]
    )
    agree = np.mean(changed.train["label"] == whole.train["label"][: local_similarity.RANDOM])
    assert abs(agree - 0.1) < 4 * np.sqrt(0.09 / local_similarity.RANDOM)


def similarity_result(overlapping, greedy, test):
    found = {"overlapping": [[[overlapping]]] * 2, "greedy": [[[greedy]]] * 2}
    return {
        "cosines": {"vision": found, "text": found},
        "test_over_backprop": {"overlapping": test, "greedy": test},
        "random_labels": {"greedy": {"over": ONE}},
    }


@pytest.mark.parametrize(
    ("cosines", "test", "word"),
    [
        ((0.5, 0.1), MORE, "confirmed"),
        ((0.5, 0.1), ONE, "open"),
        ((0.1, 0.5), MORE, "refuted"),
        ((0.5, 0.1), LESS, "refuted"),
    ],
)
def test_the_rule_of_similarity(cosines, test, word):
    assert local_similarity.verdict(similarity_result(*cosines, test)).word == word


@pytest.mark.parametrize(
    ("small", "large", "word"),
    [
        (ONE, LESS, "confirmed"),
        (MORE, LESS, "open"),
        (LESS, MORE, "refuted"),
        ([1.0, 0.95, 1.05], [1.0, 0.95, 1.05], "refuted"),
        ([1.0, 0.8, 1.05], [1.0, 0.95, 1.05], "open"),
    ],
)
def test_the_rule_of_merged_servers(small, large, word):
    result = {
        "tuned": {},
        "merged_over_unmerged": {
            "4": {"updates": small, "seconds": ONE},
            "16": {"updates": large, "seconds": ONE},
        },
        "penalty": dict.fromkeys(
            ("4 groups", "4 groups, merged", "16 groups", "16 groups, merged"), ONE
        ),
    }
    assert merged_servers.verdict(result).word == word


def test_every_arm_can_run():
    for groups, merged in ((1, False), (4, False), (16, True)):
        check(merged_servers.config(groups, merged, "small"))
    for strategy in ("sync", "daso"):
        check(daso.config(strategy, "small"))
    for case in dynamic_batch.CASES:
        for own in dynamic_batch.SHARES.values():
            check(dynamic_batch.config("small", case, weights="equal", **own))
    for task in local_time.TASKS:
        for variant in local_time.VARIANTS:
            check(local_time.config(task, variant, "small"))
