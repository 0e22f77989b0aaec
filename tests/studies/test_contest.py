"""The contest: what each network chooses, whose clock it is told by, words and the table."""

import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest

from analysis.studies import contest
from optdyn.base.files import finite, read_rows
from optdyn.cli import papers
from optdyn.clock.service import Constant
from optdyn.evidence import contest as contested
from optdyn.evidence.arms import (
    MOMENTUM,
    OUTER,
    RATE,
    STEP,
    Arm,
    momenta,
    not_negative,
    point,
    rates,
    rung,
)
from optdyn.evidence.contest import FASTER, MISSED, SAME, SLOWER, Place, Side
from optdyn.evidence.trial import Curve, to_loss, trial
from optdyn.train import trainer
from optdyn.train.checks import check
from tests.evidence.known import Known

RATIOS = contest.NETWORKS
ARMS = (*contest.OPPONENTS, *contest.ARMS)


def place(ratio, nodes=8, devices=1):
    return Place(contest.bandwidth("1 Gb/s") * RATIOS["1 Gb/s"] / ratio, nodes, devices)


def side_of(name, **cluster):
    """An arm in the contest, nothing of it tuned."""
    entry = contest.entry(name)
    changed = entry.arm.config.with_(cluster=entry.arm.config.cluster.with_(**cluster))
    return Side(entry._replace(arm=entry.arm._replace(config=changed)), {})


def known(updates):
    """A study of one seed whose updates are a known function of batch and period.

    The best long-run step is 1 and the best momentum 0.
    """

    def taken(config):
        step = config.optimizer.learning_rate / (1 - config.optimizer.momentum)
        off = abs(rung(rates, step)) + abs(config.optimizer.momentum)
        return math.ceil(updates(config) * 1.3**off), 1.0

    return Known(taken, choose=(0,), report=(9,), target=0.1)


@pytest.mark.parametrize("name", ARMS)
def test_every_arm_can_run_at_the_ends_of_what_a_network_chooses_from(name):
    entry = contest.entry(name)
    top = tuple(len(steps) - 1 for steps in entry.ladders.values())
    for cell in (entry.start, (0,) * len(top), top):
        setting = point(entry.arm, list(entry.arm.start.values()))
        check(Side(entry, {}).config(cell).with_(setting, seed=0))


def test_a_setting_is_of_its_arm_alone():
    plain = contest.config_of(contest.PLAIN).to_dict()
    for name in ARMS:
        other = contest.config_of(name).to_dict()
        same = [key for key in plain if key not in ("batch_size", "method", "probes")]
        if name in ("DASO", contest.SNOO):
            same.remove("cluster")
        if "optimizer.chain" in contest.ARMS.get(name, {}):
            same.remove("optimizer")
        assert all(plain[key] == other[key] for key in same), name


def test_the_bytes_are_those_of_the_parameters():
    params = trainer.prepare(contest.config_of(contest.PLAIN)).params
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(params)) == contest.BYTES


@pytest.mark.parametrize("network", RATIOS)
def test_the_all_reduce_takes_its_share_of_an_update(network):
    """A ring of 8 behind the last two thirds of the computing; in DASO's shape one of 4."""
    for computing in (1, 4):
        config = contest.config_of(contest.PLAIN)
        config = config.with_(batch_size=64 * computing, steps=10).with_(
            {"cluster.service.name": "constant", "cluster.bandwidth": contest.bandwidth(network)}
        )
        update = max(computing, computing / 3 + RATIOS[network])
        end = trainer.prepare(config).timeline.seconds[-1]
        assert end == pytest.approx(10 * update, rel=1e-12)  # float64
        config = config.with_({"cluster.nodes": 4, "cluster.devices_per_node": 2})
        update = max(computing, computing / 3 + RATIOS[network] * (3 / 4) / (7 / 8))
        end = trainer.prepare(config).timeline.seconds[-1]
        assert end == pytest.approx(10 * update, rel=1e-12)


def test_who_arrives_when_depends_on_the_network_where_nobody_waits():
    def lines(arm):
        config = contest.config_of(arm).with_(steps=200)
        networks = [contest.bandwidth(network) for network in ("10 Gb/s", "0.1 Gb/s")]
        configs = [config.with_({"cluster.bandwidth": size}) for size in networks]
        return [trainer.prepare(config_there).timeline for config_there in configs]

    for arm in ("local SGD", "gossip"):
        fast, slow = lines(arm)
        assert contested.same_order(fast, slow) and fast.seconds[-1] < slow.seconds[-1], arm
    alone = ("asynchronous", "AD-PSGD", "K-batch-async, K = 4")
    for arm in (*alone, "elastic averaging", "delayed Nesterov"):
        assert not contested.same_order(*lines(arm)), arm


def test_a_trial_of_the_mean_has_the_loss_that_the_log_calls_so(tmp_path):
    config = contest.config_of("local SGD").with_(
        {"data.train_evaluated": 500}, steps=20, log_every=4, checkpoint_every=0
    )
    trainer.train(config, tmp_path)
    logged = {row["step"]: row for row in read_rows(tmp_path / "metrics.jsonl")}
    curve = trial(config)
    losses = dict(zip(curve.updates, curve.losses, strict=True))
    for step in (16, 20):
        assert losses[step] == pytest.approx(logged[step]["mean_loss"], rel=1e-5)  # float32
    config = config.with_({"probes.mean": False})
    node_losses = dict(zip(curve.updates, trial(config).losses, strict=True))
    assert node_losses[20] == pytest.approx(logged[20]["train_loss"], rel=1e-5)


def test_a_step_is_over_what_both_momenta_add():
    ladders = {STEP: rates, MOMENTUM: momenta, OUTER: not_negative}
    found = point(Arm(contest.config_of("DiLoCo"), ladders, {}), [0, 4, 2])
    assert found == pytest.approx({RATE: 0.1 * 0.4, MOMENTUM: 0.9, OUTER: 0.6})
    assert point(Arm(contest.config_of("DiLoCo"), ladders, {}), [0, 4, -3])[OUTER] == 0


@pytest.mark.parametrize("network", RATIOS)
def test_each_network_chooses_the_batch_of_the_fewest_seconds(network):
    """By hand: 100 (1 + 256 / B) updates, each max(c, c / 3 + r) seconds, with c = B / 64."""
    r = RATIOS[network]
    seconds = {
        b: math.ceil(100 * (1 + 256 / b)) * max(b / 64, b / 192 + r) for b in contest.BATCHES
    }
    side = side_of(contest.PLAIN, service=Constant())
    study = known(lambda config: 100 * (1 + 256 / config.batch_size))
    times = contested.chosen(study, side, place(r), 0.1)
    best = contested.least(times)
    assert contest.BATCHES[best[0]] == min(seconds, key=seconds.get)
    for cell, (cost,) in times.items():
        assert cost == pytest.approx(seconds[contest.BATCHES[cell[0]]], rel=1e-9)  # float64 sums


def test_a_batch_and_a_period_that_only_pay_together_are_found():
    def updates(config):
        together = (config.batch_size, config.method.get("period", 0))
        return {(64, 8): 200, (128, 32): 50}.get(together, 600)

    side, study = side_of("local SGD", service=Constant()), known(updates)
    times = contested.chosen(study, side, place(0.2), 0.1)
    best = contested.values(side.entry, contested.least(times))
    assert best == {"batch_size": 128, "method.period": 32}
    around = {(b, h) for b in (64, 128, 256) for h in (8, 32, 128)}
    assert around <= {tuple(contested.values(side.entry, cell).values()) for cell in side.cells}


def test_what_one_network_has_tuned_another_chooses_from():
    side = side_of(contest.PLAIN, service=Constant())
    study = known(lambda config: 100 * (1 + 256 / config.batch_size))
    contested.chosen(study, side, place(0.2), 0.1)
    before = set(side.cells)
    contested.chosen(study, side, place(20.0), 0.1)
    assert before < set(side.cells)


def timed_curve(name, there):
    """A curve of 40 updates at the usual batch, in the seconds of a place."""
    curve = Curve([0, 40], [0.0, 1.0], [2.0, 0.1], "reached", {})

    class FakeStudy:
        def trials(self, jobs):
            return [curve for _ in jobs]

    return contested.timed(FakeStudy(), side_of(name).entry, {}, there, 0.1, (3,))[0]


@pytest.mark.parametrize("ratio", [0.2, 20.0])
@pytest.mark.parametrize(("nodes", "devices"), [(8, 1), (4, 2)])
def test_outer_momentum_on_one_node_takes_the_seconds_of_synchronous_training(
    ratio, nodes, devices
):
    config = contest.config_of(contest.PLAIN).with_(seed=3, steps=40)
    shape = {"nodes": nodes, "devices_per_node": devices}
    there = place(ratio, nodes, devices)
    config = config.with_(cluster=config.cluster.with_(bandwidth=there.bandwidth, **shape))
    end = trainer.prepare(config).timeline.seconds[-1]
    for name in (contest.PLAIN, contest.SNOO):
        assert timed_curve(name, there).met[-1] == pytest.approx(end, rel=1e-12)  # float64 sums


def test_the_last_meeting_of_nodes_counts_where_they_have_not_just_met():
    """40 updates end with a meeting where H = 8; in the seconds of one at 39 there is one more."""
    on = timed_curve("local SGD", place(2.0))
    assert on.met[-1] == on.seconds[-1]
    curve = Curve([0, 39], [0.0, 1.0], [2.0, 0.1], "reached", {})
    study = type("Trained", (), {"trials": lambda self, jobs: [curve for _ in jobs]})()
    (one,) = contested.timed(study, side_of("local SGD").entry, {}, place(2.0), 0.1, (3,))
    assert to_loss(one, 0.1, "met") == pytest.approx(one.seconds[-1] + 2.0, rel=1e-12)


def test_every_entry_meets_the_best_opponent_on_nodes_like_its_own():
    """64 updates at every batch: the smallest is the best, and an all-reduce of 20 is all of it.

    A ring of 8 takes 20 seconds, one of 4 nodes 20 (3/4) / (7/8); the usual update computes for 1.
    """
    pairs, alone = side_of("gossip", nodes=4, devices_per_node=2), side_of("gossip")
    made = contested.measure(
        known(lambda _: 64),
        contested.Contest(
            {contest.PLAIN: side_of(contest.PLAIN, service=Constant()).entry},
            {"alone": alone.entry, "pairs": pairs.entry},
            (0.5, 0.1),
            {"0.1 Gb/s": place(20.0).bandwidth},
        ),
    )
    against = made["opponents"]["0.1 Gb/s"]
    for shape, ring in (("8 x 1", 20), ("4 x 2", 20 * (3 / 4) / (7 / 8))):
        usual, best = against[shape]["usual"]["0.1"], against[shape]["every"][0]
        assert usual == [pytest.approx(64 * (1 / 3 + ring), rel=1e-4)]  # of 5 digits
        assert best["seconds"]["0.1"] == [pytest.approx(64 * (1 / 24 + ring), rel=1e-4)]
        assert best["chosen"] == {"batch_size": 8} and not best["interior"]  # the ladder's end
    for row, shape in zip(made["rows"], ("8 x 1", "4 x 2"), strict=True):
        entry = row["networks"]["0.1 Gb/s"]
        assert entry["shape"] == shape
        best, usual = against[shape]["every"][0]["seconds"]["0.1"], against[shape]["usual"]["0.1"]
        assert entry["over"]["0.1"][0] == pytest.approx(entry["seconds"]["0.1"][0] / best[0])
        assert entry["over usual"]["0.1"][0] == pytest.approx(entry["seconds"]["0.1"][0] / usual[0])


SEEDS = 5


def result(batch, *arms):
    """Of an opponent that takes `batch` of its usual seconds, and arms that take so much."""
    usual = np.linspace(100, 110, SEEDS)

    def times(part):
        return {"0.5": list(part * usual / 2), "0.1": list(part * usual)}

    def cell(part, p):
        seconds = times(part)
        over = {x: [part / batch] * 3 for x in seconds}
        row = {"chosen": {"batch_size": 128}, "interior": True, "seconds": seconds, "cost": part}
        row |= {"over at best": [part / batch] * 3, "over": over, "chance": p, "shape": "8 x 1"}
        return row | {"over usual": {x: [part] * 3 for x in seconds}}

    plain = {"arm": "synchronous", **cell(batch, 1.0)}
    against = {"8 x 1": {"usual": times(1.0), "best": "synchronous", "every": [plain]}}
    rows = [
        {"arm": f"arm {i}", "networks": {"1 Gb/s": {"arm": f"arm {i}", **cell(part, p)}}}
        for i, (part, p) in enumerate(arms)
    ]
    return {"losses": [0.5, 0.1], "opponents": {"1 Gb/s": against}, "rows": rows}


def test_words_are_of_chances_that_are_corrected_for_all():
    """Of four words: 0.01 times four is below 0.05, 0.02 times three is not."""
    made = result(0.8, (0.6, 0.01), (0.7, 0.02), (0.7, 1.0), (0.7, 1.0))
    words = contested.words(made)["1 Gb/s"]
    assert words["arm 0"] == (FASTER, 0.04) and words["arm 1"] == (SAME, pytest.approx(0.06))
    assert contested.words(result(0.8, (0.9, 0.01)))["1 Gb/s"]["arm 0"][0] == SLOWER


def test_the_table_shows_every_arm_as_the_record_has_it():
    made = result(0.8, (0.6, 0.02), (math.inf, 0.01))
    table = contested.table(json.loads(json.dumps(finite(made), allow_nan=False)))
    first = next(line for line in table.splitlines() if line.startswith("| arm 0 |"))
    assert "batch_size 128 | 0.6 [0.6, 0.6] | 0.75 [0.75, 0.75] | 0 of 5 |" in first
    assert first.endswith("| 0.75 [0.75, 0.75] | 0.02 | faster |")
    assert MISSED in table and "| 1 Gb/s | 8 x 1 | synchronous |" in table


def test_a_run_takes_the_seconds_that_its_record_says():
    path = papers.STUDIES / "records" / "contest.json"
    shipped = json.loads((Path(__file__).parents[2] / path).read_text())
    others = shipped["result"]["opponents"][contest.TUNED_ON]["8 x 1"]["every"]
    plain = next(opponent for opponent in others if opponent["arm"] == contest.PLAIN)
    config = contest.config_of(contest.PLAIN).with_(plain["chosen"])
    curve = trial(
        config.with_(plain["point"], seed=shipped["seeds"]["report"][0]), contest.LOSSES[-1]
    )
    # Another machine sums in another order, so that losses differ in their last digits.
    seconds = to_loss(curve, contest.LOSSES[-1], "met")
    assert seconds == pytest.approx(plain["seconds"]["0.1"][0], rel=1e-3)
