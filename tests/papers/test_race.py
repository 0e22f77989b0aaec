"""The race: every arm can run, its clock, what changes with the network, the rule as written."""

import json
import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from optdyn.basics.files import finite
from optdyn.configs import race
from optdyn.evidence import race as raced
from optdyn.evidence.arms import (
    MOMENTUM,
    OUTER,
    RATE,
    STEP,
    Arm,
    at,
    momenta,
    not_negative,
    point,
    rates,
)
from optdyn.evidence.race import FASTER, MISSED, SAME, SLOWER
from optdyn.evidence.trial import trial
from optdyn.launch import papers
from optdyn.outputs.workdir import rows
from optdyn.training import trainer
from optdyn.training.checks import check


@pytest.mark.parametrize("problem", race.PROBLEMS)
def test_every_arm_can_run_on_every_network(problem):
    for name in race.ARMS:
        arm = race.arm_of(problem, name)
        setting = point(arm, [arm.start[key] for key in arm.ladders])
        below = point(arm, [arm.start[key] - 8 for key in arm.ladders])
        assert setting[RATE] > below[RATE] > 0
        for network in race.NETWORKS:
            for values in (setting, below):
                check(at(race.config_of(problem, name, network), values, 0))


def test_a_setting_is_of_its_arm_alone():
    """But for the batch, the methods' own keys and DASO's nodes arms are the same experiment."""
    plain = race.config_of("mlp", "synchronous").to_dict()
    for name in race.ARMS:
        other = race.config_of("mlp", name).to_dict()
        same = [key for key in plain if key not in ("batch_size", "strategy", "probes")]
        if name == "DASO":
            same.remove("cluster")
        if "optimizer.chain" in race.ARMS[name]:
            same.remove("optimizer")
        assert all(plain[key] == other[key] for key in same), name


@pytest.mark.parametrize("network", race.NETWORKS)
def test_the_all_reduce_takes_its_share_of_an_update(network):
    """A ring of 8 behind the last two thirds of a second of computing; in DASO's shape one of 4."""
    ratio = race.NETWORKS[network]
    for arm, computing in (("synchronous", 1.0), ("synchronous, large batch", race.LARGE)):
        config = race.config_of("resnet", arm, network)
        config = config.with_({"cluster.service": "constant"}, steps=10)
        update = max(computing, computing / 3 + ratio)
        assert trainer.prepare(config).timeline.seconds[-1] == pytest.approx(
            10 * update, rel=1e-12
        )  # float64
        config = config.with_({"cluster.nodes": 4, "cluster.devices_per_node": 2})
        update = max(computing, computing / 3 + ratio * (3 / 4) / (7 / 8))
        end = trainer.prepare(config).timeline.seconds[-1]
        assert end == pytest.approx(10 * update, rel=1e-12)


def test_who_arrives_when_depends_on_the_network_where_nobody_waits():
    def lines(arm):
        configs = [race.config_of("mlp", arm, network) for network in ("10 Gb/s", "0.1 Gb/s")]
        return [trainer.prepare(config.with_(steps=200)).timeline for config in configs]

    for arm in ("local SGD", "gossip"):
        fast, slow = lines(arm)
        assert raced.same_order(fast, slow) and fast.seconds[-1] < slow.seconds[-1], arm
    alone = ("asynchronous", "AD-PSGD", "K-batch-async, K = 4")
    for arm in (*alone, "elastic averaging", "delayed Nesterov"):
        assert not raced.same_order(*lines(arm)), arm


def test_a_trial_of_the_mean_has_the_loss_that_the_log_calls_so(tmp_path):
    config = race.config_of("mlp", "local SGD").with_(
        {"data.train_evaluated": 500}, steps=20, log_every=4, checkpoint_every=0
    )
    trainer.train(config, tmp_path)
    logged = {row["step"]: row for row in rows(tmp_path / "metrics.jsonl")}
    curve = trial(config)
    losses = dict(zip(curve.updates, curve.losses, strict=True))
    for step in (16, 20):
        assert losses[step] == pytest.approx(logged[step]["mean_loss"], rel=1e-5)  # float32
    config = config.with_({"probes.mean": False})
    own = dict(zip(curve.updates, trial(config).losses, strict=True))
    assert own[20] == pytest.approx(logged[20]["train_loss"], rel=1e-5)


def test_a_step_is_over_what_both_momenta_add():
    ladders = {STEP: rates, MOMENTUM: momenta, OUTER: not_negative}
    found = point(Arm(race.config_of("mlp", "DiLoCo"), ladders, {}), [0, 4, 2])
    assert found == pytest.approx({RATE: 0.1 * 0.4, MOMENTUM: 0.9, OUTER: 0.6})
    assert point(Arm(race.config_of("mlp", "DiLoCo"), ladders, {}), [0, 4, -3])[OUTER] == 0


LESS, EVEN, MORE = [0.5, 0.4, 0.6], [1.0, 0.9, 1.1], [1.5, 1.2, 1.8]
NEVER = [math.nan, 0.0, math.inf]


def result(*overs):
    """Of an opponent and so many arms, (ratio on the fast network, on the slow one) each."""

    def cell(over):
        times = [math.inf] * 3 + [1.0] * 2 if over is NEVER else [1.0] * 5
        return {"seconds": {"0.5": times, "0.1": times}, "over": {"0.5": over, "0.1": over}}

    def row(name, fast, slow):
        return {
            "arm": name,
            "tuned": {"point": {"optimizer.learning_rate": 0.1}, "interior": True},
            "updates": {"0.5": [1.0] * 5, "0.1": [1.0] * 5},
            "over": {"0.5": EVEN, "0.1": EVEN},
            "networks": {"fast": cell(fast), "slow": cell(slow)},
            "like": {"implicit_momentum": [0.1, 0.2], "implicit_momentum_p": [0.5, 0.6]},
        }

    rows = [row("synchronous", EVEN, EVEN)]
    rows += [row(f"arm {i}", *over) for i, over in enumerate(overs)]
    opponents = {"fast": "synchronous", "slow": "synchronous"}
    return {"losses": [0.5, 0.1], "opponents": opponents, "rows": rows}


def test_every_cell_has_its_word():
    made = result((MORE, LESS), (EVEN, EVEN), (NEVER, NEVER))
    words = {"arm 0": SLOWER, "arm 1": SAME, "arm 2": MISSED}
    assert raced.cells(made) == {"fast": words, "slow": words | {"arm 0": FASTER}}


@pytest.mark.parametrize(
    ("overs", "word"),
    [
        ([(EVEN, LESS), (MORE, LESS), (MORE, EVEN)], "confirmed"),
        ([(EVEN, LESS), (MORE, LESS), (LESS, EVEN)], "open"),
        ([(EVEN, LESS), (MORE, EVEN), (MORE, EVEN)], "open"),
        ([(EVEN, LESS), (MORE, NEVER)], "open"),
        ([(EVEN, EVEN), (MORE, MORE), (MORE, NEVER)], "refuted"),
        ([(LESS, LESS), (LESS, LESS), (MORE, LESS)], "refuted"),
    ],
)
def test_the_rule(overs, word):
    assert raced.verdict(result(*overs)).word == word


def test_table_and_picture_show_every_arm_as_the_record_has_it():
    """Also one that never arrives, whose ratio is infinite or no number: a file has null."""
    made = result((MORE, LESS), (EVEN, NEVER))
    table = raced.table(json.loads(json.dumps(finite(made), allow_nan=False)))
    first = next(line for line in table.splitlines() if line.startswith("| arm 0 |"))
    assert "1.5 [1.2, 1.8], slower | 0.5 [0.4, 0.6], faster | 0 of 5" in first
    assert "inf [0, inf], missed" in table and "the opponent" in table
    figure = Figure()
    raced.picture(made, figure)
    assert len(figure.axes) == 3
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["arm 1", "arm 0", "synchronous"]


def test_the_race_is_run_where_it_is_named():
    every = {f"race_{problem}" for problem in race.PROBLEMS}
    assert every <= set(papers.names()) and not every & set(papers.usual())
    assert np.isin(["lowering", "best_momentum"], papers.usual()).all()


def test_the_estimate_is_within_four_hours():
    minutes = [float(line.split("|")[-2]) for line in race.estimate().splitlines()[2:]]
    assert len(minutes) == len(race.PROBLEMS) and sum(minutes) < 240
