"""The seconds behind the time that DASO saves: limits, a hand-worked run, a trained one."""

import json
import math
import re

import pytest

from analysis.notebooks.network import GIGABIT, DasoRun, read_daso, seconds
from optdyn.experiment import Config
from optdyn.report import tables
from optdyn.report.tables import TableError
from optdyn.train.trainer import train

LOSSES = [1.0] * 3


@pytest.fixture
def run():
    """4 epochs of 10 updates by 4 nodes of one device, 1 second each, of a model of 1 Gb."""
    config = Config().with_(
        {
            "steps": 40,
            "batch_size": 4,
            "method.name": "daso",
            "method.warmup_epochs": 1,
            "method.cooldown_epochs": 1,
            "cluster.nodes": 4,
            "cluster.service.name": "constant",
            "cluster.seconds_per_example": 1.0,
        }
    )
    return DasoRun(config, 10, 1e9 / 8, LOSSES)


def test_hand_worked(run):
    """At 10 Gb/s a ring of 4 takes 2 x 3 messages of 1/4 Gb, 0.15 s, hidden by the next batch."""
    table = seconds(run, [10.0])
    # Two epochs block 10 times, two at B = 4 in their last batch only.
    expected = {"synchronous": 40 * 1.15, "daso": 40 + (2 * 10 + 2) * 0.15}
    for name, value in expected.items():
        assert table[name][0] == pytest.approx(value)  # rounding of a sum of 40
    assert table["saved"][0] == pytest.approx(1 - expected["daso"] / expected["synchronous"])


def test_a_slow_network_saves_what_is_not_sent(run):
    """Transfers of 1,500,000 s: computing, 1 s a batch, is less than 1e-6 of it."""
    # 20 in blocking epochs; in the others at batches 0, 4 and the last: 8 would arrive with it.
    assert seconds(run, [1e-6])["saved"][0] == pytest.approx(1 - (20 + 2 * 3) / 40, abs=1e-6)


def test_nothing_to_save(run):
    assert seconds(run, [math.inf])["saved"][0] == 0
    blocking = run._replace(config=run.config.with_({"method.warmup_epochs": 4}))
    # Both sum the same 40 terms, epoch by epoch and at once.
    assert seconds(blocking, [1.0])["saved"][0] == pytest.approx(0, abs=1e-12)


def test_a_trained_run_is_clocked_as_its_log_is(config, tmp_path):
    values = {
        "steps": 38,  # ends inside an epoch
        "log_every": 3,  # log points inside epochs, too
        "checkpoint_every": 0,
        "data.train_examples": 33,  # 8 batches of 4, one example left over
        "method.name": "daso",
        "method.warmup_epochs": 1,
        "method.cooldown_epochs": 1,
        "method.patience": 0,
        "method.threshold": 0.9,
        "cluster.nodes": 2,
        "cluster.devices_per_node": 2,
        "cluster.seconds_per_example": 1e-7,  # less than a transfer
        "cluster.bandwidth": 0.5 * GIGABIT,
        "cluster.local_bandwidth": 1e8,
    }
    summary = train(config(values), tmp_path)
    run = read_daso(tables.points(tmp_path)[0], tmp_path)
    assert run.steps_per_epoch == 8 and len(run.epoch_losses) == 4
    assert seconds(run, [0.5])["daso"][0] == summary["simulated_seconds"]

    # A model a thousand times larger, on devices a thousand times slower.
    slower = run.config.with_({"cluster.seconds_per_example": 1e-4})
    large = seconds(run._replace(config=slower, update_bytes=1000 * run.update_bytes), [5.0])
    for name in ("synchronous", "daso"):  # everything takes 1000 times as long, but for rounding
        assert large[name][0] == pytest.approx(1000 * seconds(run, [5.0])[name][0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cluster.bandwidths": ((1e5, 1e5), (1e5, 1e5))}, "cluster.bandwidths must be ()"),
        ({"log_every": 7}, "the log has no update 8"),
    ],
)
def test_a_run_whose_clock_it_cannot_draw_again_is_refused(config, tmp_path, values, message):
    daso = {"method.name": "daso", "method.warmup_epochs": 0, "method.cooldown_epochs": 0}
    daso |= {"cluster.nodes": 2, "steps": 24, "data.train_examples": 33}
    train(config(daso), tmp_path)
    text = (tmp_path / "config.json").read_text()
    made = json.loads(text)
    for key, value in values.items():
        *outer, last = key.split(".")
        part = made[outer[0]] if outer else made
        part[last] = value
    (tmp_path / "config.json").write_text(json.dumps(made))
    if "log_every" in values:
        rows = (tmp_path / "metrics.jsonl").read_text().splitlines()
        kept = [row for row in rows if json.loads(row)["step"] in (0, 24)]
        (tmp_path / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    with pytest.raises(TableError, match=re.escape(message)):
        read_daso(tables.points(tmp_path)[0], tmp_path)
