"""The cases of `configs/tune.py`: which of them can be won, and that all can run."""

import pytest

from analysis.studies.automatic_speedup import CASES
from configs import tune as cases
from optdyn.clock.arrivals import iteration_seconds
from optdyn.train.checks import check
from tests.tune import hardware


def test_one_case_of_the_claim_can_be_won_and_the_other_cannot():
    assert [cases.can_win(case) for case in CASES.values()] == [True, False]


@pytest.mark.parametrize("case", cases.CASES)
def test_every_case_can_run_and_four_of_eight_are_of_each_batch(case):
    config = cases.get_config(case)
    check(config)
    # With batches above a third of the noise scale, or all workers alike, nothing is to be won.
    assert cases.can_win(case) == (case.startswith("small") and not case.endswith("uniform"))


def test_the_server_is_the_closed_forms():
    """4 ms of exchange and 1.5 of the server; 8 groups would take 1.2, but it is saturated."""
    config = cases.get_config("small,server")
    pieces = iteration_seconds(config.cluster, merged=False)
    assert hardware.seconds_per_iteration(pieces, 1, 8) == pytest.approx(5.5e-3)
    assert hardware.seconds_per_iteration(pieces, 8, 1) == pytest.approx(1.5e-3)
    for g in (1, 2, 4, 8):  # laws of variation 0.25 wait for one another: never faster
        assert (
            0.99 < cases.pace(config, g) / hardware.seconds_per_iteration(pieces, g, 8 // g) < 1.5
        )
