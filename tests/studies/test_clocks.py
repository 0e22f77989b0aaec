"""The clocks of studies, against references by hand: DASO, dynamic batches, pipelines, waiting."""

import numpy as np
import pytest

from analysis.studies import _local, barrier_waste, daso_saves
from analysis.studies.waiting import FASTEST, WORKERS, config_of
from optdyn.clock.pipeline import schedule, update_seconds
from optdyn.evidence.trial import Curve, timeline_of
from optdyn.train import trainer


def curve(config):
    """A loss at the end of every epoch, as a trial of DASO has."""
    updates = [0, *range(31, config.steps + 1, 31)]
    return Curve(updates, [0.0] * len(updates), [2.0] * len(updates), "ended", {"accuracy": 0.9})


def constant(method):
    return daso_saves.config(method, "small").with_({"cluster.service.name": "constant"})


@pytest.mark.parametrize(("network", "update"), [(0.25, 1.0), (1.0, 4 / 3), (4.0, 13 / 3)])
def test_the_synchronous_update_hides_its_exchange_behind_two_thirds(network, update):
    config = constant("sync")
    made = daso_saves.on(network, config, curve(config), 0)
    # Float64 sums of 372 updates.
    assert made.seconds[-1] == pytest.approx(
        config.steps * update * daso_saves.COMPUTING, rel=1e-12
    )


def test_daso_blocks_in_warm_up_and_cool_down_only():
    """Of 12 epochs 4 block, for 4/3 of a batch; in the others only the last of 31 batches does."""
    config = constant("daso")
    made = daso_saves.on(1.0, config, curve(config), 0)
    blocked, cycled = 31 * 4 / 3, 30 + 4 / 3
    assert made.seconds[-1] / daso_saves.COMPUTING == pytest.approx(4 * blocked + 8 * cycled)
    assert daso_saves.BYTES == 4 * 669_706


def test_without_disturbances_equal_workers_waste_nothing():
    waste, seconds = barrier_waste.clock(barrier_waste.config("small", 0.0), 0)
    assert waste == pytest.approx(0, abs=1e-12)
    # 31 updates of 128 are 3,968 of the 4,000 examples that are said to take 20 s.
    assert seconds == pytest.approx(40 * barrier_waste.EPOCH * 3968 / 4000)


def test_greedy_updates_follow_each_other_at_their_longest_stage():
    """The pipeline's clock against the longest dependent path, counted from the groups alone."""
    greedy = _local.config("vision", "greedy", "small")
    _, between = _local.clock(greedy)["greedy"]
    config = _local.config("vision", "overlapping", "small")
    config = config.with_({"method.window": 1})  # which is greedy
    assert between == pytest.approx(_local.clock(config)["overlapping"][1])
    assert 1 / _local.STAGES < between < 0.6


def test_backpropagation_is_pipelined_and_not_stalled():
    """More micro-batches leave the stages less to wait: less than any bubble formula's limit."""
    clocks = _local.clock(_local.config("vision", "backprop", "small"))
    few, many = (clocks[f"1F1B, {m}"][1] for m in _local.MICRO_BATCHES)
    assert 1 / _local.STAGES < many < few < 1
    # Equal stages: (M + S - 1) / M of the S-th part.
    equal = update_seconds(schedule("1f1b", [1.0] * 4, [2.0] * 4, 0.0, 2, 16))
    assert equal[0] == pytest.approx(3 * (16 + 3))


@pytest.mark.parametrize("m", FASTEST)
def test_an_update_of_the_m_fastest_of_constant_speeds_takes_what_the_mth_takes(m):
    """Speeds are 1 / sqrt(i), so that is sqrt(m) seconds, each time anew."""
    config = config_of("unlike speeds", f"{m} fastest").with_(steps=20)
    seconds = trainer.prepare(config, timeline_of=timeline_of).timeline.seconds
    # Speeds are rounded to four digits.
    np.testing.assert_allclose(np.diff(seconds), m**0.5, rtol=1e-3)


def test_asynchronous_workers_of_constant_speeds_add_up():
    config = config_of("unlike speeds", "asynchronous").with_(steps=2000)
    seconds = trainer.prepare(config, timeline_of=timeline_of).timeline.seconds
    rate = sum(1 / (i + 1) ** 0.5 for i in range(WORKERS))
    # At most one gradient of each worker is under way at the end, 8 of 2,000.
    assert 2000 / seconds[-1] == pytest.approx(rate, rel=0.005)
