"""The clocks of studies, against references by hand: DASO, dynamic batches, pipelines, waiting."""

import pytest

from analysis.studies import _local, barrier_waste, daso_saves
from optdyn.evidence.trial import Curve


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
    greedy = _local.config("vision", "greedy", "small")
    _, between = _local.clock(greedy)["greedy"]
    config = _local.config("vision", "overlapping", "small")
    config = config.with_({"method.window": 1})  # which is greedy
    assert between == pytest.approx(_local.clock(config)["overlapping"][1])
    assert 1 / _local.STAGES < between < 0.6


def test_backpropagation_is_pipelined_and_not_stalled():
    clocks = _local.clock(_local.config("vision", "backprop", "small"))
    few, many = (clocks[f"1F1B, {m}"][1] for m in _local.MICRO_BATCHES)
    assert 1 / _local.STAGES < many < few < 1
