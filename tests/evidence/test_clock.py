"""Programs timed in turn: on the cores that were asked for, every setting once a round."""

import numpy as np

from optdyn.evidence.clock import TimedCall, in_turn
from optdyn.evidence.study import affinity


def which(n: int, value: float) -> float:
    """A number that tells the cores of its process and what it was called with."""
    return 10 * len(affinity()) + n + value


def test_every_setting_is_called_once_a_round_on_its_cores():
    before = affinity()
    found = in_turn([[TimedCall(1, which, (i, j / 4)) for j in range(3)] for i in range(2)])
    expected = [[10 + i + j / 4 for i in range(2)] for j in range(3)]
    np.testing.assert_array_equal(found.seconds, expected)
    assert affinity() == before  # of this process
